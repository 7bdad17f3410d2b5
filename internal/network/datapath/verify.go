package datapath

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

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
	out, node, err := d.verifyNode(plans)
	if err != nil {
		return nil, err
	}
	for _, p := range plans {
		inPod, err := verifyPod(p, node.links[p.Veth.Host])
		if err != nil {
			return nil, err
		}
		if len(inPod) > 0 {
			out[p.Sandbox] = append(out[p.Sandbox], inPod...)
		}
	}
	return out, nil
}

// VerifyNode is Verify without what is in the pods' namespaces.
func (d *Datapath) VerifyNode(plans ...plan.Plan) (map[string][]Difference, error) {
	out, _, err := d.verifyNode(plans)
	return out, err
}

func (d *Datapath) verifyNode(plans []plan.Plan) (map[string][]Difference, *observed, error) {
	node, elements, err := d.observeNode()
	if err != nil {
		return nil, nil, err
	}
	out := map[string][]Difference{}
	for _, p := range plans {
		diffs := node.compareLink("", p.Veth.Host, p.Veth.HostMAC, p.Veth.MTU)
		if l, ok := node.links[p.Veth.Host]; ok {
			object := "link " + p.Veth.Host
			if d.deletion.has(l) {
				diffs = append(diffs, Difference{Object: object, Problem: "marked for deletion"})
			}
			if p.Veth.Bridge != "" && l.Master != node.links[p.Veth.Bridge].Index {
				diffs = append(diffs, Difference{Object: object, Problem: "not a port of " + p.Veth.Bridge})
			}
			if !l.Forwarding {
				diffs = append(diffs, Difference{Object: object, Problem: "doesn't forward"})
			}
			if p.Veth.RouteLocalnet && !l.RouteLocalnet {
				diffs = append(diffs, Difference{Object: object, Problem: "route_localnet is off"})
			}
		}
		if p.Bandwidth != (plan.Bandwidth{}) {
			rates, err := compareBandwidth(d.handle, p.Bandwidth)
			if err != nil {
				return nil, nil, err
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
		if len(diffs) > 0 {
			out[p.Sandbox] = diffs
		}
	}
	return out, node, nil
}

func verifyPod(p plan.Plan, host rtnetlink.Link) (diffs []Difference, err error) {
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
		if l, ok := pod.links[p.Veth.Pod]; ok && l.Index != host.Peer {
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
	if l.MAC != mac {
		out = append(out, Difference{ns, object, fmt.Sprintf("MAC %v, not %v", l.MAC, mac)})
	}
	if l.MTU != mtu {
		out = append(out, Difference{ns, object, fmt.Sprintf("MTU %d, not %d", l.MTU, mtu)})
	}
	if !l.Up {
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
		miss(o.routes[r] || r.Preferred && !o.local[r.Source], r.Link, r)
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

// VerifyBase returns the differences between the kernel and the node's part of the network: the
// table and its rules, the bridge, the settings of the bridge and lo, and the sysctls.
func (d *Datapath) VerifyBase(b plan.Base) (diffs []Difference, err error) {
	diffs, err = d.table.compare(b.Table)
	if err != nil {
		return nil, err
	}
	err = d.withConn(func(c *nlsock.Conn) error {
		o, err := observe(c, d.handle, func(link string) bool { return link == "lo" || link == d.bridge })
		if err != nil {
			return err
		}
		if b.Link != nil {
			if l, ok := o.links[d.bridge]; !ok || l.MAC != b.Link.MAC {
				diffs = append(diffs, Difference{Object: "link " + d.bridge, Problem: missing})
			} else if !l.Up {
				diffs = append(diffs, Difference{Object: "link " + d.bridge, Problem: "down"})
			}
		}
		for _, a := range b.Host.Addresses {
			a.LastResort = false // not observed
			if _, ok := o.links[a.Link]; ok && !o.addresses[a] {
				diffs = append(diffs, Difference{Object: a.String(), Problem: missing})
			}
		}
		for _, r := range b.Host.Routes {
			if !o.routes[r] {
				diffs = append(diffs, Difference{Object: r.String(), Problem: missing})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = d.InNode(func() error {
		for _, name := range b.Sysctls {
			value, err := ReadSysctl(name)
			if err != nil {
				return err
			}
			if value == "0" {
				diffs = append(diffs, Difference{Object: "sysctl " + dotted(name), Problem: "is 0, so pods can't reach anything: set it to 1"})
			}
		}
		return nil
	})
	return diffs, err
}

// compare returns the differences between the table and its plan. It only counts the rules of each
// chain, and the elements of the sets of subnets.
func (t *table) compare(p plan.Table) (diffs []Difference, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := "nftables table inet " + t.nft.Name
	if !t.existsLocked() {
		return []Difference{{Object: name, Problem: missing}}, nil
	}
	want := rules(p)
	for _, chain := range chains(t.nft, p) {
		have, err := t.conn.GetRules(t.nft, chain)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, t.wrap(errors.Join(fmt.Errorf("list chain %s: %w", chain.Name, err), t.reopen()))
		}
		if len(have) != len(want[chain.Name]) {
			diffs = append(diffs, Difference{Object: "chain " + chain.Name + " of " + name, Problem: fmt.Sprintf("%d rules, not %d", len(have), len(want[chain.Name]))})
		}
	}
	for _, s := range subnetSets(t.nft, p, 0) {
		have, err := t.conn.GetSetElements(s.Set)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, t.wrap(errors.Join(fmt.Errorf("list set %s: %w", s.Name, err), t.reopen()))
		}
		if len(have) != len(s.elements) {
			diffs = append(diffs, Difference{Object: "set " + s.Name + " of " + name, Problem: fmt.Sprintf("%d elements, not %d", len(have), len(s.elements))})
		}
	}
	have, err := t.listLocked(plan.NodeSets())
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, t.wrap(err)
	}
	there := map[plan.Element]bool{}
	for _, e := range have {
		there[e] = true
	}
	for _, e := range p.Nodes.Elements() {
		if !there[e] {
			diffs = append(diffs, Difference{Object: e.String(), Problem: missing})
		}
	}
	return diffs, nil
}

// Intercepted reports whether the pod's packets don't come from its namespace's own network stack,
// but from that of a runtime: one that redirects the link's packets, as Kata Containers does, or
// that has taken its addresses, as gVisor does.
func Intercepted(p plan.Plan) (yes bool) {
	_ = netns.Do(p.Netns, func() error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		link, err := h.LinkByName(p.Veth.Pod)
		if err != nil {
			return err
		}
		disciplines, err := nlsock.Complete(func() ([]netlink.Qdisc, error) { return h.QdiscList(link) })
		if err != nil {
			return err
		}
		for _, q := range disciplines {
			yes = yes || q.Type() == "ingress" || q.Type() == "clsact"
		}
		addresses, err := nlsock.Complete(func() ([]netlink.Addr, error) { return h.AddrList(link, netlink.FAMILY_ALL) })
		have := map[netip.Prefix]bool{}
		for _, a := range addresses {
			have[nlsock.Prefix(a.IPNet)] = true
		}
		for _, a := range p.Pod.Addresses {
			yes = yes || err == nil && !have[a.Prefix]
		}
		return err
	})
	return yes
}
