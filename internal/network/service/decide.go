package service

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// World is everything that decides where connections lead.
type World struct {
	Services []Service
	Slices   []Slice
	Node     Node
}

// Flow is a new connection: the first packet's addresses before anything is translated.
type Flow struct {
	From, To netip.Addr
	Protocol Protocol
	Port     uint16 // 0 for protocols without ports
	Origin   Origin
	// ToNode is whether To is an address of the node that has node ports.
	ToNode bool
}

// Origin is where a connection comes from, as seen by the node.
type Origin int

// The origins.
const (
	Outside   Origin = iota
	LocalPod         // a pod of the node that has a network of its own
	LocalNode        // the node itself
)

// Verdict says what becomes of a connection.
type Verdict string

// The verdicts.
const (
	// Other is that of a connection to no Service. It is as if there were none.
	Other Verdict = "other"
	// Forward leads the connection to one of the endpoints.
	Forward Verdict = "forward"
	// Reject tells the client that nothing is there.
	Reject Verdict = "reject"
	// Drop leaves the client without an answer, since other nodes may have endpoints.
	Drop Verdict = "drop"
)

// Decision says where a connection leads.
type Decision struct {
	Verdict Verdict
	// Service is the key of the Service, and Port the port's name. They are empty for Other, and
	// Port if the Service has no such port.
	Service, Port string
	// Endpoints are those that the connection may lead to, sorted.
	Endpoints []netip.AddrPort
	// Masquerade makes the node the source, so that the replies come back to it. In addition,
	// connections of a pod to itself are always masqueraded.
	Masquerade bool
	// Affinity is how long a client keeps the endpoint that it got; 0 for not at all.
	Affinity time.Duration
}

// Decide says where a connection leads. Of Services with the same address and port, the one with
// the smallest key has it; cluster IPs win over other addresses, and those over node ports.
func (w *World) Decide(f Flow) Decision {
	ordered := slices.Clone(w.Services)
	slices.SortFunc(ordered, func(a, b Service) int { return cmp.Compare(a.Key(), b.Key()) })
	for _, way := range []Way{ClusterIP, LoadBalancer, ExternalIP, NodePort} {
		for i := range ordered {
			for _, p := range ordered[i].Ports {
				if ordered[i].hasPort(way, p, f) {
					return w.decide(&ordered[i], p, way, f)
				}
			}
		}
	}
	for i := range ordered {
		if slices.Contains(ordered[i].ClusterIPs, f.To) {
			return Decision{Verdict: Reject, Service: ordered[i].Key()}
		}
	}
	return Decision{Verdict: Other}
}

// Way is how a connection finds a Service.
type Way int

// The ways, in the order in which they count.
const (
	ClusterIP Way = iota
	LoadBalancer
	ExternalIP
	NodePort
)

// Addresses are those of a Service's way; nil for NodePort.
func (s *Service) Addresses(way Way) []netip.Addr {
	return [][]netip.Addr{ClusterIP: s.ClusterIPs, LoadBalancer: s.LoadBalancerIPs, ExternalIP: s.ExternalIPs, NodePort: nil}[way]
}

// HasFamily reports whether connections of an address family lead to the Service, which they do if
// it has a cluster IP of that family.
func (s *Service) HasFamily(six bool) bool {
	return slices.ContainsFunc(s.ClusterIPs, func(a netip.Addr) bool { return a.Is6() == six })
}

func (s *Service) hasPort(way Way, p Port, f Flow) bool {
	if p.Protocol != f.Protocol || !s.HasFamily(f.To.Is6()) {
		return false
	}
	if way == NodePort {
		return p.NodePort != 0 && p.NodePort == f.Port && f.ToNode
	}
	return p.Port == f.Port && slices.Contains(s.Addresses(way), f.To)
}

func (w *World) decide(s *Service, p Port, way Way, f Flow) Decision {
	d := Decision{Service: s.Key(), Port: p.Name, Affinity: s.Affinity}
	if way == LoadBalancer && !s.Admits(f.From) {
		d.Verdict = Drop
		return d
	}
	c := Choose(w.targets(s, p, f.To.Is6()), w.Node)
	own, masquerade := s.Lead(way, f.Origin)
	chosen := c.All
	if own {
		chosen = c.Own
	}
	switch {
	case len(chosen) > 0:
		d.Verdict, d.Masquerade, d.Endpoints = Forward, masquerade, chosen
	case len(c.All)+len(c.Own) > 0:
		d.Verdict = Drop
	default:
		d.Verdict = Reject
	}
	return d
}

