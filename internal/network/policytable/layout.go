package policytable

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
	"github.com/huskd/husk/internal/pod"
)

// The table, as `nft list table` shows it; where there is a set for IPv4, there is another one for
// IPv6, with rules of its own:
//
//	map id4  { type ipv4_addr : classid }                 # identities of pods
//	map net4 { type ipv4_addr : classid; flags interval } # identities of other addresses
//	set self4   { type ipv4_addr . ipv4_addr }            # each local pod with itself
//	set strict4 { type ipv4_addr }                        # local pods that have a profile
//	set in-open4 out-open4 { type ipv4_addr }             # local pods that have none
//	map in-pod4 out-pod4 { type ipv4_addr : verdict }     # local pod : jump in-<profile>
//	map node-pod4 { type ipv4_addr : verdict }            # the same for what it sends to the node
//
//	chain forward { type filter hook forward priority filter - 1; policy accept;
//		ct state established,related accept
//		iifname "hk<instance>*" jump out
//		iifname "hk<instance>*" meta priority set none
//		oifname "hk<instance>*" jump in
//		oifname "hk<instance>*" meta priority set none
//	}
//	chain input { type filter hook input priority filter - 1; policy accept;
//		ct state established,related accept
//		ct state untracked meta l4proto ipv6-icmp accept  # neighbour discovery
//		iifname "hk<instance>*" jump node
//		iifname "hk<instance>*" meta priority set none
//	}
//	chain node {
//		…                                                 # the identity, as in out
//		ip saddr vmap @node-pod4
//	}
//	chain in {
//		ip daddr @strict4 tcp flags & (fin|syn|rst|ack) != syn ct state new drop
//		ip daddr @in-open4 return
//		meta priority set none
//		meta priority set ip saddr map @net4
//		meta priority set ip saddr map @id4
//		ip daddr vmap @in-pod4
//		meta priority ffff:ffff return                    # its profile allows it
//		counter drop                                      # a pod that isn't known
//	}
//	chain out {
//		ip saddr . ip daddr @self4 accept
//		…                                                 # as in, with saddr and daddr exchanged
//	}
//	chain in-<profile> {                                  # with the sets that it needs; elements count
//		# Where one of these matches: meta priority set ffff:ffff return
//		meta priority @in-<profile>-any                   # { type classid }
//		meta priority . meta l4proto @in-<profile>-proto
//		meta priority . meta l4proto . th dport @in-<profile>-port
//		meta priority . meta l4proto . th dport @in-<profile>-range
//		meta l4proto != { tcp, udp, sctp } meta priority @in-<profile>-other
//		meta nfproto . meta l4proto . th dport @in-<profile>-all-port
//		…                                                 # all addresses of a family, as for an identity
//		meta priority >= 8000:0 meta nfproto . meta l4proto . th dport @in-<profile>-pods-port
//		…                                                 # those of pods
//		limit rate 10/second log prefix "in-<profile>" group <instance>
//		counter drop
//	}
//
// The identity of the other end is in the packet's priority, because a concatenation needs it in a
// register and nft 1.0.6 can't list a map's lookup there. The kernel has set the priority from the
// packet's type of service just before, for its own use. It is changed for the first packet of a
// connection only.
//
// What a profile allows is marked, and what comes back without the mark is dropped. While a
// transaction is committed, the kernel looks up the elements of after it for packets that have the
// rules of before it, and by those a new profile's chain is empty.
//
// The flags are looked at before the open pods are let pass. When the conntrack entry of a
// connection is deleted, the kernel takes its next packet for a new connection's, even if it comes
// from the end that accepted the connection. So the packets of both directions must begin with SYN.
const (
	chainForward = "forward"
	chainInput   = "input"
	chainNode    = "node"
	chainIn      = "in"
	chainOut     = "out"
)

// layout is part of each rule's comment. A table with another layout is replaced.
const layout = "3"

// allowed is the priority of packets that a profile allows. It is no identity.
const allowed = math.MaxUint32

