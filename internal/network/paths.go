package network

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Paths says how packets reach the pods of this node, and compares it with the kernel.
type Paths struct{ n *Network }

// Paths returns the paths to this node's pods.
func (n *Network) Paths() Paths { return Paths{n} }

// End is a pod of this node as an end of connections.
type End struct {
	Pod       pod.Ref
	Addresses []netip.Addr
	Link      string // by which the node receives the pod's packets
	Plan      plan.Plan
	runtime   bool // the runtime has the pod's side
}

func (p Paths) end(r *record) *End {
	e := &End{Pod: r.Attachment.Pod, Addresses: r.addrs(), Plan: p.n.plan(r), runtime: r.RuntimeManaged || r.External}
	e.Link = e.Plan.Veth.Host
	if e.Plan.Veth.Bridge != "" {
		e.Link = e.Plan.Veth.Bridge
	}
	return e
}

// At returns the pod with an address, or nil if no pod of this node has it.
func (p Paths) At(addr netip.Addr) *End {
	return p.find(func(r *record) bool { return slices.Contains(r.addrs(), addr) })
}

// Named returns the pod with a name, NAMESPACE/NAME, or nil.
func (p Paths) Named(key string) *End {
	return p.find(func(r *record) bool { return r.Attachment.Pod.String() == key })
}

func (p Paths) find(is func(*record) bool) *End {
	for _, r := range p.n.ledger.all() {
		if p.n.ledger.state(r) == ipam.Bound && is(r) {
			return p.end(r)
		}
	}
	return nil
}

// Forwarded returns the pod to which a connection to an address of this node is forwarded, and the
// element of the table that does so, or nil.
func (p Paths) Forwarded(to netip.AddrPort, protocol pod.Protocol) (*End, plan.Element) {
	for _, r := range p.n.ledger.all() {
		if p.n.ledger.state(r) != ipam.Bound {
			continue
		}
		for _, e := range p.n.plan(r).Elements {
			if e.Port == to.Port() && e.Protocol == protocol && e.To.Addr().Is4() == to.Addr().Is4() && (!e.Addr.IsValid() || e.Addr == to.Addr()) {
				return p.end(r), e
			}
		}
	}
	return nil, plan.Element{}
}

// Verify returns how the kernel differs from a pod's plan.
func (p Paths) Verify(e *End) (out []string, err error) {
	p.n.kernelMu.RLock()
	defer p.n.kernelMu.RUnlock()
	verify := p.n.dp.Verify
	if e.runtime { // which may have taken the pod's side
		verify = p.n.dp.VerifyNode
	}
	diffs, err := verify(e.Plan)
	for _, d := range diffs[e.Plan.Sandbox] {
		out = append(out, d.String())
	}
	return out, err
}

// VerifyNode returns what keeps this node from forwarding packets of pods: how the kernel differs
// from the node's plan.
func (p Paths) VerifyNode() (out []string, err error) {
	p.n.kernelMu.RLock()
	defer p.n.kernelMu.RUnlock()
	diffs, err := p.n.dp.VerifyBase(p.n.basePlan())
	for _, d := range diffs {
		out = append(out, d.String())
	}
	return out, err
}

// Masquerades reports whether packets of pods to an address leave with the node's address.
func (p Paths) Masquerades(to netip.Addr) bool {
	b := p.n.basePlan()
	return b.Table.Masquerade && !slices.ContainsFunc(b.Table.Direct, func(d netip.Prefix) bool { return d.Contains(to) })
}

// Refuses returns why the node drops packets to a port of a node by which only nodes talk to each
// other; empty if it doesn't.
func (p Paths) Refuses(from, to netip.Addr, protocol uint8, port uint16) string {
	here, err := p.n.dp.Lookup(netip.Addr{}, to, "")
	return p.n.basePlan().Table.Refuses(plan.Packet{From: from, To: to, Protocol: protocol, Port: port, FromPod: p.At(from) != nil, Local: err == nil && here.Local})
}

// Lookup asks the kernel for the route of a packet, see datapath.Datapath.Lookup.
func (p Paths) Lookup(from, to netip.Addr, link string) (datapath.Lookup, error) {
	return p.n.dp.Lookup(from, to, link)
}
