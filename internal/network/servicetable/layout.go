package servicetable

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/service/compile"
)

// The table, for IPv4; IPv6 has sets, chains and rules of its own:
//
//	map inside4 outside4 { type ipv4_addr . inet_proto . inet_service : verdict }
//	map inside-port4 outside-port4 { type inet_proto . inet_service : verdict }  # ports of the node
//	map all4 own4 { type mark . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }
//	map affinity-0a600001-6-80 {                          # of 10.96.0.1, TCP, port 80
//		type ipv4_addr . ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service; flags dynamic, timeout
//	}
//	map sticky4 { type ipv4_addr . inet_proto . inet_service : verdict }
//	map sticky-port4 { type inet_proto . inet_service : verdict }
//	set ranged4 { type ipv4_addr . inet_proto . inet_service }
//	set sources4 { type ipv4_addr . inet_proto . inet_service . ipv4_addr; flags interval }
//	map refused4 { type ipv4_addr . inet_proto . inet_service : verdict }
//	map refused-port4 { type inet_proto . inet_service : verdict }
//	set clusterips4 { type ipv4_addr }
//	set self4 { type ipv4_addr . ipv4_addr }              # each local endpoint with itself
//
//	chain prerouting { type nat hook prerouting priority dstnat - 1
//		iifname "hk<instance>*" goto inside
//		iifname "hkbr<instance>" goto inside
//		goto outside
//	}
//	chain output { type nat hook output priority dstnat - 1
//		meta mark set meta mark or 0x4000
//		jump inside
//		meta mark set meta mark and not 0x4000        # it leads to no Service
//	}
//	chain inside {                                        # outside is alike
//		ip daddr . meta l4proto . th dport @ranged4 ip daddr . meta l4proto . th dport . ip saddr != @sources4 drop
//		ip daddr . meta l4proto . th dport vmap @inside4
//		# for each prefix of the node's addresses with node ports:
//		fib daddr type local ip daddr != 127.0.0.0/8 ip daddr 192.0.2.1 meta l4proto . th dport vmap @inside-port4
//	}
//	chain addr4-all-3 {                                   # 3 endpoints
//		dnat to numgen random mod 3 . ip daddr . meta l4proto . th dport map @all4
//		dnat to numgen random mod 1 . ip daddr . meta l4proto . th dport map @all4
//	}
//	chain m-addr4-all-3 { meta mark set meta mark or 0x4000; goto addr4-all-3 }
//	chain port4-all-3 {}                                  # as above, with 0.0.0.0 instead of daddr
//	chain addr4-all-3-sticky-0a600001-6-80 {              # with affinity
//		dnat to ip saddr . ip daddr . meta l4proto . th dport map @affinity-0a600001-6-80
//		# as in addr4-all-3
//	}
//	chain remember {
//		ct original ip daddr . meta l4proto . ct original proto-dst vmap @sticky4
//		meta l4proto . ct original proto-dst vmap @sticky-port4
//	}
//	chain remember-10800-0a600001-6-80 {                  # affinity of 10800 s
//		update @affinity-0a600001-6-80 { ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst
//			timeout 3h : ip daddr . th dport }
//	}
//	chain input, forward, sent { type filter hook … priority filter - 5
//		ct state new jump refuse
//		ct state new ct status dnat jump remember         # in input only
//	}
//	chain refuse {
//		ip daddr . meta l4proto . th dport vmap @refused4
//		fib daddr type local ip daddr != 127.0.0.0/8 ip daddr 192.0.2.1 meta l4proto . th dport vmap @refused-port4
//		ip daddr @clusterips4 goto reject
//	}
//	chain postrouting { type nat hook postrouting priority srcnat - 1
//		ct status dnat jump remember
//		ip saddr . ip daddr @self4 snat to 10.88.0.1
//		meta mark and 0x4000 == 0 return
//		meta mark set meta mark and not 0x4000
//		oifname "hk<instance>*" snat to 10.88.0.1
//		masquerade
//	}
//
// The mark's bit is that of kube-proxy, so that others leave it alone. It is set on the first
// packet of a connection, on its way through the node only. 10.88.0.1 stands for the first address
// of the pod subnet, as in the instance's own table, whose chains come after these.
//
// A client's endpoint is remembered after the packet has been sent there, when both are in its
// headers. The choice itself can't be put into the map by a rule that nft 1.0.6 lists: it aborts
// where a value from a map is part of another key or value. The entries of endpoints that are gone
// are deleted by sweep. Each front has a map of its own, of 65,535 clients at most, so that who
// sends from many addresses to one Service takes no affinity from the clients of another.
//
// Without affinity, a chain depends on the number of its endpoints only. While a transaction is
// committed, a packet may find the old chain and the new elements, and no endpoint at its index.
// There is one at 0 then.
const (
	chainPrerouting  = "prerouting"
	chainOutput      = "output"
	chainPostrouting = "postrouting"
	chainInside      = "inside"
	chainOutside     = "outside"
	chainReject      = "reject"
	chainRefuse      = "refuse"
	chainRemember    = "remember"
	chainInput       = "input"
	chainForward     = "forward"
	chainSent        = "sent"
)

