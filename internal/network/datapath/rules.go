package datapath

import (
	"encoding/binary"
	"maps"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
)

// The rules of the table, as `nft list table` shows them, for IPv4 only. IPv6 has the same, with
// sets whose names end in 6. Rules don't depend on pods; sets and maps do.
//
//	chain guard { type filter hook prerouting priority raw
//		iifname "hk<instance>*" jump from-pod
//		iifname "hkbr<instance>" jump from-pod
//		iifname "hn<instance>*" jump from-node    # with other nodes only
//		udp dport 8472 fib daddr type local notrack
//		iifname != "lo" jump from-outside
//		ip saddr @direct4 ip daddr @pods4 drop    # with other nodes that encrypt, by other links
//	}
//	chain untracked { type filter hook output priority raw # with other nodes only
//		udp dport 8472 notrack                    # connection tracking sees what is inside
//	}
//	chain names { type filter hook input priority filter # if the node serves DNS to pods
//		ip daddr 169.254.64.1 udp dport 53 update @asking4 { ip saddr limit rate over 2000/second burst 2000 packets } drop
//		# likewise tcp dport 53 tcp flags & syn == syn
//	}
//	chain from-pod {
//		# A pod sends from its own addresses only. route_localnet must not open the node's loopback.
//		iifname . ip saddr @sources4 ip daddr != 127.0.0.0/8 accept
//		icmpv6 type nd-router-advert drop         # a pod is no router, nor does it know a better one
//		icmpv6 type nd-redirect drop
//		iifname . ip6 saddr @sources6 accept
//		ip6 saddr { fe80::/10, :: } jump discovery
//		drop
//	}
//	chain discovery {                                 # what needs no address: no policy knows these sources
//		icmpv6 type nd-router-solicit accept      # and likewise nd-neighbor-solicit, nd-neighbor-advert,
//	}                                                 # mld-listener-report, -done and mld2-listener-report
//	chain from-outside {                              # nobody there has the address of a pod of this node
//		ip saddr @blocks4 counter name spoofed drop
//		ip saddr @pods4 counter name spoofed drop
//		ip saddr @cluster4 iifname != @underlay4 counter name spoofed drop # with other nodes: nor theirs
//	}
//	chain forward { type filter hook forward priority filter - 2 # with other nodes only, and so are these:
//		meta l4proto tcp ct state established return
//		meta l4proto . th dport @node-ports jump to-node
//		meta l4proto { 4, 41 } jump to-node
//		tcp dport 179 ip daddr 192.0.2.254 jump node-port # likewise udp 3784, and each router
//	}
//	chain to-node {
//		ip daddr @nodes4 jump node-port
//	}
//	chain node-port {                                 # see nodePortRules
//		udp dport 8472 iifname "hk<instance>*" counter name pod-to-node drop # likewise 8473 and 3784, and the bridge
//		ct direction reply return
//		iifname { "hk<instance>*", "hkbr<instance>" } counter name pod-to-node drop
//		ct status dnat counter name pod-to-node drop
//	}
//	chain input { type filter hook input priority filter - 2
//		…                                         # as in forward, with at-node
//	}
//	chain at-node {
//		jump node-port
//		ct direction reply return                 # from here on, only once the nodes are known
//		ip saddr @nodes4 ip daddr @self4 return
//		udp dport 51820 return                    # likewise 51822
//		tcp dport 179 ip saddr 192.0.2.254 return # likewise udp 3784, and each router
//		counter name no-node drop
//	}
//	chain from-node {
//		ip saddr @blocks4 drop                    # another node has no packets of this node's pods
//		ip saddr @pods4 drop
//		ip daddr @blocks4 accept                  # and brings those for them, or for this node, only
//		ip daddr @pods4 accept
//		drop
//	}
//	chain prerouting { type nat hook prerouting priority dstnat
//		fib daddr type local jump hostports
//	}
//	chain output { type nat hook output priority dstnat
//		fib daddr type local jump hostports
//	}
//	chain hostports {
//		dnat ip to ip daddr . meta l4proto . th dport map @addrport4
//		dnat ip to meta l4proto . th dport map @ports4
//	}
//	chain postrouting { type nat hook postrouting priority srcnat
//		ip saddr 127.0.0.0/8 ip daddr @pods4 snat to 10.88.0.1     # from the node's loopback
//		ip saddr . ip daddr @hairpin4 snat to 10.88.0.1            # a pod reaches itself
//		oifname "hkbr<instance>" ct status dnat ip saddr @pods4 snat to 10.88.0.1
//		ip saddr @pods4 ip daddr != @direct4 masquerade fully-random # if configured
//	}
//
// 10.88.0.1 stands for the first address of the pod subnet. The sets blocks4 and direct4 are of
// subnets: this node's, and those to which pods send from their own addresses. The rule about the
// bridge is for pods on it: the reply to another pod would cross the bridge directly and not be
// translated back.
const (
	chainGuard       = "guard"
	chainFromPod     = "from-pod"
	chainDiscovery   = "discovery"
	chainFromOutside = "from-outside"
	chainFromNode    = "from-node"
	chainForward     = "forward"
	chainInput       = "input"
	chainToNode      = "to-node"
	chainAtNode      = "at-node"
	chainNodePort    = "node-port"
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainUntracked   = "untracked"
	chainHostPorts   = "hostports"
	chainPostrouting = "postrouting"
	chainNames       = "names"
)

