package pod

import (
	"net/netip"
	"strconv"
	"time"
)

// Protocol of a forwarded port, lower case as CNI's portMappings spells it.
type Protocol string

// The protocols that a hostPort can have.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	SCTP Protocol = "sctp"
)

// PortMapping forwards a port of the node to a port of the pod.
type PortMapping struct {
	Protocol Protocol `json:"protocol"`
	// HostIP is the node's address to listen on; the zero Addr means all of
	// them, in both families.
	HostIP   netip.Addr `json:"hostIP,omitzero"`
	HostPort uint16     `json:"hostPort"`
	Port     uint16     `json:"containerPort"`
}

// Attachment is what a sandbox asks of a network: one interface in one
// network namespace. (Sandbox, IfName) identifies it.
type Attachment struct {
	Sandbox string `json:"sandbox"` // ID
	Pod     Ref    `json:"pod"`
	// Netns is the path of the pinned namespace. It may be empty when
	// detaching after a reboot, when no namespace is left.
	Netns  string        `json:"netns"`
	IfName string        `json:"ifName"`
	Ports  []PortMapping `json:"ports,omitempty"`
	// IPs asks for certain addresses, at most one of each subnet of the network.
	IPs []netip.Addr `json:"ips,omitempty"`
	// MAC asks for a certain Ethernet address. Empty is one that is derived.
	MAC       string    `json:"mac,omitempty"`
	Bandwidth Bandwidth `json:"bandwidth,omitzero"`

	// What follows is read when attaching only, and is not recorded with the
	// attachment: the sandbox's config has it.
	Annotations map[string]string `json:"-"` // of the pod
	DNS         *DNS              `json:"-"`
	Cgroup      string            `json:"-"` // parent of the containers' cgroups

	// RuntimeManaged says that the pod's runtime may have taken over what is set in its
	// namespace, as gVisor does for a network stack of its own: what is missing
	// there is not to be repaired. It is read when reconciling only.
	RuntimeManaged bool `json:"-"`
}

// DNS is how the pod resolves names, as CNI's capability dns spells it.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth bounds what goes to a pod (ingress) and comes from it (egress). A
// rate of 0 is no bound.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`  // bits per second
	IngressBurst uint64 `json:"ingressBurst,omitempty"` // bits; 0 is chosen by the rate
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Attached is what a network answered: the interface as it is in the pod.
type Attached struct {
	Network   string         `json:"network"` // name of the network
	IfName    string         `json:"ifName"`
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`
	HostLink  string         `json:"hostLink"`  // name of the host's end
	Addresses []netip.Prefix `json:"addresses"` // the pod's, primary first
	Gateways  []netip.Addr   `json:"gateways"`  // at most one of each family
}

// Debt is an attachment of a sandbox that is gone, which could not be undone yet.
type Debt struct {
	Attachment
	Network string
	Since   time.Time
	Tries   int    // how often it was tried to undo it
	Error   string // what was in the way; empty before the first try
}

// NetworkSettings is the part of `inspect` that tells how a pod is reached.
// Its field names are iSulad's (and so docker's), for tools that read those.
type NetworkSettings struct {
	SandboxID  string                   `json:"SandboxID"`
	SandboxKey string                   `json:"SandboxKey"`
	Ports      map[string][]PortBinding `json:"Ports"` // by "80/tcp"
	Networks   map[string]Endpoint      `json:"Networks"`
}

// PortBinding is one place on the node that leads to a pod's port.
type PortBinding struct {
	HostIP   string `json:"HostIp"`
	HostPort string `json:"HostPort"`
}

// Endpoint is a pod's interface in one network.
type Endpoint struct {
	IFName              string `json:"IFName"`
	IPAddress           string `json:"IPAddress"`
	IPPrefixLen         int    `json:"IPPrefixLen"`
	Gateway             string `json:"Gateway"`
	GlobalIPv6Address   string `json:"GlobalIPv6Address"`
	GlobalIPv6PrefixLen int    `json:"GlobalIPv6PrefixLen"`
	IPv6Gateway         string `json:"IPv6Gateway"`
	MacAddress          string `json:"MacAddress"`
}

// NewNetworkSettings tells what was asked and answered as `inspect` shows it.
func NewNetworkSettings(asked Attachment, answered []Attached) NetworkSettings {
	s := NetworkSettings{
		SandboxID:  asked.Sandbox,
		SandboxKey: asked.Netns,
		Ports:      map[string][]PortBinding{},
		Networks:   map[string]Endpoint{},
	}
	for _, p := range asked.Ports {
		host := "0.0.0.0"
		if p.HostIP.IsValid() {
			host = p.HostIP.String()
		}
		key := strconv.Itoa(int(p.Port)) + "/" + string(p.Protocol)
		s.Ports[key] = append(s.Ports[key], PortBinding{HostIP: host, HostPort: strconv.Itoa(int(p.HostPort))})
	}
	for _, a := range answered {
		e := Endpoint{IFName: a.IfName, MacAddress: a.MAC}
		for _, p := range a.Addresses {
			switch {
			case p.Addr().Is4() && e.IPAddress == "":
				e.IPAddress, e.IPPrefixLen = p.Addr().String(), p.Bits()
			case p.Addr().Is6() && e.GlobalIPv6Address == "":
				e.GlobalIPv6Address, e.GlobalIPv6PrefixLen = p.Addr().String(), p.Bits()
			}
		}
		for _, g := range a.Gateways {
			if g.Is4() {
				e.Gateway = g.String()
			} else {
				e.IPv6Gateway = g.String()
			}
		}
		name := a.Network
		if _, taken := s.Networks[name]; taken {
			name += "/" + a.IfName
		}
		s.Networks[name] = e
	}
	return s
}
