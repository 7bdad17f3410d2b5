// Package compile turns Services and their endpoints into what the kernel needs to know about each
// address and port. It is incremental: a change costs what it concerns, and yields the addresses
// and ports that change and no others. Package service has the specification.
package compile

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/service"
)

// Compiler has the Services as they were at the last Commit, and what has changed since. It isn't
// safe for concurrent use.
type Compiler struct {
	node service.Node
	// nodePorts are where node ports are; the node's primary addresses if it is empty.
	nodePorts []netip.Prefix
	unsettled bool // whether nodePorts, or the addresses, have changed
	services  map[string]*entry
	// slices are by Key; their Services' entries refer to them, too.
	slices map[string]*service.Slice
	dirty  map[string]bool // keys of Services

	// claims are the Services that want a Key, best first; the first has it.
	claims     map[Key][]claim
	fronts     map[Key]*Front
	clusterIPs map[netip.Addr]int // how many Services have it
	local      map[netip.Addr]int // how many fronts have it as their own endpoint
}

// entry is what belongs to a Service's key. The Service is nil if only slices name it.
type entry struct {
	service *service.Service
	slices  map[string]*service.Slice
	// made is what the kernel has of it.
	made map[Key]*made
	ips  []netip.Addr
}

// made is a front of one Service, whether or not the Service has the Key.
type made struct {
	way   service.Way
	front *Front
	local []netip.Addr // the known endpoints of this node
}

type claim struct {
	way     service.Way
	service string
}

func (c claim) before(o claim) bool {
	return c.way < o.way || c.way == o.way && c.service < o.service
}

// New returns a Compiler without Services. Node ports are at the node's addresses in nodePorts; if
// that is empty at the node's primary addresses, and if these aren't known at all addresses.
func New(nodePorts ...netip.Prefix) *Compiler {
	return &Compiler{
		nodePorts: nodePorts, unsettled: true,
		services: map[string]*entry{}, slices: map[string]*service.Slice{}, dirty: map[string]bool{},
		claims: map[Key][]claim{}, fronts: map[Key]*Front{}, clusterIPs: map[netip.Addr]int{}, local: map[netip.Addr]int{},
	}
}

func (c *Compiler) entry(key string) *entry {
	e := c.services[key]
	if e == nil {
		e = &entry{slices: map[string]*service.Slice{}, made: map[Key]*made{}}
		c.services[key] = e
	}
	c.dirty[key] = true
	return e
}

// Change takes changes. Commit makes them count.
func (c *Compiler) Change(changes service.Changes) {
	if changes.Node != nil && !changes.Node.Equal(c.node) {
		c.node, c.unsettled = *changes.Node, true
		for key := range c.services {
			c.dirty[key] = true
		}
	}
	for key, s := range changes.Services {
		c.entry(key).service = s
	}
	for key, s := range changes.Slices {
		if old := c.slices[key]; old != nil {
			delete(c.entry(old.Namespace+"/"+old.Service).slices, key)
			delete(c.slices, key)
		}
		if s != nil && s.Service != "" {
			c.slices[key] = s
			c.entry(s.Namespace + "/" + s.Service).slices[key] = s
		}
	}
}

// World returns what changes have said so far.
func (c *Compiler) World() service.World {
	w := service.World{Node: c.node}
	for _, e := range c.services {
		if e.service != nil {
			w.Services = append(w.Services, *e.service)
		}
	}
	for _, s := range c.slices {
		w.Slices = append(w.Slices, *s)
	}
	return w
}

// Commit returns what has changed since the last one.
func (c *Compiler) Commit() *Update {
	u := &Update{Fronts: map[Key]*Front{}, ClusterIPs: map[netip.Addr]bool{}, Local: map[netip.Addr]bool{}}
	touched := map[Key]bool{}
	before := map[Key]*made{}
	for key := range c.dirty {
		e := c.services[key]
		old := e.made
		e.made = c.make(e)
		for k, m := range old {
			c.unclaim(k, claim{m.way, key})
			touched[k] = true
			if c.fronts[k] == m.front {
				before[k] = m
			}
			for _, a := range m.local {
				count(c.local, u.Local, a, -1)
			}
		}
		for k, m := range e.made {
			c.claim(k, claim{m.way, key})
			touched[k] = true
			for _, a := range m.local {
				count(c.local, u.Local, a, 1)
			}
		}
		for _, a := range e.ips {
			count(c.clusterIPs, u.ClusterIPs, a, -1)
		}
		e.ips = nil
		if e.service != nil {
			e.ips = e.service.ClusterIPs
		}
		for _, a := range e.ips {
			count(c.clusterIPs, u.ClusterIPs, a, 1)
		}
		if e.service == nil && len(e.slices) == 0 {
			delete(c.services, key)
		}
	}
	clear(c.dirty)
	if c.unsettled {
		u.NodePorts, c.unsettled = c.atNodePorts(), false
	}
	for k := range touched {
		c.settle(k, before[k], u)
	}
	return u
}