// layout is part of each rule's comment. A table with another layout is replaced.
const layout = "3"

const masqueradeBit = 0x4000

// dstNAT is IPS_DST_NAT.
const dstNAT = 1 << 5

const (
	reg1   = unix.NFT_REG_1
	reg32a = unix.NFT_REG32_00 // the first 4 bytes of reg1, and so on
)

// family is what differs between IPv4 and IPv6.
type family struct {
	proto    byte
	suffix   string
	src, dst uint32 // offsets in the header
	size     uint32 // of an address
	words    uint32 // registers of 4 bytes of an address
	address  nftables.SetDatatype
	original uint32 // NFT_CT_DST_IP or NFT_CT_DST_IP6
}

var families = []family{
	{unix.NFPROTO_IPV4, "4", 12, 16, 4, 1, nftables.TypeIPAddr, 20},
	{unix.NFPROTO_IPV6, "6", 8, 24, 16, 4, nftables.TypeIP6Addr, 22},
}

// affinityTimeout is the default of elements. Rules add them with their own.
const affinityTimeout = 3 * time.Hour

func sets() (out []nftable.Set) {
	proto, port := nftables.TypeInetProto, nftables.TypeInetService
	for _, f := range families {
		addr := f.address
		at, endpoint := []nftables.SetDatatype{addr, proto, port}, []nftables.SetDatatype{addr, port}
		add := func(s nftable.Set) {
			s.Name += f.suffix
			out = append(out, s)
		}
		for _, side := range []string{chainInside, chainOutside, "refused", "sticky"} {
			add(nftable.Set{Name: side, Key: at, Verdicts: true})
			add(nftable.Set{Name: side + "-port", Key: at[1:], Verdicts: true})
		}
		for _, scope := range []string{scopeAll, scopeOwn} {
			add(nftable.Set{Name: scope, Key: append([]nftables.SetDatatype{nftables.TypeMark}, at...), Data: endpoint})
		}
		add(nftable.Set{Name: "ranged", Key: at})
		add(nftable.Set{Name: "sources", Key: slices.Concat(at, []nftables.SetDatatype{addr}), Interval: true})
		add(nftable.Set{Name: "clusterips", Key: []nftables.SetDatatype{addr}})
		add(nftable.Set{Name: "self", Key: []nftables.SetDatatype{addr, addr}})
	}
	return out
}

const scopeAll, scopeOwn = "all", "own"

// affinitySet returns the map of the endpoints that clients of a front have affinity to.
func affinitySet(front string) nftable.Set {
	f := families[frontFamily(front)]
	at := []nftables.SetDatatype{f.address, nftables.TypeInetProto, nftables.TypeInetService}
	return nftable.Set{Name: "affinity-" + front, Key: append([]nftables.SetDatatype{f.address}, at...), Data: []nftables.SetDatatype{f.address, nftables.TypeInetService}, Timeout: affinityTimeout}
}

// frontName is how the names of chains and sets say which front they are of.
func frontName(k compile.Key) string {
	return fmt.Sprintf("%x-%d-%d", k.Addr.AsSlice(), k.Protocol, k.Port)
}

// frontFamily returns the index in families of a front, by its name.
func frontFamily(front string) int {
	if hex, _, _ := strings.Cut(front, "-"); len(hex) == int(2*families[0].size) {
		return 0
	}
	return 1
}

