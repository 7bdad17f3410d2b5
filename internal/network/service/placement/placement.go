// Package placement says which addresses the Services of manifests can have on a node, where no API
// server has decided it. It is pure.
//
// A cluster IP takes all that is sent to its address: other ports than the Service's are refused.
// So it must be an address that nothing else has. An external IP takes the Service's ports only, of
// an address that leads to the node.
package placement

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Kind is what a Place is.
type Kind int

// The kinds, in the order in which they are named of an address of several.
const (
	// Resolver is the address of a DNS server that the node or its pods ask.
	Resolver Kind = iota
	// Node is an address of another node.
	Node
	// Broadcast is an address of all hosts, or of several, in a network.
	Broadcast
	// Local is an address of this node.
	Local
	// Gateway is where the node sends packets to other networks.
	Gateway
	// Network is a network to which the node has another route than a default one.
	Network
)

// Place is something that is at an address.
type Place struct {
	Kind   Kind
	Prefix netip.Prefix
	Of     string // for people: a link, the name of a node
}

// String says what it is.
func (p Place) String() string {
	of := ""
	if p.Of != "" {
		of = " " + p.Of
	}
	switch p.Kind {
	case Resolver:
		return "the address of a DNS server" + of
	case Node:
		return "an address of node" + of
	case Broadcast:
		return "a broadcast address" + of
	case Local:
		return "an address of this node" + of
	case Gateway:
		return "the address of a gateway" + of
	}
	return fmt.Sprintf("in the network %v%s", p.Prefix, of)
}

// Surroundings are what a node has beside Services.
type Surroundings struct {
	// Services and Pods are their subnets.
	Services, Pods []netip.Prefix
	Places         []Place
}

// special are addresses that no Service can have, whatever the node has.
var special = []struct {
	prefix netip.Prefix
	what   string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "an address of this network"},
	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback address"},
	{netip.MustParsePrefix("::1/128"), "a loopback address"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local address"},
	{netip.MustParsePrefix("fe80::/10"), "a link-local address"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast address"},
	{netip.MustParsePrefix("ff00::/8"), "a multicast address"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved address"}, // 255.255.255.255 is in it
	// Where clouds serve metadata, DNS and time, beside 169.254.0.0/16: AWS, Google, Alibaba, Azure.
	{netip.MustParsePrefix("fd00:ec2::/32"), "an address of a cloud's own services"},
	{netip.MustParsePrefix("fd20:ce::/64"), "an address of a cloud's own services"},
	{netip.MustParsePrefix("100.100.100.200/32"), "an address of a cloud's own services"},
	{netip.MustParsePrefix("168.63.129.16/32"), "an address of a cloud's own services"},
}

func specialOf(a netip.Addr) string {
	for _, s := range special {
		if s.prefix.Contains(a) {
			return s.what
		}
	}
	return ""
}

// at returns what is at an address, the kind that is named first.
func (s *Surroundings) at(a netip.Addr, kinds ...Kind) (found Place, ok bool) {
	for _, p := range s.Places {
		if slices.Contains(kinds, p.Kind) && p.Prefix.Contains(a) && (!ok || p.Kind < found.Kind) {
			found, ok = p, true
		}
	}
	return found, ok
}

func containing(prefixes []netip.Prefix, a netip.Addr) (netip.Prefix, bool) {
	for _, p := range prefixes {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// ClusterIP returns why an address can't be a Service's cluster IP, or nothing. It can if it is in
// the subnets of Services, or else private, which is where clusters have theirs, and nowhere that
// the node has a route to but a default one. In both cases nothing of the node's is there.
func (s *Surroundings) ClusterIP(a netip.Addr) string {
	if what := specialOf(a); what != "" {
		return "is " + what
	}
	if subnet, ok := containing(s.Pods, a); ok {
		return fmt.Sprintf("is in the subnet of pods, %v", subnet)
	}
	kinds := []Kind{Resolver, Node, Broadcast, Local, Gateway}
	_, own := containing(s.Services, a)
	if !own {
		kinds = append(kinds, Network)
	}
	if p, ok := s.at(a, kinds...); ok {
		return "is " + p.String()
	}
	if !own && !a.IsPrivate() {
		return "is neither private nor in service-subnets"
	}
	return ""
}

// ExternalIP returns why an address can't be a Service's external IP, or nothing. It can be one of
// this node, and then takes ports of it.
func (s *Surroundings) ExternalIP(a netip.Addr) string {
	if what := specialOf(a); what != "" {
		return "is " + what
	}
	for what, prefixes := range map[string][]netip.Prefix{"pods": s.Pods, "Services": s.Services} {
		if subnet, ok := containing(prefixes, a); ok {
			return fmt.Sprintf("is in the subnet of %s, %v", what, subnet)
		}
	}
	if p, ok := s.at(a, Resolver, Node, Broadcast, Gateway); ok {
		return "is " + p.String()
	}
	return ""
}

// Local reports whether an address is one of this node.
func (s *Surroundings) Local(a netip.Addr) bool {
	_, ok := s.at(a, Local)
	return ok
}

// Overlaps says which subnets of Services have something else in them, one line each.
func (s *Surroundings) Overlaps() (out []string) {
	for _, subnet := range s.Services {
		var in []string
		for _, p := range s.Places {
			// The addresses of a network, and its broadcasts, need no words beside it.
			if subnet.Overlaps(p.Prefix) && (p.Kind == Network || !s.inNetwork(p.Prefix)) {
				in = append(in, fmt.Sprintf("%v is %v", p.Prefix, p))
			}
		}
		if slices.Sort(in); len(in) > 0 {
			out = append(out, fmt.Sprintf("service-subnets has %v, where the node has something else: %s", subnet, strings.Join(slices.Compact(in), ", ")))
		}
	}
	return out
}

func (s *Surroundings) inNetwork(of netip.Prefix) bool {
	return slices.ContainsFunc(s.Places, func(p Place) bool {
		return p.Kind == Network && p.Prefix.Bits() <= of.Bits() && p.Prefix.Overlaps(of)
	})
}