// atNodePorts returns where node ports are; not nil.
func (c *Compiler) atNodePorts() []netip.Prefix {
	out := append([]netip.Prefix{}, c.nodePorts...)
	if len(out) == 0 {
		for _, a := range c.node.Addresses {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(out) == 0 {
		out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return disjoint(out)
}

// settle notes what has changed about a Key.
func (c *Compiler) settle(k Key, before *made, u *Update) {
	old := c.fronts[k]
	claims := c.claims[k]
	if len(claims) == 0 {
		if old != nil {
			delete(c.fronts, k)
			u.Fronts[k] = nil
			u.Ended = append(u.Ended, ended(k, before, nil)...)
		}
		return
	}
	now := c.services[claims[0].service].made[k]
	if old != nil {
		f := *now.front
		f.All, f.Own = arrange(old.All, f.All), arrange(old.Own, f.Own)
		if f.equal(old) {
			now.front = old
		} else {
			now.front = &f
		}
	}
	if now.front != old {
		c.fronts[k] = now.front
		u.Fronts[k] = now.front
	}
	u.Ended = append(u.Ended, ended(k, before, now)...)
}

// ended returns the endpoints that get no more packets.
func ended(k Key, before, now *made) (out []Ended) {
	stay := map[netip.AddrPort]bool{}
	if now != nil {
		live := now.front.Known
		if k.Protocol == service.UDP {
			live = slices.Concat(now.front.All, now.front.Own)
		}
		for _, e := range live {
			stay[e] = true
		}
		if served := len(now.front.All)+len(now.front.Own) > 0; k.Protocol == service.UDP && served &&
			(before == nil || len(before.front.All)+len(before.front.Own) == 0) {
			out = append(out, Ended{Key: k})
		}
	}
	if before == nil {
		return out
	}
	was := before.front.Known
	if k.Protocol == service.UDP {
		was = slices.Concat(before.front.All, before.front.Own)
	}
	for _, e := range was {
		if !stay[e] {
			stay[e] = true
			out = append(out, Ended{k, e})
		}
	}
	return out
}

// count changes a count, and notes in changed whether it becomes positive or 0.
func count[K comparable](counts map[K]int, changed map[K]bool, k K, by int) {
	before := counts[k] > 0
	counts[k] += by
	after := counts[k] > 0
	if !after {
		delete(counts, k)
	}
	if before == after {
		return
	}
	if _, back := changed[k]; back {
		delete(changed, k)
	} else {
		changed[k] = after
	}
}

func (c *Compiler) claim(k Key, by claim) {
	at, _ := slices.BinarySearchFunc(c.claims[k], by, func(a, b claim) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	c.claims[k] = slices.Insert(c.claims[k], at, by)
}

func (c *Compiler) unclaim(k Key, by claim) {
	rest := slices.DeleteFunc(c.claims[k], func(o claim) bool { return o == by })
	if c.claims[k] = rest; len(rest) == 0 {
		delete(c.claims, k)
	}
}

// make returns the fronts of a Service. If it has a Key twice, the first counts.
func (c *Compiler) make(e *entry) map[Key]*made {
	out := map[Key]*made{}
	s := e.service
	if s == nil {
		return out
	}
	for _, six := range []bool{false, true} {
		if !s.HasFamily(six) {
			continue
		}
		for _, p := range s.Ports {
			c.makePort(s, p, six, e.targets(p, six), out)
		}
	}
	return out
}

func (e *entry) targets(p service.Port, six bool) (out []service.Target) {
	for _, slice := range e.slices {
		out = slice.AppendTargets(out, p, six)
	}
	return out
}

func (c *Compiler) makePort(s *service.Service, p service.Port, six bool, targets []service.Target, out map[Key]*made) {
	choice := service.Choose(targets, c.node)
	var known []netip.AddrPort
	var local []netip.Addr
	for _, t := range targets {
		known = append(known, t.AddrPort())
		if t.Node == c.node.Name {
			local = append(local, t.Address)
		}
	}
	slices.SortFunc(known, netip.AddrPort.Compare)
	for _, way := range []service.Way{service.ClusterIP, service.LoadBalancer, service.ExternalIP, service.NodePort} {
		front := frontOf(s, p, way, choice)
		front.Known = known
		if way == service.LoadBalancer {
			front.Sources = sources(s, six)
		}
		addresses, number := s.Addresses(way), p.Port
		if way == service.NodePort {
			if p.NodePort == 0 {
				continue
			}
			addresses, number = []netip.Addr{netip.IPv4Unspecified()}, p.NodePort
			if six {
				addresses[0] = netip.IPv6Unspecified()
			}
		}
		for _, a := range addresses {
			k := Key{a, p.Protocol, number}
			if _, twice := out[k]; a.Is6() == six && !twice {
				out[k] = &made{way: way, front: front, local: local}
			}
		}
	}
}

// sources are where connections to the load balancer's addresses may come from.
func sources(s *service.Service, six bool) []netip.Prefix {
	out := s.SourceRangesOf(six)
	if len(out) == 0 {
		return nil
	}
	for _, a := range s.LoadBalancerIPs {
		if a.Is6() == six {
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	if len(out) == 0 {
		out = append(out, netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	}
	return disjoint(out)
}

// disjoint returns the prefixes that no other contains, sorted.
func disjoint(prefixes []netip.Prefix) []netip.Prefix {
	out := []netip.Prefix{}
	slices.SortFunc(prefixes, func(a, b netip.Prefix) int { // a prefix comes before those in it
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	for _, p := range prefixes {
		if len(out) == 0 || !out[len(out)-1].Contains(p.Addr()) {
			out = append(out, p)
		}
	}
	return out
}

func frontOf(s *service.Service, p service.Port, way service.Way, choice service.Choice) *Front {
	f := &Front{Service: s.Key(), Port: p.Name, Affinity: s.Affinity}
	lead := func(from service.Origin) Lead {
		own, masquerade := s.Lead(way, from)
		chosen := choice.All
		if own {
			chosen = choice.Own
		}
		switch {
		case len(chosen) > 0 && own:
			f.Own = choice.Own
		case len(chosen) > 0:
			f.All = choice.All
		case len(choice.All)+len(choice.Own) > 0:
			return Lead{Verdict: service.Drop}
		default:
			return Lead{Verdict: service.Reject}
		}
		return Lead{service.Forward, own, masquerade}
	}
	f.Inside, f.Outside = lead(service.LocalPod), lead(service.Outside)
	return f
}
