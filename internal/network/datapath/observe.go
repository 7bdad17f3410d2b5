package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// observed is the state of a network namespace, in the plan's types.
type observed struct {
	links      map[string]linkInfo
	addresses  map[plan.Address]bool
	neighbours map[plan.Neighbour]bool // only permanent ones
	routes     map[plan.Route]bool     // only those of plan.Protocol
}

// observe reads the state of the handle's namespace, limited to the links that want accepts.
func observe(c *nlsock.Conn, h *netlink.Handle, want func(link string) bool) (*observed, error) {
	o := &observed{map[string]linkInfo{}, map[plan.Address]bool{}, map[plan.Neighbour]bool{}, map[plan.Route]bool{}}
	links, err := listLinks(c)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		if want(l.name) {
			o.links[l.name], names[l.index] = l, l.name
		}
	}
	addresses, err := nlsock.Complete(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if name, ok := names[a.LinkIndex]; ok {
			o.addresses[plan.Address{Link: name, Prefix: nlsock.Prefix(a.IPNet)}] = true
		}
	}
	neighbours, err := nlsock.Complete(func() ([]netlink.Neigh, error) { return h.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		name, ok := names[n.LinkIndex]
		addr, valid := netip.AddrFromSlice(n.IP)
		if ok && valid && n.State&netlink.NUD_PERMANENT != 0 && len(n.HardwareAddr) == 6 {
			o.neighbours[plan.Neighbour{Link: name, Addr: addr, MAC: plan.MAC(n.HardwareAddr)}] = true
		}
	}
	routes, err := listRoutes(h)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if name, ok := names[r.LinkIndex]; ok || r.Type == unix.RTN_UNREACHABLE {
			o.routes[toPlan(r, name)] = true
		}
	}
	return o, nil
}

