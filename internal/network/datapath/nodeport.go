package datapath

import (
	"encoding/binary"
	"errors"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
)

// nodePorts is the set of the ports of plan.Table.NodePorts.
const nodePorts = "node-ports"

// nodePortSet returns it, with its elements.
func nodePortSet(t *nftables.Table, p plan.Table, id uint32) subnetSet {
	s := subnetSet{Set: &nftables.Set{Table: t, ID: id, Name: nodePorts, KeyByteOrder: binaryutil.BigEndian, Concatenation: true,
		KeyType: nftables.MustConcatSetType(nftables.TypeInetProto, nftables.TypeInetService)}}
	for _, port := range p.NodePorts {
		if port.Port != 0 {
			s.elements = append(s.elements, nftables.SetElement{Key: binary.BigEndian.AppendUint16([]byte{port.Protocol, 0, 0, 0}, port.Port)})
			last := &s.elements[len(s.elements)-1]
			last.Key = append(last.Key, 0, 0)
		}
	}
	return s
}

// protocol matches packets of an IP protocol.
func protocol(number uint8) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equal(reg1, []byte{number})}
}

// toNodePort matches packets to one of the ports.
func toNodePort() match {
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32a},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: reg32b},
		&expr.Lookup{SourceRegister: reg1, SetName: nodePorts},
	}
}

// isReply matches packets of a flow that the other end has begun. It doesn't match those that
// aren't tracked.
func isReply() match {
	return match{&expr.Ct{Key: expr.CtKeyDIRECTION, Register: reg1}, equal(reg1, []byte{1})} // IP_CT_DIR_REPLY
}

// nodePortRules returns the rules about packets to ports of nodes, by the names of their chains.
//
// They are at the hooks forward and input, where packets have the destinations to which Services
// and host ports have led them, and no fragments come: connection tracking has put those together.
// A Service may lead to a port of a node what others send: that isn't the node's either.
//
// The first packet of a TCP connection decides. The rest passes before anything is looked up: the
// lookups took 3 % of the time of a request and its response.
//
// Replies pass. A socket of a node, or a masqueraded connection, may have got a port by chance that
// another node uses. Those of pods by UDP don't, unless what listens there authenticates. A pod can
// ask another node's pod from every port of its node, since masquerading uses them all. At the port
// of VXLAN, which isn't tracked, the answer would be a packet of that node, and at the others once
// the pod that asked has gone.
//
// To a router, too, packets of pods come from the node's address, with which it has a session.
func nodePortRules(t plan.Table) map[string][][]expr.Any {
	out := map[string][][]expr.Any{}
	if len(t.NodePorts) == 0 {
		return out
	}
	add := func(chain string, parts ...match) { out[chain] = append(out[chain], rule(parts...)) }
	drop, leave := verdict(expr.VerdictDrop, ""), verdict(expr.VerdictReturn, "")
	for base, chain := range map[string]string{chainForward: chainToNode, chainInput: chainAtNode} {
		add(base, protocol(unix.IPPROTO_TCP), tracked(expr.CtKeySTATE, expr.CtStateBitESTABLISHED), leave)
		add(base, toNodePort(), verdict(expr.VerdictJump, chain))
		for _, p := range t.NodePorts {
			if p.Port == 0 {
				add(base, protocol(p.Protocol), verdict(expr.VerdictJump, chain))
			}
		}
	}
	for _, f := range families {
		add(chainToNode, f.is(), f.inSet(f.dst, plan.Others, false), verdict(expr.VerdictJump, chainNodePort))
	}
	pods := []match{byLink(expr.MetaKeyIIFNAME, t.LinkPrefix, true), byLink(expr.MetaKeyIIFNAME, t.Bridge, false)}
	for _, p := range t.NodePorts {
		if p.From == plan.FromRouters {
			for _, router := range t.Routers {
				f := familyOf(router)
				add(chainForward, toPort(p.Protocol, p.Port), f.is(), match{f.load(f.dst, reg1), equal(reg1, router.AsSlice())}, verdict(expr.VerdictJump, chainNodePort))
			}
		}
		if p.Protocol == unix.IPPROTO_UDP && p.From != plan.FromAnybody {
			for _, by := range pods {
				add(chainNodePort, toPort(p.Protocol, p.Port), by, counted(PodToNode), drop)
			}
		}
	}
	add(chainNodePort, isReply(), leave)
	for _, by := range append(pods, translated()) {
		add(chainNodePort, by, counted(PodToNode), drop)
	}
	add(chainAtNode, verdict(expr.VerdictJump, chainNodePort))
	if t.Nodes == nil {
		return out
	}
	add(chainAtNode, isReply(), leave)
	for _, f := range families {
		add(chainAtNode, f.is(), f.inSet(f.src, plan.Others, false), f.inSet(f.dst, plan.Self, false), leave)
	}
	for _, p := range t.NodePorts {
		to := match{}
		if p.Port != 0 {
			to = toPort(p.Protocol, p.Port)
		}
		switch p.From {
		case plan.FromAnybody:
			add(chainAtNode, to, leave)
		case plan.FromRouters:
			for _, router := range t.Routers {
				f := familyOf(router)
				add(chainAtNode, to, f.is(), match{f.load(f.src, reg1), equal(reg1, router.AsSlice())}, leave)
			}
		}
	}
	add(chainAtNode, counted(NoNode), drop)
	return out
}

// Nodes returns what the table knows of nodes, nil if it knows nothing.
func (d *Datapath) Nodes() (*plan.Nodes, error) {
	t := d.table
	t.mu.Lock()
	defer t.mu.Unlock()
	elements, err := t.listLocked(plan.NodeSets())
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // a table of a former version
	}
	return plan.NodesOf(elements), t.wrap(err)
}

// SetNodes changes what the table knows of nodes, but no rules.
func (d *Datapath) SetNodes(have, want *plan.Nodes) error {
	is, were := map[plan.Element]bool{}, map[plan.Element]bool{}
	for _, e := range have.Elements() {
		were[e] = true
	}
	var add, remove []plan.Element
	for _, e := range want.Elements() {
		if is[e] = true; !were[e] {
			add = append(add, e)
		}
	}
	for e := range were {
		if !is[e] {
			remove = append(remove, e)
		}
	}
	return errors.Join(d.table.add(add), d.table.remove(remove))
}
