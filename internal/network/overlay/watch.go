package overlay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

const (
	// settleTime is how long changes are collected after the first.
	settleTime = 50 * time.Millisecond
	// pollTime is the time between looks at WireGuard's peers, whose removal the kernel doesn't
	// announce. Looking takes at most a pollShare of the time.
	pollTime  = time.Second
	pollShare = 100
	// maxGone is how many removals are looked up; more of them mean that all are to be compared.
	maxGone = 100_000
	// fewGone is how many removals are looked up one by one.
	fewGone = 10
	// After callBurst calls at once there is one each callPause, so that a program that removes again
	// and again what Apply puts back doesn't keep the node busy.
	callBurst, callPause = 20, 2 * time.Second
)

// Watch calls changed when others have removed something of ours, or when the underlay has changed,
// within a tenth of a second; and within a second if it is a peer of WireGuard. If that happens
// again and again, it takes longer, and Apply returns a note. Apply then compares everything. Watch
// calls changed at its beginning too, as it can't know what happened before, and returns when ctx
// ends.
func (o *Overlay) Watch(ctx context.Context, changed func()) error {
	socket, err := o.kernel.subscribe()
	if err != nil {
		return fmt.Errorf("watch the node's links and routes: %w", err)
	}
	defer socket.Close()
	w := watcher{o: o, changed: changed, limit: rate.NewLimiter(rate.Every(callPause), callBurst), poll: time.Now().Add(pollTime), links: map[string]rtnetlink.Link{}}
	w.underlay, _ = o.Underlay() // an error shows as a change later
	changed()
	stop := context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Now()) })
	defer stop()
	buf := make([]byte, 64<<10)
	for {
		_ = socket.SetReadDeadline(w.deadline())
		if ctx.Err() != nil { // checked after setting the deadline, which AfterFunc sets too
			return nil
		}
		n, err := socket.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case errors.Is(err, unix.ENOBUFS): // messages were lost
			w.lost = true
			w.begin()
		case err != nil:
			return fmt.Errorf("watch the node's links and routes: %w", err)
		default:
			_ = nlsock.Messages(buf[:n], w.add)
		}
		w.act(time.Now())
	}
}

// subscribe opens a socket for the kernel's announcements.
func (k *kernel) subscribe() (socket *os.File, err error) {
	err = k.inNode(func() error {
		socket, err = nlsock.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
		return err
	})
	return socket, err
}

// watcher collects announcements and decides what they mean. It reads them at once, and looks at
// the plan only when they have settled: then it may have to wait for an Apply.
type watcher struct {
	o       *Overlay
	changed func()
	limit   *rate.Limiter // of calls
	due     bool          // a call waits for limit

	settled time.Time                 // when to act on what was collected; zero if there is nothing
	poll    time.Time                 // when to look at WireGuard's peers
	lost    bool                      // anything may be gone
	gone    []any                     // routeKey or removedNeighbour
	links   map[string]rtnetlink.Link // as last announced, but down if they were down
	outer   bool                      // addresses or default routes changed

	underlay []backend.Underlay // as last seen
}

func (w *watcher) deadline() time.Time {
	if !w.settled.IsZero() && w.settled.Before(w.poll) {
		return w.settled
	}
	return w.poll
}

// begin starts the settle time, if it hasn't begun.
func (w *watcher) begin() {
	if w.settled.IsZero() {
		w.settled = time.Now().Add(settleTime)
	}
}

// add collects an announcement.
func (w *watcher) add(h unix.NlMsghdr, data []byte) {
	switch h.Type {
	case unix.RTM_DELROUTE, unix.RTM_NEWROUTE:
		r, ok := rtnetlink.ParseRoute(data)
		if !ok || r.Table != unix.RT_TABLE_MAIN {
			return
		}
		if r.Dst.Bits() == 0 {
			w.outer = true
			w.begin()
		} else if h.Type == unix.RTM_DELROUTE && w.o.kernel.oursRoute(r) {
			w.remove(routeKey{r.Dst, r.Metric})
		}
	case unix.RTM_DELNEIGH:
		if n, ok := rtnetlink.ParseNeighbour(data); ok { // whose state isn't the one that it had
			w.remove(removedNeighbour{n, data[0] == unix.AF_BRIDGE})
		}
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		l, err := rtnetlink.ParseLink(data)
		if err != nil || strings.HasPrefix(l.Name, w.o.kernel.instance.HostLinkPrefix()) || data[0] == unix.AF_BRIDGE {
			return
		}
		if h.Type == unix.RTM_DELLINK {
			l.Index, l.Up = 0, false
		}
		if before, ok := w.links[l.Name]; ok {
			l.Up = l.Up && before.Up // what was down for a moment has lost its routes
		}
		w.links[l.Name] = l
		w.begin()
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		w.outer = true
		w.lost = w.lost || h.Type == unix.RTM_DELADDR // the kernel removes its routes with it
		w.begin()
	}
}

// removedNeighbour is a neighbour, or a forwarding entry, that is gone.
type removedNeighbour struct {
	rtnetlink.KernelNeighbour
	forward bool
}