func listRoutes(h *netlink.Handle) ([]netlink.Route, error) {
	var out []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := nlsock.Complete(func() ([]netlink.Route, error) {
			filter := &netlink.Route{Protocol: plan.Protocol} // of any table
			return h.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		out = append(out, routes...)
	}
	return out, nil
}

// toPlan returns a route of plan.Protocol in the plan's type.
func toPlan(r netlink.Route, link string) plan.Route {
	p := plan.Route{Kind: plan.Unicast, Dst: nlsock.Prefix(r.Dst), Link: link, Metric: r.Priority}
	switch r.Type {
	case unix.RTN_LOCAL:
		p.Kind = plan.Local
	case unix.RTN_UNREACHABLE: // IPv6 shows lo
		p.Kind, p.Link = plan.Unreachable, ""
	}
	if !p.Dst.IsValid() {
		zero := netip.IPv4Unspecified()
		if r.Family == unix.AF_INET6 {
			zero = netip.IPv6Unspecified()
		}
		p.Dst = netip.PrefixFrom(zero, 0)
	}
	p.Via, _ = netip.AddrFromSlice(r.Gw)
	p.Source, _ = netip.AddrFromSlice(r.Src)
	p.Preferred = p.Source.IsValid() && p.Metric == 0
	const defaultMetric6 = 1024
	if p.Dst.Addr().Is6() && p.Metric == defaultMetric6 {
		p.Metric = 0
	}
	return p
}

// listLinks returns all links of the namespace of c.
func listLinks(c *nlsock.Conn) ([]linkInfo, error) {
	links, err := nlsock.List(c, getLink("", 0), func(data []byte) (linkInfo, bool) {
		l, err := parseLink(data)
		return l, err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// Difference is where the kernel differs from a plan.
type Difference struct {
	// Netns is the path of the pod's namespace; empty means the node's.
	Netns   string
	Object  string // in the notation of iproute2 or nft
	Problem string // missing, foreign, or how it differs
}

// String returns the difference as one line.
func (d Difference) String() string {
	if d.Netns != "" {
		return fmt.Sprintf("%s in %s: %s", d.Object, d.Netns, d.Problem)
	}
	return d.Object + ": " + d.Problem
}

const (
	missing = "missing"
	foreign = "foreign"
)

// Verify returns the differences between the kernel and the plans, by sandbox.
func (d *Datapath) Verify(plans ...plan.Plan) (map[string][]Difference, error) {
	node, elements, err := d.observeNode()
	if err != nil {
		return nil, err
	}
	out := map[string][]Difference{}
	for _, p := range plans {
		diffs := node.compareLink("", p.Veth.Host, p.Veth.HostMAC, p.Veth.MTU)
		if l, ok := node.links[p.Veth.Host]; ok {
			object := "link " + p.Veth.Host
			if d.deletion.has(l) {
				diffs = append(diffs, Difference{Object: object, Problem: "marked for deletion"})
			}
			if p.Veth.Bridge != "" && l.port != node.links[p.Veth.Bridge].index {
				diffs = append(diffs, Difference{Object: object, Problem: "not a port of " + p.Veth.Bridge})
			}
			if !l.forwarding {
				diffs = append(diffs, Difference{Object: object, Problem: "doesn't forward"})
			}
			if p.Veth.RouteLocalnet && !l.routeLocalnet {
				diffs = append(diffs, Difference{Object: object, Problem: "route_localnet is off"})
			}
		}
		if p.Bandwidth != (plan.Bandwidth{}) {
			rates, err := compareBandwidth(d.handle, p.Bandwidth)
			if err != nil {
				return nil, err
			}
			diffs = append(diffs, rates...)
		}
		diffs = append(diffs, node.compare("", p.Host)...)
		diffs = append(diffs, node.extra(p)...)
		for _, e := range p.Elements {
			if !elements[e] {
				diffs = append(diffs, Difference{Object: e.String(), Problem: missing})
			}
		}
		inPod, err := verifyPod(p, node.links[p.Veth.Host])
		if err != nil {
			return nil, err
		}
		if diffs = append(diffs, inPod...); len(diffs) > 0 {
			out[p.Sandbox] = diffs
		}
	}
	return out, nil
}

// observeNode returns the instance's objects on the node.
func (d *Datapath) observeNode() (node *observed, elements map[plan.Element]bool, err error) {
	err = d.withConn(func(c *nlsock.Conn) error {
		node, err = observe(c, d.handle, func(link string) bool {
			return link == d.bridge || strings.HasPrefix(link, d.instance.HostLinkPrefix()) || strings.HasPrefix(link, plan.IFBPrefix(d.instance))
		})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if l, ok := node.links[d.bridge]; ok && l.mac != plan.BridgeMAC(d.instance) {
		delete(node.links, d.bridge) // not ours
	}
	all, err := d.table.list()
	if err != nil {
		return nil, nil, err
	}
	elements = map[plan.Element]bool{}
	for _, e := range all {
		elements[e] = true
	}
	return node, elements, nil
}

func verifyPod(p plan.Plan, host linkInfo) (diffs []Difference, err error) {
	err = netns.Do(p.Netns, func() error {
		c, err := nlsock.Dial(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer c.Close()
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		pod, err := observe(c, h, func(link string) bool { return link == p.Veth.Pod })
		if err != nil {
			return err
		}
		diffs = pod.compareLink(p.Netns, p.Veth.Pod, p.Veth.PodMAC, p.Veth.MTU)
		if l, ok := pod.links[p.Veth.Pod]; ok && l.index != host.peer {
			diffs = append(diffs, Difference{p.Netns, "link " + p.Veth.Pod, "not the other end of " + p.Veth.Host})
		}
		diffs = append(diffs, pod.compare(p.Netns, p.Pod)...)
		return nil
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return []Difference{{Object: "network namespace " + p.Netns, Problem: missing}}, nil
	}
	return diffs, err
}

func (o *observed) compareLink(ns, name string, mac plan.MAC, mtu int) []Difference {
	object := "link " + name
	l, ok := o.links[name]
	if !ok {
		return []Difference{{ns, object, missing}}
	}
	var out []Difference
	if l.mac != mac {
		out = append(out, Difference{ns, object, fmt.Sprintf("MAC %v, not %v", l.mac, mac)})
	}
	if l.mtu != mtu {
		out = append(out, Difference{ns, object, fmt.Sprintf("MTU %d, not %d", l.mtu, mtu)})
	}
	if !l.up {
		out = append(out, Difference{ns, object, "down"})
	}
	return out
}

// compare returns what is missing on a side's existing links.
func (o *observed) compare(ns string, s plan.Side) []Difference {
	var out []Difference
	miss := func(there bool, link string, object fmt.Stringer) {
		if _, ok := o.links[link]; ok && !there {
			out = append(out, Difference{ns, object.String(), missing})
		}
	}
	for _, a := range s.Addresses {
		miss(o.addresses[a], a.Link, a)
	}
	for _, n := range s.Neighbours {
		miss(o.neighbours[n], n.Link, n)
	}
	for _, r := range s.Routes {
		miss(o.routes[r] || r.Preferred, r.Link, r)
	}
	return out
}

// extra returns what the plan's host link has in addition to the plan.
func (o *observed) extra(p plan.Plan) []Difference {
	expected := map[fmt.Stringer]bool{}
	for _, a := range p.Host.Addresses {
		expected[a] = true
	}
	for _, r := range p.Host.Routes {
		expected[r] = true
	}
	var out []Difference
	for a := range o.addresses {
		if a.Link == p.Veth.Host && !expected[a] {
			out = append(out, Difference{Object: a.String(), Problem: foreign})
		}
	}
	for r := range o.routes {
		if r.Link == p.Veth.Host && !expected[r] {
			out = append(out, Difference{Object: r.String(), Problem: foreign})
		}
	}
	return out
}

// Sweep removes the objects that are this instance's by name, protocol or table, but belong neither
// to the base nor to a plan, and returns them.
func (d *Datapath) Sweep(b plan.Base, plans []plan.Plan) ([]Difference, error) {
	node, elements, err := d.observeNode()
	if err != nil {
		return nil, err
	}
	var swept []Difference
	var errs []error
	stray := func(object string, err error) {
		swept, errs = append(swept, Difference{Object: object, Problem: foreign}), append(errs, err)
	}
	owned := map[any]bool{}
	own := func(s plan.Side) {
		for _, a := range s.Addresses {
			owned[a] = true
		}
		for _, n := range s.Neighbours {
			owned[n] = true
		}
		for _, r := range s.Routes {
			owned[r] = true
		}
	}
	own(b.Host)
	if b.Link != nil {
		owned[b.Link.Name] = true
	}
	for _, p := range plans {
		own(p.Host)
		owned[p.Veth.Host] = true
		owned[p.Bandwidth.IFB] = true
		for _, e := range p.Elements {
			owned[e] = true
		}
	}
	var dead []plan.Element
	for e := range elements {
		if !owned[e] {
			dead = append(dead, e)
			stray(e.String(), nil)
		}
	}
	errs = append(errs, d.table.remove(dead))
	for name := range node.links {
		if !owned[name] {
			stray("link "+name, d.markForDeletion(name))
		}
	}
	errs = append(errs, d.Reap())
	for r := range node.routes {
		link, onLink := node.links[r.Link]
		switch {
		case owned[r]:
		case d.ours(r):
			stray(r.String(), d.removeSubnet(r))
		case onLink && owned[link.name]: // others were deleted with their links
			stray(r.String(), d.remove(r, link.index))
		}
	}
	// Addresses and neighbours of a veth are deleted with it, but those of the bridge stay.
	if bridge, ok := node.links[d.bridge]; ok && owned[bridge.name] {
		for a := range node.addresses {
			if a.Link == bridge.name && !owned[a] {
				stray(a.String(), d.remove(a, bridge.index))
			}
		}
		for n := range node.neighbours {
			if n.Link == bridge.name && !owned[n] {
				stray(n.String(), d.remove(n, bridge.index))
			}
		}
	}
	return swept, errors.Join(errs...)
}