// target is a chain that there is while Services need it. It sends packets to endpoints, or
// remembers where they went.
type target struct {
	family int // index in families
	port   bool
	scope  string
	n      int
	sticky string // the name of the front, if it has affinity

	// remember, unless 0, is for how many seconds. The other fields but sticky are empty then.
	remember int
}

func (t target) chain() string {
	if t.remember > 0 {
		return fmt.Sprintf("%s-%d-%s", chainRemember, t.remember, t.sticky)
	}
	name := "addr"
	if t.port {
		name = "port"
	}
	name += families[t.family].suffix + "-" + t.scope + fmt.Sprintf("-%d", t.n)
	if t.sticky != "" {
		name += "-sticky-" + t.sticky
	}
	return name
}

// masqueraded is the name of the chain that also masquerades.
func masqueraded(chain string) string { return "m-" + chain }

// targetOf is the inverse of target.chain.
func targetOf(chain string) (t target, ok bool) {
	chain = strings.TrimPrefix(chain, "m-")
	if n, _ := fmt.Sscanf(chain, chainRemember+"-%d-%s", &t.remember, &t.sticky); n == 2 {
		return t, t.chain() == chain
	}
	for _, prefix := range []string{"addr", "port"} {
		for i, f := range families {
			rest, found := strings.CutPrefix(chain, prefix+f.suffix+"-")
			if !found {
				continue
			}
			rest, t.sticky, _ = strings.Cut(rest, "-sticky-")
			t.family, t.port = i, prefix == "port"
			t.scope = rest[:min(3, len(rest))]
			if n, _ := fmt.Sscanf(rest[len(t.scope):], "-%d", &t.n); n == 0 {
				return t, false
			}
			return t, t.chain() == chain
		}
	}
	return t, false
}

// match is a part of a rule: its expressions, see nftable.NewRule.
type match []any

func newRule(chain string, parts ...match) nftable.Rule {
	return nftable.NewRule(chain, layout, slices.Concat(parts...)...)
}

func (f family) is() match {
	return match{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, &expr.Cmp{Register: reg1, Data: []byte{f.proto}}}
}

func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size, DestRegister: register}
}

// port loads the protocol and the destination port.
func port(register uint32) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, destinationPort(register + 1)}
}

func destinationPort(register uint32) expr.Any {
	return &expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: register}
}

// at loads the destination's address, protocol and port from a register on. Of a port of the node,
// the address is 0.
func (f family) at(register uint32, ofNode bool) match {
	address := f.load(f.dst, register)
	if ofNode {
		address = &expr.Immediate{Register: register, Data: make([]byte, f.size)}
	}
	return append(match{address}, port(register+f.words)...)
}

func (f family) lookup(name string) expr.Any {
	return &expr.Lookup{SourceRegister: reg32a, SetName: name + f.suffix}
}

func (f family) verdict(name string) expr.Any {
	return &expr.Lookup{SourceRegister: reg32a, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: name + f.suffix}
}

func (f family) dnat(register uint32) expr.Any {
	return &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.proto), RegAddrMin: register, RegProtoMin: register + f.words}
}

func verdict(kind expr.VerdictKind, chain string) match {
	return match{&expr.Verdict{Kind: kind, Chain: chain}}
}

func setMark(bit bool) match {
	b := &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: nftable.Native(^uint32(masqueradeBit)), Xor: nftable.Native(0)}
	if bit {
		b.Xor = nftable.Native(masqueradeBit)
	}
	return match{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, b, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg1}}
}

func toThisNode() match {
	return match{&expr.Fib{Register: reg1, FlagDADDR: true, ResultADDRTYPE: true}, &expr.Cmp{Register: reg1, Data: nftable.Native(unix.RTN_LOCAL)}}
}

// notLoopback matches packets to another address than the node's loopback, which has no node ports.
func (f family) notLoopback() match {
	m := match{f.load(f.dst, reg1)}
	if f.proto == unix.NFPROTO_IPV4 {
		return append(m, &expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: []byte{255, 0, 0, 0}, Xor: make([]byte, 4)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{127, 0, 0, 0}})
	}
	return append(m, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: append(make([]byte, 15), 1)})
}