// The old register numbers stand for 16 bytes, the new ones for 4.
const (
	reg1   = unix.NFT_REG_1
	reg32a = unix.NFT_REG32_00 // the first 4 bytes of reg1, and so on
	reg32b = unix.NFT_REG32_01
	reg32e = unix.NFT_REG32_04
)

// family is what differs between IPv4 and IPv6 in a rule.
type family struct {
	proto    byte
	suffix   string
	src, dst uint32 // offsets in the header
	size     uint32 // of an address
	afterDst uint32 // the register after an address in reg1
	address  nftables.SetDatatype
}

var families = []family{
	{unix.NFPROTO_IPV4, "4", 12, 16, 4, reg32b, nftables.TypeIPAddr},
	{unix.NFPROTO_IPV6, "6", 8, 24, 16, reg32e, nftables.TypeIP6Addr},
}

func familyOf(a netip.Addr) family {
	if a.Is6() {
		return families[1]
	}
	return families[0]
}

type match []expr.Any

func rule(parts ...match) []expr.Any {
	var out []expr.Any
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

func equal(register uint32, data []byte) expr.Any {
	return &expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: data}
}

func (f family) is() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, equal(reg1, []byte{f.proto})}
}

func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size, DestRegister: register}
}

// within matches packets whose address at offset is in prefix.
func (f family) within(offset uint32, prefix netip.Prefix) match {
	mask := make([]byte, f.size)
	for i := range prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return match{
		f.load(offset, reg1),
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: f.size, Mask: mask, Xor: make([]byte, f.size)},
		equal(reg1, prefix.Addr().AsSlice()),
	}
}

// not returns m with its last comparison inverted.
func not(m match) match {
	m[len(m)-1].(*expr.Cmp).Op = expr.CmpOpNeq
	return m
}

// toPort matches packets of a protocol to a port.
func toPort(protocol uint8, port uint16) match {
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equal(reg1, []byte{protocol}),
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: reg1}, equal(reg1, binary.BigEndian.AppendUint16(nil, port)),
	}
}

func (f family) inSet(offset uint32, kind string, invert bool) match {
	return match{f.load(offset, reg1), &expr.Lookup{SourceRegister: reg1, SetName: kind + f.suffix, Invert: invert}}
}

// dnat redirects packets that are in the map to the mapped address and port. The key is the
// protocol and port, after the address if that is part of it.
func (f family) dnat(kind string, address bool) match {
	proto, port := uint32(reg32a), uint32(reg32b)
	var m match
	if address {
		m = append(m, f.load(f.dst, reg1))
		proto, port = f.afterDst, f.afterDst+1
	}
	return append(m,
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: proto},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: port},
		&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: kind + f.suffix},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: reg1, RegProtoMin: f.afterDst})
}

func (f family) snat(as netip.Addr) match {
	return match{
		&expr.Immediate{Register: reg1, Data: as.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.proto), RegAddrMin: reg1},
	}
}

func verdict(kind expr.VerdictKind, chain string) match {
	return match{&expr.Verdict{Kind: kind, Chain: chain}}
}