// logRate is how many denied packets of each profile are logged, in a second.
const logRate = 10

// wide is how many ports a range must have at least to be an element of its own. The kernel finds
// ranges more slowly than ports, and changes sets of ranges in time that grows with them.
const wide = 9

const (
	reg1   = unix.NFT_REG_1
	reg32a = unix.NFT_REG32_00 // the first 4 bytes of reg1, and so on
	reg32b = unix.NFT_REG32_01
	reg32c = unix.NFT_REG32_02
	reg32e = unix.NFT_REG32_04
)

// family is what differs between IPv4 and IPv6.
type family struct {
	proto    byte
	suffix   string
	src, dst uint32 // offsets in the header
	size     uint32 // of an address
	second   uint32 // the register after an address in reg1
	address  nftables.SetDatatype
}

var families = []family{
	{unix.NFPROTO_IPV4, "4", 12, 16, 4, reg32b, nftables.TypeIPAddr},
	{unix.NFPROTO_IPV6, "6", 8, 24, 16, reg32e, nftables.TypeIP6Addr},
}

// fixedSets are those that don't depend on profiles.
func fixedSets() (out []nftable.Set) {
	for _, f := range families {
		addr, identity := []nftables.SetDatatype{f.address}, []nftables.SetDatatype{nftables.TypeClassID}
		out = append(out,
			nftable.Set{Name: "id" + f.suffix, Key: addr, Data: identity},
			nftable.Set{Name: "net" + f.suffix, Key: addr, Data: identity, Interval: true},
			nftable.Set{Name: "self" + f.suffix, Key: []nftables.SetDatatype{f.address, f.address}},
			nftable.Set{Name: "strict" + f.suffix, Key: addr})
		for _, chain := range []string{chainIn, chainOut} {
			out = append(out, nftable.Set{Name: chain + "-open" + f.suffix, Key: addr})
		}
		for _, chain := range []string{chainIn, chainOut, chainNode} {
			out = append(out, nftable.Set{Name: chain + "-pod" + f.suffix, Key: addr, Verdicts: true})
		}
	}
	return out
}

// kind is that of a profile's set: what its elements allow, and whether they allow it to
// identities, to all addresses of a family, or to the pods among those.
type kind int

const (
	anything kind = iota
	port
	proto
	other
	portRange
	forAll
	forPods       = 2 * forAll
	kinds         = 3 * forAll
	forIdentities = anything
)

// what returns the kind for identities that allows the same.
func (k kind) what() kind { return k % forAll }

// whom returns forIdentities, forAll or forPods.
func (k kind) whom() kind { return k - k.what() }

func (k kind) String() string {
	return map[kind]string{forAll: "all-", forPods: "pods-"}[k.whom()] + [forAll]string{"any", "port", "proto", "other", "range"}[k.what()]
}

// groups are the identities that stand for more than one, and where they are in the kernel.
var groups = map[ruleset.Identity]struct {
	whom  kind
	proto byte
}{
	ruleset.AllIPv4:  {forAll, unix.NFPROTO_IPV4},
	ruleset.AllIPv6:  {forAll, unix.NFPROTO_IPV6},
	ruleset.PodsIPv4: {forPods, unix.NFPROTO_IPV4},
	ruleset.PodsIPv6: {forPods, unix.NFPROTO_IPV6},
}

func kindOf(m ruleset.Match) kind { return groups[m.Identity].whom + whatOf(m) }

func whatOf(m ruleset.Match) kind {
	switch {
	case m.Protocol == ruleset.Every:
		return anything
	case m.Protocol == ruleset.Other:
		return other
	case m.First == 0 && m.Last == 65535:
		return proto
	case int(m.Last)-int(m.First)+1 >= wide:
		return portRange
	}
	return port
}

// set returns the set of a profile's chain.
func (k kind) set(chain string) nftable.Set {
	all := []nftables.SetDatatype{nftables.TypeClassID, nftables.TypeInetProto, nftables.TypeInetService}
	if k.whom() != forIdentities {
		all[0] = nftables.TypeNFProto
	}
	fields := [forAll]int{anything: 1, port: 3, proto: 2, other: 1, portRange: 3}
	return nftable.Set{Name: chain + "-" + k.String(), Key: all[:fields[k.what()]], Interval: k.what() == portRange, Counted: true}
}