// Lead says whether connections lead to the node's own endpoints only, and whether they must be
// masqueraded if they lead anywhere.
//
// The reply to a local pod passes the node by itself. With ExternalLocal, so does that to the
// outside. To external addresses, pods and the node itself connect as if the packets left the
// cluster and came back: all endpoints are good enough.
func (s *Service) Lead(way Way, from Origin) (own, masquerade bool) {
	if way == ClusterIP {
		return s.InternalLocal, from != LocalPod
	}
	return s.ExternalLocal && from == Outside, from == LocalNode || from == Outside && !s.ExternalLocal
}

// Admits reports whether a source may connect to the load balancer's addresses. Ranges restrict
// sources of their own address family. A node that has a load balancer's address connects to it
// from it.
func (s *Service) Admits(from netip.Addr) bool {
	ranges := s.SourceRangesOf(from.Is6())
	return len(ranges) == 0 || slices.Contains(s.LoadBalancerIPs, from) ||
		slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(from) })
}

// SourceRangesOf returns the ranges of an address family. There are none if one is everything.
func (s *Service) SourceRangesOf(six bool) (out []netip.Prefix) {
	for _, p := range s.SourceRanges {
		switch {
		case p.Addr().Is6() != six:
		case p.Bits() == 0:
			return nil
		default:
			out = append(out, p)
		}
	}
	return out
}

// Target is an endpoint and its port.
type Target struct {
	*Endpoint
	Port uint16
}

// AddrPort is where the target is.
func (t Target) AddrPort() netip.AddrPort { return netip.AddrPortFrom(t.Address, t.Port) }

// targets returns the endpoints of a port, of an address family.
func (w *World) targets(s *Service, p Port, six bool) (out []Target) {
	for i := range w.Slices {
		if slice := &w.Slices[i]; slice.Namespace == s.Namespace && slice.Service == s.Name {
			out = slice.AppendTargets(out, p, six)
		}
	}
	return out
}

// AppendTargets appends the endpoints of a port, of an address family.
func (s *Slice) AppendTargets(to []Target, p Port, six bool) []Target {
	for _, q := range s.Ports {
		if q.Name != p.Name || q.Protocol != p.Protocol {
			continue
		}
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.Address.Is6() == six {
				to = append(to, Target{e, q.Port})
			}
		}
	}
	return to
}

// Choice are the endpoints that get new connections, sorted: of all nodes and of the node's own.
// Both are empty if and only if no endpoint of any node can get connections.
type Choice struct {
	All, Own []netip.AddrPort
}

// Choose chooses among endpoints. Ready ones are chosen, as far as hints prefer this node or its
// zone; without any, those that are serving while they terminate.
func Choose(targets []Target, node Node) Choice {
	// prefer keeps the ready targets that hints give to this node, unless a target has no hints or
	// none is for this node.
	ready := filter(targets, func(t Target) bool { return t.Ready })
	prefer := func(hints func(*Endpoint) []string, here string) []Target {
		if slices.ContainsFunc(ready, func(t Target) bool { return len(hints(t.Endpoint)) == 0 }) {
			return nil
		}
		return filter(ready, func(t Target) bool { return slices.Contains(hints(t.Endpoint), here) })
	}
	all := prefer(func(e *Endpoint) []string { return e.ForNodes }, node.Name)
	if len(all) == 0 {
		all = prefer(func(e *Endpoint) []string { return e.ForZones }, node.Zone)
	}
	if len(all) == 0 {
		all = ready
	}
	leaving := func(t Target) bool { return t.Serving && t.Terminating }
	if len(all) == 0 {
		all = filter(targets, leaving)
	}
	isOwn := func(t Target) bool { return t.Node == node.Name }
	own := filter(ready, isOwn)
	if len(own) == 0 {
		own = filter(filter(targets, leaving), isOwn)
	}
	return Choice{All: sorted(all), Own: sorted(own)}
}

func filter(from []Target, keep func(Target) bool) (out []Target) {
	for _, t := range from {
		if keep(t) {
			out = append(out, t)
		}
	}
	return out
}

// sorted returns where targets are. Slices may have one twice while it moves between them.
func sorted(targets []Target) []netip.AddrPort {
	var out []netip.AddrPort
	for _, t := range targets {
		out = append(out, t.AddrPort())
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
