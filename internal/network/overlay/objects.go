package overlay

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

// objects are the kernel's objects of peers, by what identifies each of them to the kernel.
type objects struct {
	neighbours map[neighbourKey]plan.MAC
	forwards   map[forwardKey]netip.Addr
	tunnels    map[tunnelKey]tunnel
	routes     map[routeKey]route
}

type neighbourKey struct {
	link string
	addr netip.Addr
}

type forwardKey struct {
	link string
	mac  plan.MAC
}

type tunnelKey struct {
	link string
	key  peer.Key
}

// tunnel is a peer of a WireGuard link.
type tunnel struct {
	endpoint  netip.AddrPort
	allowed   []netip.Prefix // sorted
	keepalive int
	// alive means that packets were exchanged lately, so the endpoint is right: a peer behind a NAT
	// has another one than in its record.
	alive bool
}

func (t tunnel) equal(want tunnel) bool {
	return (t.endpoint == want.endpoint || t.alive) && t.keepalive == want.keepalive && slices.Equal(t.allowed, want.allowed)
}

// routeKey identifies a unicast route of plan.Protocol in the main table.
type routeKey struct {
	dst    netip.Prefix
	metric int
}

type route struct {
	source netip.Addr
	mtu    int
	hops   []hop // sorted
}

type hop struct {
	link string
	via  netip.Addr
}

func compareHops(a, b hop) int { return cmp.Or(a.via.Compare(b.via), cmp.Compare(a.link, b.link)) }

func (r route) equal(o route) bool {
	return r.source == o.source && r.mtu == o.mtu && slices.Equal(r.hops, o.hops)
}

func newObjects(size int) objects {
	return objects{
		make(map[neighbourKey]plan.MAC, size), make(map[forwardKey]netip.Addr, size),
		make(map[tunnelKey]tunnel), make(map[routeKey]route, size),
	}
}

// objectsOf returns the objects of peers. Several routes to one destination are one of several
// hops.
func objectsOf(peers []*backend.Peer) objects {
	o := newObjects(len(peers))
	for i := range peers {
		for _, n := range peers[i].Neighbours {
			o.neighbours[neighbourKey{n.Link, n.Addr}] = n.MAC
		}
		for _, f := range peers[i].Forwards {
			o.forwards[forwardKey{f.Link, f.MAC}] = f.To
		}
		for _, t := range peers[i].Tunnels {
			o.tunnels[tunnelKey{t.Link, t.Key}] = tunnel{endpoint: t.Endpoint, allowed: sorted(t.Allowed), keepalive: t.Keepalive}
		}
		for _, r := range peers[i].Routes {
			key := routeKey{r.Dst, r.Metric}
			added := o.routes[key]
			added.source, added.mtu = r.Source, r.MTU
			added.hops = append(added.hops, hop{r.Link, r.Via})
			slices.SortFunc(added.hops, compareHops)
			o.routes[key] = added
		}
	}
	return o
}