// rule returns the rule that looks the set up.
func (k kind) rule(chain string) nftable.Rule {
	var m []expr.Any
	who := expr.MetaKeyNFPROTO
	switch k.whom() {
	case forIdentities:
		who = expr.MetaKeyPRIORITY
	case forPods:
		m = append(m, &expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1},
			&expr.Byteorder{SourceRegister: reg1, DestRegister: reg1, Op: expr.ByteorderHton, Len: 4, Size: 4},
			&expr.Cmp{Op: expr.CmpOpGte, Register: reg1, Data: binary.BigEndian.AppendUint32(nil, uint32(ruleset.FirstPod))})
	}
	if k.what() == other {
		for _, p := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
			m = append(m, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, &expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{byte(p)}})
		}
	}
	s := k.set(chain)
	load := []expr.Any{
		&expr.Meta{Key: who, Register: reg32a},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg32b},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2, DestRegister: reg32c},
	}
	m = append(m, load[:len(s.Key)]...)
	m = append(append(m, &expr.Lookup{SourceRegister: reg32a, SetName: s.Name}), setPriority(allowed)...)
	return newRule(chain, append(m, &expr.Verdict{Kind: expr.VerdictReturn}))
}

func setPriority(n uint32) []expr.Any {
	return []expr.Any{&expr.Immediate{Register: reg1, Data: nftable.Native(n)}, &expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg1}}
}

func newRule(chain string, exprs []expr.Any) nftable.Rule {
	var parts []any
	for _, e := range exprs {
		parts = append(parts, e)
	}
	return nftable.NewRule(chain, layout, parts...)
}

func chainOf(d policy.Direction, id ruleset.ProfileID) string {
	if d == policy.Ingress {
		return chainIn + "-" + string(id)
	}
	return chainOut + "-" + string(id)
}

// profileOf is the inverse of chainOf.
func profileOf(chain string) (policy.Direction, ruleset.ProfileID, bool) {
	if id, ok := strings.CutPrefix(chain, chainIn+"-"); ok {
		return policy.Ingress, ruleset.ProfileID(id), true
	}
	id, ok := strings.CutPrefix(chain, chainOut+"-")
	return policy.Egress, ruleset.ProfileID(id), ok
}

// endRules are those of a profile's chain for what it doesn't allow.
func (k *kernelTable) endRules(chain string) []nftable.Rule {
	return []nftable.Rule{
		newRule(chain, []expr.Any{
			&expr.Limit{Type: expr.LimitTypePkts, Rate: logRate, Unit: expr.LimitTimeSecond, Burst: logRate},
			&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: logGroup(k.instance), Data: []byte(chain)},
		}),
		newRule(chain, []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}}),
	}
}

// logGroup is where the kernel logs what an instance's profiles deny.
func logGroup(i pod.Instance) uint16 {
	n, _ := strconv.ParseUint(string(i), 16, 16)
	return uint16(n)
}

