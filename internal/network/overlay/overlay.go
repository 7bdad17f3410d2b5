// Package overlay applies network/backend's plans to the kernel: the links, neighbours, forwarding
// entries, WireGuard peers and routes by which packets reach the pods of other nodes. It reports
// where the kernel differs from a plan, and when that may have changed.
//
// What it made outlives it. Every call can be repeated: after a crash anywhere the next Apply
// completes or removes what was begun.
//
// It changes the following on the node, and nothing else:
//
//   - links named hn<instance>… in the group backend.Tag, one for each way that encapsulates
//     packets. A link with such a name but of another kind or group is somebody else's, and an
//     error names it. The fallback links that the kernel adds with its modules, such as tunl0, stay
//     as they are;
//   - an IPv4 address on each of these links, permanent neighbours and forwarding entries of those
//     of VXLAN, and the peers of those of WireGuard;
//   - unicast routes of protocol 104 with the metric backend.Tag. Routes of others to the same
//     destinations are reported, and never touched.
//
// The links forward IPv4 whatever the default for new links is, and have no automatic IPv6
// addresses. Their rp_filter is 2: peers may send by a tunnel to which this node sends by another
// way, while it falls back from one to the other. Strict filtering, which
// net.ipv4.conf.all.rp_filter can demand for all links, would drop these packets. The uplink's
// rp_filter remains the administrator's.
package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
	"github.com/huskd/husk/internal/pod"
)

// Config of an Overlay.
type Config struct {
	// Netns is the path of the node's network namespace; empty is the process's.
	Netns    string
	Instance pod.Instance
	// NodeIPs are the addresses by which other nodes reach this one, at most one per family. Without
	// any, the default routes decide.
	NodeIPs []netip.Addr
	// StartWireGuard starts a program that is a WireGuard link, in the network namespace of the
	// calling thread, and returns when the link is there. It is for a kernel without WireGuard; nil
	// if there is no such program.
	StartWireGuard func(link string, mtu int) error
}

// Overlay acts in one node's network namespace. Its methods may be called concurrently.
type Overlay struct {
	nodeIPs        []netip.Addr
	startWireGuard func(link string, mtu int) error // see Config
	kernel         *kernel

	mu sync.Mutex // Invariant: guards the fields below.
	// applied is the last plan. If known, the kernel agreed with it when it was last changed or
	// compared. Invariant: nothing in it is modified.
	applied backend.Plan
	known   bool
	// noIPv6 is why the node can't have IPv6 routes; empty if it can.
	noIPv6 string
	// links are the indexes of all links, as of the last complete comparison.
	links map[string]int
	notes []string // of the last complete comparison
	// embattled means that others remove again and again what is put back.
	embattled bool
	// unsummed are the links for which TxChecksum is off.
	unsummed  map[string]bool
	devices   devices
	supported map[backend.Way]error
}