// toNodePorts matches packets to the node's addresses in each prefix, and loads the protocol and
// the destination port.
func (f family) toNodePorts(prefixes []netip.Prefix) (out []match) {
	for _, p := range prefixes {
		if p.Addr().BitLen() != int(8*f.size) {
			continue
		}
		m := slices.Concat(f.is(), toThisNode(), f.notLoopback())
		if p.Bits() > 0 {
			mask := net.CIDRMask(p.Bits(), p.Addr().BitLen())
			m = append(m, f.load(f.dst, reg1),
				&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: f.size, Mask: mask, Xor: make([]byte, f.size)},
				&expr.Cmp{Register: reg1, Data: p.Masked().Addr().AsSlice()})
		}
		out = append(out, append(m, port(reg32a)...))
	}
	return out
}

// originalAddress loads the address that the client knows.
func (f family) originalAddress(register uint32) any {
	a := nftable.Attributes{}.Number(unix.NFTA_CT_DREG, register).Number(unix.NFTA_CT_KEY, f.original).Bytes(unix.NFTA_CT_DIRECTION, []byte{0})
	return nftable.Encoded(nftable.Attributes{}.Text(unix.NFTA_EXPR_NAME, "ct").Nested(unix.NFTA_EXPR_DATA, a))
}

// originalPort loads the protocol and the port that the client knows.
func originalPort(register uint32) match {
	return match{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}, &expr.Ct{Key: expr.CtKeyPROTODST, Register: register + 1}}
}

func ctHas(key expr.CtKey, bit uint32) match {
	return match{
		&expr.Ct{Key: key, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: nftable.Native(bit), Xor: nftable.Native(0)},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: nftable.Native(0)},
	}
}

func (t target) rules() (out []nftable.Rule) {
	chain := t.chain()
	add := func(parts ...match) { out = append(out, newRule(chain, parts...)) }
	if t.remember > 0 {
		f := families[frontFamily(t.sticky)]
		endpoint := reg32a + 2*f.words + 2
		add(f.is(), match{f.load(f.src, reg32a), f.originalAddress(reg32a + f.words)}, originalPort(reg32a+2*f.words), match{
			f.load(f.dst, endpoint), destinationPort(endpoint + f.words),
			&expr.Dynset{
				SrcRegKey: reg32a, SrcRegData: endpoint, SetName: affinitySet(t.sticky).Name,
				Operation: unix.NFT_DYNSET_OP_UPDATE, Timeout: time.Duration(t.remember) * time.Second,
			},
		})
		return out
	}
	f := families[t.family]
	to := func(set string) match {
		return match{&expr.Lookup{SourceRegister: reg32a, DestRegister: reg32a, IsDestRegSet: true, SetName: set}, f.dnat(reg32a)}
	}
	if t.sticky != "" {
		add(f.is(), match{f.load(f.src, reg32a)}, f.at(reg32a+f.words, false), to(affinitySet(t.sticky).Name))
	}
	for _, n := range []int{t.n, 1} {
		add(f.is(), match{&expr.Numgen{Register: reg32a, Modulus: uint32(n), Type: unix.NFT_NG_RANDOM}}, f.at(reg32a+1, t.port), to(t.scope+f.suffix))
	}
	return out
}

func masqueradeRules(chain string) []nftable.Rule {
	return []nftable.Rule{newRule(masqueraded(chain), setMark(true), verdict(expr.VerdictGoto, chain))}
}