// fixedRules are those of the chains that don't depend on profiles.
func (k *kernelTable) fixedRules() (out []nftable.Rule) {
	add := func(chain string, parts ...[]expr.Any) { out = append(out, newRule(chain, slices.Concat(parts...))) }
	verdict := func(k expr.VerdictKind, chain string) []expr.Any {
		return []expr.Any{&expr.Verdict{Kind: k, Chain: chain}}
	}
	link := func(key expr.MetaKey) []expr.Any {
		return []expr.Any{&expr.Meta{Key: key, Register: reg1}, &expr.Cmp{Register: reg1, Data: []byte(k.instance.HostLinkPrefix())}}
	}
	state := func(bits uint32) []expr.Any {
		return []expr.Any{
			&expr.Ct{Key: expr.CtKeySTATE, Register: reg1},
			&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 4, Mask: nftable.Native(bits), Xor: nftable.Native(0)},
			&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: nftable.Native(0)},
		}
	}
	none := setPriority(0)

	for _, hook := range []string{chainForward, chainInput} {
		add(hook, state(expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED), verdict(expr.VerdictAccept, ""))
	}
	add(chainInput, state(expr.CtStateBitUNTRACKED),
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1}, &expr.Cmp{Register: reg1, Data: []byte{unix.IPPROTO_ICMPV6}}}, verdict(expr.VerdictAccept, ""))
	for _, side := range []struct {
		hook  string
		key   expr.MetaKey
		chain string
	}{{chainForward, expr.MetaKeyIIFNAME, chainOut}, {chainForward, expr.MetaKeyOIFNAME, chainIn}, {chainInput, expr.MetaKeyIIFNAME, chainNode}} {
		add(side.hook, link(side.key), verdict(expr.VerdictJump, side.chain))
		add(side.hook, link(side.key), none)
	}

	for _, f := range families {
		add(chainOut, f.is(), []expr.Any{f.load(f.src, reg1), f.load(f.dst, f.second), &expr.Lookup{SourceRegister: reg1, SetName: "self" + f.suffix}}, verdict(expr.VerdictAccept, ""))
	}
	notSYN := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg1},
		&expr.Cmp{Register: reg1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{0x17}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg1, Data: []byte{0x02}},
	}
	for _, chain := range []string{chainIn, chainOut, chainNode} {
		ends := func(f family) (own, peer uint32) {
			if chain == chainIn {
				return f.dst, f.src
			}
			return f.src, f.dst
		}
		for _, f := range families {
			if chain == chainNode {
				break // without a profile, everything is allowed
			}
			own, _ := ends(f)
			add(chain, f.is(), []expr.Any{f.load(own, reg1), &expr.Lookup{SourceRegister: reg1, SetName: "strict" + f.suffix}}, notSYN, state(expr.CtStateBitNEW), verdict(expr.VerdictDrop, ""))
			add(chain, f.is(), []expr.Any{f.load(own, reg1), &expr.Lookup{SourceRegister: reg1, SetName: chain + "-open" + f.suffix}}, verdict(expr.VerdictReturn, ""))
		}
		add(chain, none)
		for _, f := range families {
			own, peer := ends(f)
			for _, set := range []string{"net", "id"} {
				// Without a match, the rule ends and the identity stays.
				add(chain, f.is(), []expr.Any{
					f.load(peer, reg1),
					&expr.Lookup{SourceRegister: reg1, DestRegister: reg1, IsDestRegSet: true, SetName: set + f.suffix},
					&expr.Meta{Key: expr.MetaKeyPRIORITY, SourceRegister: true, Register: reg1},
				})
			}
			add(chain, f.is(), []expr.Any{
				f.load(own, reg1),
				&expr.Lookup{SourceRegister: reg1, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true, SetName: chain + "-pod" + f.suffix},
			})
		}
		if chain == chainNode { // pods without a profile for that reach the node
			continue
		}
		add(chain, []expr.Any{&expr.Meta{Key: expr.MetaKeyPRIORITY, Register: reg1}, &expr.Cmp{Register: reg1, Data: nftable.Native(allowed)}}, verdict(expr.VerdictReturn, ""))
		add(chain, []expr.Any{&expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}})
	}
	return out
}

func (f family) is() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: reg1}, &expr.Cmp{Register: reg1, Data: []byte{f.proto}}}
}

func (f family) load(offset, register uint32) expr.Any {
	return &expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size, DestRegister: register}
}

const beforeFilter = -1

// hooks are where the kernel calls chains: for forwarded packets and for those to the node.
var hooks = map[string]*nftable.Hook{
	chainForward: {Kind: "filter", Number: unix.NF_INET_FORWARD, Priority: beforeFilter},
	chainInput:   {Kind: "filter", Number: unix.NF_INET_LOCAL_IN, Priority: beforeFilter},
}