func (w *watcher) remove(object any) {
	if len(w.gone) == maxGone {
		w.lost = true
		return
	}
	w.gone = append(w.gone, object)
	w.begin()
}

// act calls changed if what was collected concerns us.
func (w *watcher) act(now time.Time) {
	differs := false
	if !w.settled.IsZero() && !now.Before(w.settled) {
		differs = w.o.affected(w)
		if w.outer || len(w.links) > 0 {
			u, err := w.o.Underlay()
			differs = differs || err != nil || !slices.Equal(u, w.underlay)
			w.underlay = u
		}
		w.settled, w.lost, w.outer, w.gone = time.Time{}, false, false, w.gone[:0]
		clear(w.links)
	}
	if !now.Before(w.poll) {
		differs = w.o.lostTunnels() || differs
		w.poll = time.Now().Add(max(pollTime, pollShare*time.Since(now)))
	}
	if differs || w.due {
		w.call(now)
	}
}

// call calls changed, later if it was called too often.
func (w *watcher) call(now time.Time) {
	full := w.limit.TokensAt(now) >= callBurst-1
	w.due = !w.limit.AllowN(now, 1)
	w.o.mu.Lock()
	w.o.embattled = w.due || w.o.embattled && !full
	w.o.mu.Unlock()
	if !w.due {
		w.changed()
	} else if later := now.Add(callPause); w.settled.IsZero() || later.Before(w.settled) {
		w.settled = later
	}
}

// affected reports whether the announcements concern the applied plan. If so, the next Apply
// compares everything.
func (o *Overlay) affected(w *watcher) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known {
		return w.outer || len(w.links) > 0 // what failed may work now
	}
	disturbed := w.lost || o.lacks(w.gone)
	for _, l := range w.links {
		disturbed = disturbed || o.disturbs(l)
	}
	o.known = !disturbed
	return disturbed
}

// lacks reports whether the plan has one of the removed objects.
func (o *Overlay) lacks(gone []any) bool {
	ours := map[int]string{} // links
	for _, l := range o.applied.Links {
		ours[o.links[l.Name]] = l.Name
	}
	keys := make([]any, 0, len(gone))
	for _, object := range gone {
		switch object := object.(type) {
		case routeKey:
			keys = append(keys, object)
		case removedNeighbour:
			link, ok := ours[object.Link]
			switch {
			case !ok: // of a pod, for example
			case object.forward:
				keys = append(keys, forwardKey{link, object.MAC})
			default:
				keys = append(keys, neighbourKey{link, object.Addr})
			}
		}
	}
	if len(keys) > fewGone {
		return slices.ContainsFunc(keys, objectsOf(o.applied.Peers).has)
	}
	// An index of thousands of peers would take longer than looking at all of them.
	for _, key := range keys {
		if slices.ContainsFunc(o.applied.Peers, func(p *backend.Peer) bool { return hasObject(p, key) }) {
			return true
		}
	}
	return false
}

// has reports whether there is an object with a key.
func (o objects) has(key any) (ok bool) {
	switch key := key.(type) {
	case routeKey:
		_, ok = o.routes[key]
	case forwardKey:
		_, ok = o.forwards[key]
	case neighbourKey:
		_, ok = o.neighbours[key]
	}
	return ok
}

// hasObject is has for the objects of one peer.
func hasObject(p *backend.Peer, key any) bool {
	switch key := key.(type) {
	case routeKey:
		return slices.ContainsFunc(p.Routes, func(r plan.Route) bool { return r.Dst == key.dst })
	case forwardKey:
		return slices.ContainsFunc(p.Forwards, func(f backend.Forward) bool { return f.MAC == key.mac && f.Link == key.link })
	case neighbourKey:
		return slices.ContainsFunc(p.Neighbours, func(n plan.Neighbour) bool { return n.Addr == key.addr && n.Link == key.link })
	}
	return false
}

// disturbs reports whether a link of the plan is gone or differs, or one that routes go by is down:
// the kernel then removes IPv4 routes without announcing it.
func (o *Overlay) disturbs(l rtnetlink.Link) bool {
	for _, want := range o.applied.Links {
		if want.Name == l.Name {
			return !l.Up || l.MTU != want.MTU || l.Index != o.links[l.Name]
		}
	}
	if l.Up && l.Index == o.links[l.Name] {
		return false
	}
	for i := range o.applied.Peers {
		for j := range o.applied.Peers[i].Routes {
			if o.applied.Peers[i].Routes[j].Link == l.Name {
				return true
			}
		}
	}
	return false
}

// lostTunnels reports whether WireGuard lacks a peer of the plan.
func (o *Overlay) lostTunnels() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.known {
		return false // the next Apply compares everything anyway
	}
	have := newObjects(0)
	for _, l := range o.applied.Links {
		if l.Way == backend.WireGuard && o.devices.observe(l.Name, have) != nil {
			o.known = false
			return true
		}
	}
	for i := range o.applied.Peers {
		for _, t := range o.applied.Peers[i].Tunnels {
			if _, ok := have.tunnels[tunnelKey{t.Link, t.Key}]; !ok {
				o.known = false
				return true
			}
		}
	}
	return false
}