// byLink matches a link's whole name or, if open, a prefix.
func byLink(key expr.MetaKey, name string, open bool) match {
	data := []byte(name)
	if !open {
		data = ifName(name)
	}
	return match{&expr.Meta{Key: key, Register: reg1}, equal(reg1, data)}
}

// ifName returns the name of a link as nftables encodes it.
func ifName(name string) []byte {
	data := make([]byte, unix.IFNAMSIZ)
	copy(data, name)
	return data
}

// icmp6 matches ICMPv6 messages of a type.
func icmp6(kind byte) match {
	return match{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, equal(reg1, []byte{unix.IPPROTO_ICMPV6}),
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 0, Len: 1, DestRegister: reg1}, equal(reg1, []byte{kind}),
	}
}

// Types of ICMPv6 messages by which a router changes the routes of a host (RFC 4861).
const routerAdvert, redirect = 134, 137

// discovery are the types of ICMPv6 messages that hosts send from link-local addresses, and before
// they have any: of neighbour discovery (RFC 4861) and multicast listener discovery (RFC 2710, RFC
// 3810).
var discovery = []byte{133, 135, 136, 131, 132, 143}

func toThisNode() match {
	local := binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL)
	return match{&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true}, equal(reg1, local)}
}

// translated matches packets of a flow whose destination is another than it was sent to.
func translated() match { return tracked(expr.CtKeySTATUS, 1<<5) } // IPS_DST_NAT

// tracked matches packets of which connection tracking has set a bit of a key.
func tracked(key expr.CtKey, bit uint32) match {
	mask := binary.NativeEndian.AppendUint32(nil, bit)
	return match{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: mask, Xor: make([]byte, 4)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: make([]byte, 4)},
	}
}

