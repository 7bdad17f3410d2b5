package pod

import (
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
)

// Protocol is the protocol of a forwarded port, in lower case as in CNI's portMappings.
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
	// HostIP is the node's address to listen on. The zero Addr means all addresses of both
	// families.
	HostIP   netip.Addr `json:"hostIP,omitzero"`
	HostPort uint16     `json:"hostPort"`
	Port     uint16     `json:"containerPort"`
}

// PortInUseError is an error of the kind unavailable: something else on the node has a hostPort.
type PortInUseError struct {
	Port PortMapping
	By   string // what has the port, and what to do
}

// Error names the port.
func (e *PortInUseError) Error() string {
	return fmt.Sprintf("host port %d/%s is in use on this node: %s", e.Port.HostPort, e.Port.Protocol, e.By)
}

// Unwrap makes errdefs.IsUnavailable true.
func (e *PortInUseError) Unwrap() error { return errdefs.ErrUnavailable }

// Displacement says that a pod has an address that isn't this node's to give any more. The zero
// value says that it has none.
type Displacement struct {
	Message string // which address, why, and what follows, in one line
	// Replace says that the pod's sandbox must be replaced by one with another address.
	Replace bool
}

// Attachment is a request of a sandbox to a network: for one interface in its network namespace.
// Sandbox and IfName identify it.
type Attachment struct {
	Sandbox string `json:"sandbox"` // ID
	Pod     Ref    `json:"pod"`
	// Netns is the path of the pinned namespace. It may be empty when detaching after a reboot,
	// which leaves no namespaces.
	Netns  string        `json:"netns"`
	IfName string        `json:"ifName"`
	Ports  []PortMapping `json:"ports,omitempty"`
	// IPs requests specific addresses, at most one in each subnet of the network.
	IPs []netip.Addr `json:"ips,omitempty"`
	// MAC requests a specific Ethernet address. If it is empty, one is derived.
	MAC       string    `json:"mac,omitempty"`
	Bandwidth Bandwidth `json:"bandwidth,omitzero"`

	// The following fields are only used when attaching. They aren't recorded with the attachment,
	// because the sandbox's config has them.
	Annotations map[string]string `json:"-"` // of the pod
	Labels      map[string]string `json:"-"` // of the pod; nil if the caller doesn't know them
	DNS         *DNS              `json:"-"`
	Cgroup      string            `json:"-"` // parent of the containers' cgroups

	// RuntimeManaged tells that the pod's runtime may have taken over the settings in its
	// namespace, as gVisor does for its own network stack. Missing settings must not be repaired
	// then. It isn't recorded either.
	RuntimeManaged bool `json:"-"`
}

// DNS is the pod's resolver configuration, in the form of CNI's capability dns.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth limits the traffic to a pod (ingress) and from it (egress). A rate of 0 means no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`  // bits per second
	IngressBurst uint64 `json:"ingressBurst,omitempty"` // bits; 0 derives it from the rate
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Attached is the answer of a network: the interface in the pod.
type Attached struct {
	Network   string         `json:"network"` // name of the network
	IfName    string         `json:"ifName"`
	MAC       string         `json:"mac"`
	MTU       int            `json:"mtu"`
	HostLink  string         `json:"hostLink"`  // name of the host's end
	Addresses []netip.Prefix `json:"addresses"` // the pod's, primary first
	Gateways  []netip.Addr   `json:"gateways"`  // at most one of each family
}

// Debt is an attachment of a removed sandbox whose CNI DEL is still owed.
type Debt struct {
	Attachment
	Network string
	Since   time.Time
	Tries   int    // number of failed attempts
	Error   string // of the last attempt; empty before the first
}

// NetworkSettings is the part of `inspect` with the addresses and ports of a pod. Its field names
// are those of iSulad and docker, for tools that read them.
type NetworkSettings struct {
	SandboxID  string                   `json:"SandboxID"`
	SandboxKey string                   `json:"SandboxKey"`
	Ports      map[string][]PortBinding `json:"Ports"` // by "80/tcp"
	Networks   map[string]Endpoint      `json:"Networks"`
}

// PortBinding is an address and port of the node that is forwarded to a pod's port.
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

// NewNetworkSettings converts a request and its answers to the form of `inspect`.
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