// fixedRules are those of the chains that there always are.
func (k *kernelTable) fixedRules(nodePorts []netip.Prefix) (out []nftable.Rule) {
	add := func(chain string, parts ...match) { out = append(out, newRule(chain, parts...)) }
	prefix := k.instance.HostLinkPrefix()
	bridge := append([]byte(k.instance.Bridge()), 0)
	link := func(key expr.MetaKey, name []byte) match {
		return match{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Register: reg1, Data: name}}
	}
	for _, name := range [][]byte{[]byte(prefix), bridge} {
		add(chainPrerouting, link(expr.MetaKeyIIFNAME, name), verdict(expr.VerdictGoto, chainInside))
	}
	add(chainPrerouting, verdict(expr.VerdictGoto, chainOutside))
	add(chainOutput, setMark(true))
	add(chainOutput, verdict(expr.VerdictJump, chainInside))
	add(chainOutput, setMark(false))
	for _, side := range []string{chainInside, chainOutside} {
		for _, f := range families {
			at := f.at(reg32a, false)
			add(side, f.is(), at, match{f.lookup("ranged"), f.load(f.src, reg32a+f.words+2),
				&expr.Lookup{SourceRegister: reg32a, SetName: "sources" + f.suffix, Invert: true}}, verdict(expr.VerdictDrop, ""))
			add(side, f.is(), at, match{f.verdict(side)})
			for _, m := range f.toNodePorts(nodePorts) {
				add(side, m, match{f.verdict(side + "-port")})
			}
		}
	}
	for _, hook := range []string{chainInput, chainForward, chainSent} {
		add(hook, ctHas(expr.CtKeySTATE, expr.CtStateBitNEW), verdict(expr.VerdictJump, chainRefuse))
	}
	translated := ctHas(expr.CtKeySTATUS, dstNAT)
	add(chainInput, ctHas(expr.CtKeySTATE, expr.CtStateBitNEW), translated, verdict(expr.VerdictJump, chainRemember))
	add(chainPostrouting, translated, verdict(expr.VerdictJump, chainRemember))
	for _, f := range families {
		add(chainRemember, f.is(), match{f.originalAddress(reg32a)}, originalPort(reg32a+f.words), match{f.verdict("sticky")})
		add(chainRemember, f.is(), originalPort(reg32a), match{f.verdict("sticky-port")})
	}
	for _, f := range families {
		add(chainRefuse, f.is(), f.at(reg32a, false), match{f.verdict("refused")})
		for _, m := range f.toNodePorts(nodePorts) {
			add(chainRefuse, m, match{f.verdict("refused-port")})
		}
		add(chainRefuse, f.is(), match{f.load(f.dst, reg1), f.lookup("clusterips")}, verdict(expr.VerdictGoto, chainReject))
	}
	const icmpx, portUnreachable = 2, 1
	add(chainReject, match{&expr.Reject{Type: icmpx, Code: portUnreachable}})

	for _, f := range families {
		self := match{f.load(f.src, reg32a), f.load(f.dst, reg32a+f.words), f.lookup("self")}
		add(chainPostrouting, f.is(), self, k.source(f))
	}
	add(chainPostrouting, match{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: nftable.Native(masqueradeBit), Xor: nftable.Native(0)},
		&expr.Cmp{Register: reg1, Data: nftable.Native(0)},
	}, verdict(expr.VerdictReturn, ""))
	add(chainPostrouting, setMark(false))
	for _, f := range families {
		for _, name := range [][]byte{[]byte(prefix), bridge} {
			add(chainPostrouting, link(expr.MetaKeyOIFNAME, name), f.is(), k.source(f))
		}
	}
	add(chainPostrouting, match{&expr.Masq{FullyRandom: true}})
	return out
}

// source makes the node the source of a packet to a pod of its own.
func (k *kernelTable) source(f family) match {
	for _, a := range k.as {
		if a.BitLen() == int(8*f.size) {
			return match{&expr.Immediate{Register: reg1, Data: a.AsSlice()}, &expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.proto), RegAddrMin: reg1}}
		}
	}
	return match{&expr.Masq{FullyRandom: true}}
}

// Each of these comes before the chain of the instance's own table, or of its policy's.
const beforeDestination, beforeSource, beforeFilter = -101, 99, -5

var hooks = map[string]*nftable.Hook{
	chainPrerouting:  {Kind: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: beforeDestination},
	chainOutput:      {Kind: "nat", Number: unix.NF_INET_LOCAL_OUT, Priority: beforeDestination},
	chainPostrouting: {Kind: "nat", Number: unix.NF_INET_POST_ROUTING, Priority: beforeSource},
	chainInput:       {Kind: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: beforeFilter},
	chainForward:     {Kind: "filter", Number: unix.NF_INET_FORWARD, Priority: beforeFilter},
	chainSent:        {Kind: "filter", Number: unix.NF_INET_LOCAL_OUT, Priority: beforeFilter},
}

var fixedChains = []string{
	chainInside, chainOutside, chainReject, chainRefuse, chainRemember, chainPrerouting, chainOutput, chainPostrouting, chainInput, chainForward, chainSent,
}