// rules returns the rules of the table by the names of their chains.
func rules(t plan.Table) map[string][][]expr.Any {
	out := map[string][][]expr.Any{
		chainGuard: {
			rule(byLink(expr.MetaKeyIIFNAME, t.LinkPrefix, true), verdict(expr.VerdictJump, chainFromPod)),
			rule(byLink(expr.MetaKeyIIFNAME, t.Bridge, false), verdict(expr.VerdictJump, chainFromPod)),
		},
		chainPrerouting: {rule(toThisNode(), verdict(expr.VerdictJump, chainHostPorts))},
		chainOutput:     {rule(toThisNode(), verdict(expr.VerdictJump, chainHostPorts))},
	}
	add := func(chain string, parts ...match) { out[chain] = append(out[chain], rule(parts...)) }
	accept, drop := verdict(expr.VerdictAccept, ""), verdict(expr.VerdictDrop, "")
	loopback4 := netip.MustParsePrefix("127.0.0.0/8")
	linkLocal6 := netip.MustParsePrefix("fe80::/10")
	four, six := families[0], families[1]

	own := func(f family) match {
		name := &expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}
		return match{name, f.load(f.src, reg32e), &expr.Lookup{SourceRegister: reg1, SetName: plan.Sources + f.suffix}}
	}
	add(chainFromPod, four.is(), own(four), not(four.within(four.dst, loopback4)), accept)
	for _, kind := range []byte{routerAdvert, redirect} {
		add(chainFromPod, six.is(), icmp6(kind), drop)
	}
	add(chainFromPod, six.is(), own(six), accept)
	for _, source := range []netip.Prefix{linkLocal6, netip.PrefixFrom(netip.IPv6Unspecified(), 128)} {
		add(chainFromPod, six.is(), six.within(six.src, source), verdict(expr.VerdictJump, chainDiscovery))
	}
	add(chainFromPod, drop)
	for _, kind := range discovery {
		add(chainDiscovery, icmp6(kind), accept)
	}

	if t.NodeLinks != "" {
		add(chainGuard, byLink(expr.MetaKeyIIFNAME, t.NodeLinks, true), verdict(expr.VerdictJump, chainFromNode))
		for _, f := range families {
			for _, set := range []string{plan.Blocks, plan.Pods} {
				add(chainFromNode, f.is(), f.inSet(f.src, set, false), drop)
			}
			for _, set := range []string{plan.Blocks, plan.Pods} {
				add(chainFromNode, f.is(), f.inSet(f.dst, set, false), accept)
			}
		}
		add(chainFromNode, drop)
	}
	if t.TunnelPort != 0 {
		untrack := match{&expr.Notrack{}}
		add(chainGuard, toPort(unix.IPPROTO_UDP, t.TunnelPort), toThisNode(), untrack)
		add(chainUntracked, toPort(unix.IPPROTO_UDP, t.TunnelPort), untrack)
	}
	add(chainGuard, not(byLink(expr.MetaKeyIIFNAME, "lo", false)), verdict(expr.VerdictJump, chainFromOutside))
	for _, f := range families {
		for _, set := range []string{plan.Blocks, plan.Pods} {
			add(chainFromOutside, f.is(), f.inSet(f.src, set, false), counted(Spoofed), drop)
		}
		if t.Nodes != nil && len(t.Nodes.Links) > 0 {
			by := match{&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg1}, &expr.Lookup{SourceRegister: reg1, SetName: plan.Underlay + f.suffix, Invert: true}}
			add(chainFromOutside, f.is(), f.inSet(f.src, plan.Cluster, false), by, counted(Spoofed), drop)
		}
		if t.Encrypted {
			add(chainGuard, f.is(), f.inSet(f.src, plan.Direct, false), f.inSet(f.dst, plan.Pods, false), drop)
		}
	}

	if t.Resolver.IsValid() {
		out[chainNames] = questionRules(t.Resolver)
	}
	for _, f := range families {
		add(chainHostPorts, f.is(), f.dnat(plan.AddrPort, true))
		add(chainHostPorts, f.is(), f.dnat(plan.Ports, false))
	}

	// Sources that no pod could reply to, as it would take them for its own addresses.
	loopback := map[byte][]netip.Prefix{
		unix.NFPROTO_IPV4: {loopback4},
		unix.NFPROTO_IPV6: {netip.PrefixFrom(netip.IPv6Loopback(), 128), linkLocal6},
	}
	for _, as := range t.As {
		f := familyOf(as)
		for _, p := range loopback[f.proto] {
			add(chainPostrouting, f.is(), f.within(f.src, p), f.inSet(f.dst, plan.Pods, false), f.snat(as))
		}
		pair := match{f.load(f.src, reg1), f.load(f.dst, f.afterDst), &expr.Lookup{SourceRegister: reg1, SetName: plan.Hairpin + f.suffix}}
		add(chainPostrouting, f.is(), pair, f.snat(as))
		add(chainPostrouting, byLink(expr.MetaKeyOIFNAME, t.Bridge, false), translated(), f.is(), f.inSet(f.src, plan.Pods, false), f.snat(as))
	}
	for _, f := range families {
		if t.Masquerade {
			add(chainPostrouting, f.is(), f.inSet(f.src, plan.Pods, false), f.inSet(f.dst, plan.Direct, true), match{&expr.Masq{FullyRandom: true}})
		}
	}
	maps.Copy(out, nodePortRules(t))
	return out
}

// guardPriority is before connection tracking, and behind what puts fragments together. Versions of
// Husk without the chain input have another one, at which they find this table, which they can't
// keep as it should be, to be different, and make their own.
const guardPriority = -301

// ownerPrefix is the prefix of the name of an empty chain that identifies the table's owner.
const ownerPrefix = "of-"

// chains returns the table's chains; those that others jump to come first.
func chains(t *nftables.Table, p plan.Table) []*nftables.Chain {
	base := func(name string, typ nftables.ChainType, hook *nftables.ChainHook, priority *nftables.ChainPriority) *nftables.Chain {
		return &nftables.Chain{Table: t, Name: name, Type: typ, Hooknum: hook, Priority: priority}
	}
	var mark []*nftables.Chain
	if p.Owner != "" {
		mark = append(mark, &nftables.Chain{Table: t, Name: ownerPrefix + p.Owner})
	}
	if p.TunnelPort != 0 {
		mark = append(mark, base(chainUntracked, nftables.ChainTypeFilter, nftables.ChainHookOutput, nftables.ChainPriorityRaw))
	}
	if p.Resolver.IsValid() {
		mark = append(mark, base(chainNames, nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityFilter))
	}
	return append(mark, []*nftables.Chain{
		{Table: t, Name: chainNodePort},
		{Table: t, Name: chainToNode},
		{Table: t, Name: chainAtNode},
		base(chainForward, nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityRef(*nftables.ChainPriorityFilter-2)),
		base(chainInput, nftables.ChainTypeFilter, nftables.ChainHookInput, nftables.ChainPriorityRef(*nftables.ChainPriorityFilter-2)),
		{Table: t, Name: chainDiscovery},
		{Table: t, Name: chainFromPod},
		{Table: t, Name: chainFromOutside},
		{Table: t, Name: chainFromNode},
		{Table: t, Name: chainHostPorts},
		base(chainGuard, nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRef(guardPriority)),
		base(chainPrerouting, nftables.ChainTypeNAT, nftables.ChainHookPrerouting, nftables.ChainPriorityNATDest),
		base(chainOutput, nftables.ChainTypeNAT, nftables.ChainHookOutput, nftables.ChainPriorityNATDest),
		base(chainPostrouting, nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource),
	}...)
}