// Open returns the overlay of an instance. Its sockets belong to the node's network namespace,
// whichever thread calls.
func Open(cfg Config) (*Overlay, error) {
	if _, err := plan.Tag(cfg.Instance); err != nil {
		return nil, err
	}
	k := &kernel{netns: cfg.Netns, instance: cfg.Instance, tag: backend.Tag(cfg.Instance)}
	o := &Overlay{nodeIPs: cfg.NodeIPs, startWireGuard: cfg.StartWireGuard, kernel: k, unsummed: map[string]bool{}, devices: devices{kernel: k}, supported: map[backend.Way]error{}}
	err := k.inNode(func() (err error) {
		if k.conn, err = nlsock.Dial(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		return k.conn.Strict()
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network of nodes: %w", err), o.Close())
	}
	return o, nil
}

// Close closes the sockets. Nothing in the kernel changes.
func (o *Overlay) Close() error {
	var errs []error
	if o.kernel.conn != nil {
		errs = append(errs, o.kernel.conn.Close())
	}
	return errors.Join(append(errs, o.devices.close())...)
}

// kernel is the node's network namespace as one instance sees it.
type kernel struct {
	netns    string
	instance pod.Instance
	tag      uint32 // backend.Tag
	conn     *nlsock.Conn
}

// inNode runs fn on a thread in the node's network namespace.
func (k *kernel) inNode(fn func() error) error {
	if k.netns == "" {
		return fn()
	}
	return netns.Do(k.netns, fn)
}

// SetKeys sets the private keys of WireGuard links. A link uses the one that belongs to its public
// key in the plan.
func (o *Overlay) SetKeys(private ...peer.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.devices.keys = private
}

// Apply makes the kernel agree with the plan: it adds what is missing and removes what is this
// instance's and not in the plan. The notes name what of others is in the way. If something fails,
// the rest is done nevertheless.
//
// Apply only changes what differs from the last plan, in a time that depends on that. It compares
// everything if it can't know that the kernel agrees with the last plan, and if that is the same.
// The caller must not modify a plan afterwards.
func (o *Overlay) Apply(p backend.Plan) (notes []string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known && slices.Equal(o.applied.Links, p.Links) {
		before, after := changedPeers(o.applied.Peers, p.Peers)
		if len(before)+len(after) > 0 && o.update(o.objectsOf(before, nil), o.objectsOf(after, nil)) == nil {
			o.applied = p
			return o.notes, nil
		}
	}
	err = o.applyAll(p)
	return o.notes, err
}

// Teardown removes everything that the instance has on the node.
func (o *Overlay) Teardown() error {
	_, err := o.Apply(backend.Plan{})
	return err
}

// applyAll compares the kernel with the whole plan, and changes what differs.
func (o *Overlay) applyAll(p backend.Plan) error {
	o.known = false
	links, err := o.listLinks()
	if err != nil {
		return err
	}
	if o.noIPv6, err = o.kernel.noIPv6(); err != nil {
		return err
	}
	unusable, optional, err := o.ensureLinks(p.Links, links)
	want := o.objectsOf(p.Peers, unusable)
	have, notes, observeErr := o.observe(p.Links, unusable, want)
	if observeErr != nil {
		return errors.Join(err, observeErr)
	}
	if o.noIPv6 != "" && slices.ContainsFunc(p.Peers, hasIPv6) {
		notes = append(notes, "no routes to IPv6 addresses of pods of other nodes: "+o.noIPv6)
	}
	if o.embattled {
		notes = append(notes, fmt.Sprintf("another program changes routes or links to other nodes again and again: they are put back every %v only; find it and stop it", callPause))
	}
	o.applied, o.notes = p, append(notes, optional...)
	err = errors.Join(err, o.update(have, want), o.removeLinks(p.Links, links))
	o.known = err == nil && len(optional) == 0
	return err
}

// objectsOf returns the objects of peers that can exist.
func (o *Overlay) objectsOf(peers []*backend.Peer, unusable map[string]bool) objects {
	objects := objectsOf(peers)
	objects.withoutLinks(unusable)
	if o.noIPv6 != "" {
		objects.withoutIPv6()
	}
	return objects
}

func hasIPv6(p *backend.Peer) bool {
	return slices.ContainsFunc(p.Routes, func(r plan.Route) bool { return r.Dst.Addr().Is6() })
}

// noIPv6 returns why links of the node can't have IPv6; empty if they can.
func (k *kernel) noIPv6() (why string, err error) {
	if !rtnetlink.KernelHasIPv6() {
		return "the kernel has no IPv6", nil
	}
	err = k.inNode(func() error {
		for _, conf := range []string{"all", "default"} {
			value, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + conf + "/disable_ipv6")
			if err != nil {
				return err
			}
			if string(value) != "0\n" {
				why = "net.ipv6.conf." + conf + ".disable_ipv6 is 1"
			}
		}
		return nil
	})
	return why, err
}

// Difference is where the kernel differs from a plan.
type Difference struct {
	Object  string // in the notation of iproute2
	Problem string // missing, foreign, or how it differs
}

// String returns the difference as one line.
func (d Difference) String() string { return d.Object + ": " + d.Problem }

// Foreign reports whether the object is in the kernel but not in the plan.
func (d Difference) Foreign() bool { return d.Problem == foreign }

// Problems of a Difference.
const (
	missing   = "missing"
	different = "different"
	foreign   = "foreign"
)

// Verify returns the differences between the kernel and the plan, sorted.
func (o *Overlay) Verify(p backend.Plan) (diffs []Difference, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	links, err := o.listLinks()
	if err != nil {
		return nil, err
	}
	unusable := map[string]bool{}
	for _, want := range p.Links {
		diffs = append(diffs, o.compareLink(want, links[want.Name])...)
		unusable[want.Name] = !o.kernel.isLink(want, links[want.Name])
	}
	for name, l := range links {
		if o.kernel.ours(l) && !inPlan(p.Links, name) {
			diffs = append(diffs, Difference{"link " + name, foreign})
		}
	}
	if o.noIPv6, err = o.kernel.noIPv6(); err != nil {
		return nil, err
	}
	want := o.objectsOf(p.Peers, unusable)
	have, _, err := o.observe(p.Links, unusable, want)
	if err != nil {
		return nil, err
	}
	diffs = append(diffs, have.differences(want)...)
	slices.SortFunc(diffs, func(a, b Difference) int { return strings.Compare(a.String(), b.String()) })
	return diffs, nil
}
