package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// batchSize is how many requests are sent at once.
const batchSize = 100

// maxErrors is how many errors of one update are reported.
const maxErrors = 5

// batch collects requests, sends them in batches, and keeps the errors.
type batch struct {
	o        *Overlay
	requests []*nl.NetlinkRequest
	describe []func() string
	// fallback are by the index of a request what to send if the kernel finds it invalid.
	fallback map[int]*nl.NetlinkRequest
	removing bool // what is gone already isn't an error
	errs     []error
}

func (b *batch) add(req *nl.NetlinkRequest, describe func() string) {
	b.requests, b.describe = append(b.requests, req), append(b.describe, describe)
	if len(b.requests) == batchSize {
		b.flush()
	}
}

func (b *batch) flush() {
	if len(b.requests) == 0 {
		return
	}
	for i, a := range b.o.kernel.conn.Do(b.requests...) {
		if a.Err == nil || b.removing && isGone(a.Err) {
			continue
		}
		b.fail(b.describe[i](), a.Err)
		if req, ok := b.fallback[i]; ok && errors.Is(a.Err, unix.EINVAL) {
			_ = b.o.kernel.do(req)
		}
	}
	b.requests, b.describe = b.requests[:0], b.describe[:0]
	clear(b.fallback)
}

func (b *batch) fail(object string, err error) {
	if errors.Is(err, unix.EEXIST) {
		err = fmt.Errorf("%w: somebody else has made one that it would replace", err)
	}
	b.errs = append(b.errs, fmt.Errorf("%s: %w", object, err))
}

// err returns the first errors.
func (b *batch) err() error {
	if more := len(b.errs) - maxErrors; more > 0 {
		return errors.Join(append(b.errs[:maxErrors], fmt.Errorf("%d more", more))...)
	}
	return errors.Join(b.errs...)
}

// isGone reports whether an error of a removal means that there was nothing to remove.
func isGone(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.EADDRNOTAVAIL}, func(e error) bool { return errors.Is(err, e) })
}

// update changes have into want. Neighbours, forwarding entries and tunnels exist before the routes
// that need them, and are removed after these.
func (o *Overlay) update(have, want objects) error {
	b := &batch{o: o, fallback: map[int]*nl.NetlinkRequest{}}
	neighbours := deltaOf(have.neighbours, want.neighbours, same[plan.MAC])
	forwards := deltaOf(have.forwards, want.forwards, same[netip.Addr])
	tunnels := deltaOf(have.tunnels, want.tunnels, tunnel.equal)
	routes := deltaOf(have.routes, want.routes, route.equal)
	for _, k := range neighbours.put {
		b.neighbour(unix.RTM_NEWNEIGH, k, want.neighbours[k])
	}
	for _, k := range forwards.put {
		b.forward(unix.RTM_NEWNEIGH, k, want.forwards[k])
	}
	b.flush()
	b.errs = append(b.errs, o.devices.put(tunnels.put, have.tunnels, want.tunnels)...)
	for _, k := range routes.put {
		creation := unix.NLM_F_EXCL
		if _, ok := have.routes[k]; ok {
			creation = unix.NLM_F_REPLACE
		}
		b.route(unix.RTM_NEWROUTE, creation, k, want.routes[k])
	}
	b.flush()
	b.removing = true
	for _, k := range routes.drop {
		b.route(unix.RTM_DELROUTE, 0, k, have.routes[k])
	}
	b.flush()
	b.errs = append(b.errs, o.devices.drop(tunnels.drop)...)
	for _, k := range forwards.drop {
		b.forward(unix.RTM_DELNEIGH, k, have.forwards[k])
	}
	for _, k := range neighbours.drop {
		b.neighbour(unix.RTM_DELNEIGH, k, have.neighbours[k])
	}
	b.flush()
	return b.err()
}

// index returns the index of a link, or 0 and keeps the error.
func (b *batch) index(link string, describe func() string) int {
	i, ok := b.o.links[link]
	if !ok && !b.removing {
		b.fail(describe(), fmt.Errorf("there is no link %s", link))
	}
	return i
}

func (b *batch) neighbour(verb int, k neighbourKey, mac plan.MAC) {
	describe := func() string { return describeNeighbour(k, mac) }
	if i := b.index(k.link, describe); i != 0 {
		b.add(rtnetlink.Neighbour(verb, i, plan.Neighbour{Addr: k.addr, MAC: mac}), describe)
	}
}

func (b *batch) forward(verb int, k forwardKey, to netip.Addr) {
	describe := func() string { return describeForward(k, to) }
	i := b.index(k.link, describe)
	if i == 0 {
		return
	}
	flags := unix.NLM_F_ACK
	if verb == unix.RTM_NEWNEIGH {
		flags |= unix.NLM_F_CREATE | unix.NLM_F_REPLACE
	}
	req := nl.NewNetlinkRequest(verb, flags)
	req.AddData(&netlink.Ndmsg{Family: unix.AF_BRIDGE, Index: uint32(i), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_SELF})
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, k.mac[:]))
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, to.AsSlice()))
	b.add(req, describe)
}

func (b *batch) route(verb, creation int, k routeKey, r route) {
	describe := func() string { return describeRoute(k, r) }
	planned := plan.Route{Kind: plan.Unicast, Dst: k.dst, Metric: k.metric}
	if verb == unix.RTM_DELROUTE {
		b.add(rtnetlink.RouteBy(verb, 0, planned, rtnetlink.Hop{}), describe) // of any hops
		return
	}
	planned.Source, planned.MTU = r.source, r.mtu
	hops := make([]rtnetlink.Hop, len(r.hops))
	for i, h := range r.hops {
		index := b.index(h.link, describe)
		if index == 0 {
			return
		}
		hops[i] = rtnetlink.Hop{Link: index, Via: h.via}
	}
	if r.source.IsValid() {
		// Pods need the route even while the node lacks the address that it sends from itself. The
		// error remains, so the caller tries again.
		other := planned
		other.Source = netip.Addr{}
		b.fallback[len(b.requests)] = rtnetlink.RouteBy(verb, unix.NLM_F_REPLACE, other, hops...)
	}
	b.add(rtnetlink.RouteBy(verb, creation, planned, hops...), describe)
}