// fieldTypes are nft's own types, so that nft lists our sets properly.
var fieldTypes = map[plan.Field][2]nftables.SetDatatype{
	plan.FieldLink:     {nftables.TypeIFName, nftables.TypeIFName},
	plan.FieldAddr:     {nftables.TypeIPAddr, nftables.TypeIP6Addr},
	plan.FieldPeer:     {nftables.TypeIPAddr, nftables.TypeIP6Addr},
	plan.FieldProtocol: {nftables.TypeInetProto, nftables.TypeInetProto},
	plan.FieldPort:     {nftables.TypeInetService, nftables.TypeInetService},
	plan.FieldToAddr:   {nftables.TypeIPAddr, nftables.TypeIP6Addr},
	plan.FieldToPort:   {nftables.TypeInetService, nftables.TypeInetService},
}

func datatype(fields []plan.Field, six bool) nftables.SetDatatype {
	var types []nftables.SetDatatype
	for _, f := range fields {
		t := fieldTypes[f][0]
		if six {
			t = fieldTypes[f][1]
		}
		types = append(types, t)
	}
	if len(types) == 1 {
		return types[0]
	}
	return nftables.MustConcatSetType(types...) // at most three fields
}

// podSet returns s for the library. The id identifies it in a batch; the library's default is a
// counter without a lock.
func podSet(t *nftables.Table, s plan.Set, id uint32) *nftables.Set {
	set := &nftables.Set{Table: t, ID: id, Name: s.Name(), KeyType: datatype(s.Key, s.Six), Concatenation: len(s.Key) > 1}
	if s.Value != nil {
		set.IsMap, set.DataType = true, datatype(s.Value, s.Six)
	}
	switch {
	case s.Key[0] != plan.FieldLink:
		set.KeyByteOrder = binaryutil.BigEndian
	case len(s.Key) == 1:
		set.KeyByteOrder = binaryutil.NativeEndian // or nft lists the names as empty
	}
	return set
}

// subnetSet is a set whose elements are the plan's.
type subnetSet struct {
	*nftables.Set
	elements []nftables.SetElement
}

// subnetSets returns the table's sets of subnets, and that of node ports. Their IDs begin at id,
// see podSet.
func subnetSets(t *nftables.Table, p plan.Table, id uint32) (out []subnetSet) {
	for _, f := range families {
		for _, kind := range []string{plan.Blocks, plan.Direct, plan.Cluster} {
			subnets := map[string][]netip.Prefix{plan.Blocks: p.Blocks, plan.Direct: p.Direct, plan.Cluster: p.Cluster}[kind]
			set := subnetSet{Set: &nftables.Set{Table: t, ID: id, Name: kind + f.suffix, KeyType: f.address, KeyByteOrder: binaryutil.BigEndian, Interval: true}}
			id++
			for _, subnet := range subnets {
				if subnet.Addr().BitLen() == int(8*f.size) {
					set.elements = append(set.elements, interval(subnet)...)
				}
			}
			out = append(out, set)
		}
	}
	return append(out, nodePortSet(t, p, id))
}

// interval returns the elements that stand for a subnet: its first address, and the one behind its
// last unless that is the last of all.
func interval(subnet netip.Prefix) []nftables.SetElement {
	out := []nftables.SetElement{{Key: subnet.Addr().AsSlice()}}
	last := subnet.Addr().AsSlice()
	for bit := subnet.Bits(); bit < len(last)*8; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	end, _ := netip.AddrFromSlice(last)
	if end = end.Next(); end.IsValid() {
		out = append(out, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
	}
	return out
}
