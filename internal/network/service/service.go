// Package service says where connections to Services lead. It has the words for Services and their
// endpoints, as other packages read them from the API or from files, and Decide, which is the
// specification of what they mean: short, slow and without state. Package compile turns the same
// words into sets for the kernel, and its tests compare the two.
//
// https://kubernetes.io/docs/reference/networking/virtual-ips/
package service

import (
	"net/netip"
	"slices"
	"time"
)

// Protocol is an IP protocol by its number.
type Protocol uint8

// The protocols of Services.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

// String returns the name as in a manifest.
func (p Protocol) String() string {
	return map[Protocol]string{TCP: "TCP", UDP: "UDP", SCTP: "SCTP"}[p]
}

// Service is a name for pods, and addresses from which connections lead to them.
type Service struct {
	Namespace, Name string
	// ClusterIPs is empty for a headless Service and for one with an ExternalName: those are names
	// only.
	ClusterIPs []netip.Addr
	// ExternalName is a name in DNS that the Service's is an alias of, or empty.
	ExternalName string
	// ExternalIPs are addresses outside the cluster that lead to the node.
	ExternalIPs []netip.Addr
	// LoadBalancer is whether the Service asks for a load balancer, which may have no address.
	LoadBalancer bool
	// LoadBalancerIPs are the load balancer's addresses whose packets arrive at the node untranslated.
	LoadBalancerIPs []netip.Addr
	// SourceRanges, unless empty, are where connections to LoadBalancerIPs may come from.
	SourceRanges []netip.Prefix
	Ports        []Port
	// Affinity is how long a client's address keeps its endpoint after its last connection, 0 for
	// not at all.
	Affinity time.Duration
	// InternalLocal and ExternalLocal restrict connections to ClusterIPs, and to all other addresses
	// and node ports, to the node's own endpoints. External connections then keep their source.
	InternalLocal, ExternalLocal bool
	// HealthCheckPort is the node's port that says over HTTP how many endpoints it has; 0 without.
	HealthCheckPort uint16
	// PublishNotReady makes the Service's names resolve to endpoints that aren't ready. Sources
	// also say of such endpoints that they are Ready.
	PublishNotReady bool
}

// Key returns namespace/name.
func (s *Service) Key() string { return s.Namespace + "/" + s.Name }

// Headless reports whether the Service is the names of its endpoints.
func (s *Service) Headless() bool { return len(s.ClusterIPs) == 0 && s.ExternalName == "" }

// Port is one of a Service's.
type Port struct {
	// Name is empty if it is the only one. Slices refer to it.
	Name     string
	Protocol Protocol
	Port     uint16
	NodePort uint16 // 0 without
}

// Slice is a part of the endpoints of a Service, of one address family.
type Slice struct {
	Namespace, Name string
	Service         string // the name of the Service, in the same namespace
	Ports           []EndpointPort
	Endpoints       []Endpoint
}

// Key returns namespace/name.
func (s *Slice) Key() string { return s.Namespace + "/" + s.Name }

// EndpointPort is the endpoints' number of the Service's port of that name.
type EndpointPort struct {
	Name     string
	Protocol Protocol
	Port     uint16
}

// Endpoint is an address of a pod, or of something else, that serves a Service.
type Endpoint struct {
	Address netip.Addr
	// Hostname is the endpoint's own name below that of a headless Service, or empty.
	Hostname string
	// Pod is the name of the pod, in the Service's namespace; empty if it is none.
	Pod  string
	Node string // empty if it isn't known
	// Ready endpoints get new connections. If there are none, those get them that are Serving while
	// they are Terminating. A Terminating endpoint isn't Ready.
	Ready, Serving, Terminating bool
	// ForNodes and ForZones are the nodes and zones that should prefer the endpoint, or empty.
	ForNodes, ForZones []string
}

// Node is the node that decides.
type Node struct {
	Name, Zone string
	// Addresses are the node's primary ones, as far as they are known.
	Addresses []netip.Addr
}

// Equal reports whether nothing differs.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.Zone == o.Zone && slices.Equal(n.Addresses, o.Addresses)
}