func sorted(prefixes []netip.Prefix) []netip.Prefix {
	out := slices.Clone(prefixes)
	slices.SortFunc(out, comparePrefixes)
	return out
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

// withoutLinks drops the objects on links that can't be used.
func (o objects) withoutLinks(names map[string]bool) {
	maps.DeleteFunc(o.neighbours, func(k neighbourKey, _ plan.MAC) bool { return names[k.link] })
	maps.DeleteFunc(o.forwards, func(k forwardKey, _ netip.Addr) bool { return names[k.link] })
	maps.DeleteFunc(o.tunnels, func(k tunnelKey, _ tunnel) bool { return names[k.link] })
	maps.DeleteFunc(o.routes, func(_ routeKey, r route) bool {
		return slices.ContainsFunc(r.hops, func(h hop) bool { return names[h.link] })
	})
}

// withoutIPv6 drops the objects that a node without IPv6 can't have.
func (o objects) withoutIPv6() {
	maps.DeleteFunc(o.neighbours, func(k neighbourKey, _ plan.MAC) bool { return k.addr.Is6() })
	maps.DeleteFunc(o.routes, func(k routeKey, r route) bool {
		return k.dst.Addr().Is6() || slices.ContainsFunc(r.hops, func(h hop) bool { return h.via.Is6() })
	})
}

// changedPeers returns the peers that differ between two plans, as they were and as they will be.
// Both lists are in the order of the peers' names. Most peers needn't be compared, as
// backend.Planner takes what hasn't changed from the last plan.
func changedPeers(old, planned []*backend.Peer) (before, after []*backend.Peer) {
	for len(old) > 0 || len(planned) > 0 {
		switch {
		case len(planned) == 0 || len(old) > 0 && old[0].Name < planned[0].Name:
			before, old = append(before, old[0]), old[1:]
		case len(old) == 0 || planned[0].Name < old[0].Name:
			after, planned = append(after, planned[0]), planned[1:]
		default:
			if old[0] != planned[0] && !sameObjects(old[0], planned[0]) {
				before, after = append(before, old[0]), append(after, planned[0])
			}
			old, planned = old[1:], planned[1:]
		}
	}
	return before, after
}

func sameObjects(a, b *backend.Peer) bool {
	return slices.Equal(a.Routes, b.Routes) && slices.Equal(a.Neighbours, b.Neighbours) && slices.Equal(a.Forwards, b.Forwards) &&
		slices.EqualFunc(a.Tunnels, b.Tunnels, func(a, b backend.Tunnel) bool {
			return a.Link == b.Link && a.Key == b.Key && a.Endpoint == b.Endpoint && a.Keepalive == b.Keepalive && slices.Equal(a.Allowed, b.Allowed)
		})
}

// delta is what has to change for one map of objects to become another.
type delta[K comparable] struct {
	put  []K // missing or different
	drop []K // foreign
}

func deltaOf[K comparable, V any](have, want map[K]V, equal func(have, want V) bool) (d delta[K]) {
	for k, w := range want {
		if h, ok := have[k]; !ok || !equal(h, w) {
			d.put = append(d.put, k)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			d.drop = append(d.drop, k)
		}
	}
	return d
}

func same[V comparable](a, b V) bool { return a == b }

// differences returns what is missing, different or foreign in o.
func (o objects) differences(want objects) (out []Difference) {
	out = append(out, differencesOf(o.neighbours, want.neighbours, same[plan.MAC], describeNeighbour)...)
	out = append(out, differencesOf(o.forwards, want.forwards, same[netip.Addr], describeForward)...)
	out = append(out, differencesOf(o.tunnels, want.tunnels, tunnel.equal, describeTunnel)...)
	return append(out, differencesOf(o.routes, want.routes, route.equal, describeRoute)...)
}

func differencesOf[K comparable, V any](have, want map[K]V, equal func(have, want V) bool, describe func(K, V) string) (out []Difference) {
	d := deltaOf(have, want, equal)
	for _, k := range d.put {
		problem := missing
		if _, ok := have[k]; ok {
			problem = different
		}
		out = append(out, Difference{describe(k, want[k]), problem})
	}
	for _, k := range d.drop {
		out = append(out, Difference{describe(k, have[k]), foreign})
	}
	return out
}

func describeNeighbour(k neighbourKey, mac plan.MAC) string {
	return plan.Neighbour{Link: k.link, Addr: k.addr, MAC: mac}.String()
}

func describeForward(k forwardKey, to netip.Addr) string {
	return backend.Forward{Link: k.link, MAC: k.mac, To: to}.String()
}

func describeTunnel(k tunnelKey, _ tunnel) string {
	return backend.Tunnel{Link: k.link, Key: k.key}.String()
}

func describeRoute(k routeKey, r route) string {
	out := "route " + k.dst.String()
	for i, h := range r.hops {
		if i == 0 {
			out = plan.Route{Kind: plan.Unicast, Dst: k.dst, Via: h.via, Link: h.link, Source: r.source, MTU: r.mtu}.String()
		} else {
			out += fmt.Sprintf(" nexthop via %v dev %s", h.via, h.link)
		}
	}
	return out
}
