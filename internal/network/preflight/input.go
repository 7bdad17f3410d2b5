package preflight

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/xt"
	"golang.org/x/sys/unix"
)

// Packet is the first one of a flow that another node sends to this one.
type Packet struct {
	Name     string // for people: "UDP port 8472"
	Link     string // by which it comes
	From, To netip.Addr
	Protocol uint8
	Port     uint16 // its destination; 0 if the protocol has no ports
}

// DroppedPacket is a Packet that a rule set of this node drops.
type DroppedPacket struct {
	Packet
	Where string // the rule set, as in BlockingFirewall
	Fix   string // the command that lets it pass, and changes nothing else
}

// DroppedInput returns which of the packets are certainly dropped on their way into this node. It
// looks at nftables, which includes iptables-nft. A rule that it can't evaluate may let a packet
// pass.
func DroppedInput(packets []Packet) (out []DroppedPacket, err error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	chains, err := conn.ListChains()
	if err != nil {
		return nil, fmt.Errorf("list nftables chains: %w", err)
	}
	r := ruleSets{conn: conn, rules: map[string][]*nftables.Rule{}}
	for _, p := range packets {
		for _, c := range chains {
			family, routed := families[c.Table.Family]
			if !routed || c.Table.Family == nftables.TableFamilyIPv4 && !p.To.Is4() || c.Table.Family == nftables.TableFamilyIPv6 && p.To.Is4() ||
				c.Type != nftables.ChainTypeFilter || c.Hooknum == nil || *c.Hooknum != *nftables.ChainHookInput && *c.Hooknum != *nftables.ChainHookPrerouting {
				continue
			}
			verdict, err := r.evaluate(c.Table, c.Name, p, 0)
			if err != nil {
				return out, err
			}
			if verdict == passesOn && c.Policy != nil && *c.Policy == nftables.ChainPolicyDrop {
				verdict = drops
			}
			if verdict == drops {
				out = append(out, DroppedPacket{p, fmt.Sprintf("nftables table %s %s, chain %s", family, c.Table.Name, c.Name),
					fmt.Sprintf("nft insert rule %s %s %s %s accept", family, c.Table.Name, c.Name, p.match())})
			}
		}
	}
	return out, nil
}

// match returns the condition of a rule for packets of the flow's kind.
func (p Packet) match() string {
	switch p.Protocol {
	case unix.IPPROTO_UDP:
		return fmt.Sprintf("udp dport %d", p.Port)
	case unix.IPPROTO_TCP:
		return fmt.Sprintf("tcp dport %d", p.Port)
	}
	return fmt.Sprintf("meta l4proto %d", p.Protocol)
}

// verdict is what a chain does with a packet.
type verdict int

const (
	passesOn verdict = iota // to the next rule, or to the policy
	letsPass
	drops
	unknown // it may be accepted
)

// ruleSets evaluates chains.
type ruleSets struct {
	conn  *nftables.Conn
	rules map[string][]*nftables.Rule // by table and chain
}

// maxDepth is the kernel's limit of jumps.
const maxDepth = 16

func (r ruleSets) evaluate(t *nftables.Table, chain string, p Packet, depth int) (verdict, error) {
	key := fmt.Sprint(t.Family, t.Name, " ", chain)
	rules, read := r.rules[key]
	if !read {
		var err error
		if rules, err = r.conn.GetRules(t, &nftables.Chain{Table: t, Name: chain}); err != nil {
			// The library can't decode every rule, such as those with "ct original".
			return unknown, nil
		}
		r.rules[key] = rules
	}
	for _, rule := range rules {
		e := evaluation{r: r, table: t, p: p, matches: yes}
		decision, err := e.run(rule.Exprs)
		if err != nil {
			return unknown, err
		}
		if decision == nil || e.matches == no {
			continue
		}
		result := passesOn
		switch decision.Kind {
		case expr.VerdictAccept:
			result = letsPass
		case expr.VerdictDrop:
			result = drops
		case expr.VerdictJump, expr.VerdictGoto:
			if depth == maxDepth {
				return unknown, nil
			}
			if result, err = r.evaluate(t, decision.Chain, p, depth+1); err != nil {
				return unknown, err
			}
		case expr.VerdictContinue:
			continue
		case expr.VerdictReturn:
		default:
			result = unknown
		}
		ends := result != passesOn || decision.Kind == expr.VerdictReturn || decision.Kind == expr.VerdictGoto
		switch {
		case e.matches == yes && ends:
			return result, nil
		case e.matches == maybe && ends && result != drops:
			return unknown, nil
		}
	}
	return passesOn, nil
}

// condition is whether a rule matches.
type condition int

const (
	yes condition = iota
	no
	maybe
)

// evaluation is that of one rule for one packet.
type evaluation struct {
	r       ruleSets
	table   *nftables.Table
	p       Packet
	matches condition
	// registers are 20 slots of 4 bytes; a slot is nil if its content isn't known.
	registers [20][]byte
}

// slot returns the first slot of a register: those of 16 bytes are 1 to 4, those of 4 bytes begin
// with 8 and share the space.
func slot(register uint32) int {
	if register >= unix.NFT_REG32_00 {
		return int(register - unix.NFT_REG32_00)
	}
	return int(register-1) * 4
}

func (e *evaluation) set(register uint32, value []byte, size int) {
	if value != nil {
		size = len(value)
	}
	for i := range (size + 3) / 4 {
		at := slot(register) + i
		if at < 0 || at >= len(e.registers) {
			return
		}
		e.registers[at] = nil
		if value != nil {
			word := make([]byte, 4)
			copy(word, value[4*i:])
			e.registers[at] = word
		}
	}
}

// get returns a register's content, nil if it isn't known.
func (e *evaluation) get(register uint32, size int) (out []byte) {
	for i := 0; i < size; i += 4 {
		at := slot(register) + i/4
		if at < 0 || at >= len(e.registers) || e.registers[at] == nil {
			return nil
		}
		out = append(out, e.registers[at]...)
	}
	return out[:size]
}

// require adds a condition.
func (e *evaluation) require(holds bool) {
	if !holds {
		e.matches = no
	}
}

func (e *evaluation) doubt() {
	if e.matches == yes {
		e.matches = maybe
	}
}

// run evaluates the expressions of a rule, and returns its verdict, nil if it has none.
func (e *evaluation) run(exprs []expr.Any) (*expr.Verdict, error) {
	for _, x := range exprs {
		if e.matches == no {
			return nil, nil
		}
		switch x := x.(type) {
		case *expr.Meta:
			if !x.SourceRegister {
				e.set(x.Register, e.p.meta(x.Key), unix.IFNAMSIZ)
			}
		case *expr.Payload:
			if x.OperationType == expr.PayloadLoad {
				e.set(x.DestRegister, e.p.payload(x), int(x.Len))
			}
		case *expr.Ct:
			if !x.SourceRegister {
				var state []byte
				if x.Key == expr.CtKeySTATE {
					state = binary.NativeEndian.AppendUint32(nil, expr.CtStateBitNEW)
				}
				e.set(x.Register, state, 16)
			}
		case *expr.Bitwise:
			value := e.get(x.SourceRegister, int(x.Len))
			for i := range value {
				value[i] = value[i]&x.Mask[i] ^ x.Xor[i]
			}
			e.set(x.DestRegister, value, int(x.Len))
		case *expr.Cmp:
			e.compare(x.Op, e.get(x.Register, len(x.Data)), x.Data)
		case *expr.Range:
			if value := e.get(x.Register, len(x.FromData)); value == nil {
				e.doubt()
			} else {
				e.require((bytes.Compare(value, x.FromData) >= 0 && bytes.Compare(value, x.ToData) <= 0) == (x.Op == expr.CmpOpEq))
			}
		case *expr.Lookup:
			if v, err := e.lookup(x); v != nil || err != nil {
				return v, err
			}
		case *expr.Match:
			e.extension(x)
		case *expr.Verdict:
			return x, nil
		case *expr.Reject:
			return &expr.Verdict{Kind: expr.VerdictDrop}, nil
		case *expr.Target:
			if x.Name == "REJECT" {
				return &expr.Verdict{Kind: expr.VerdictDrop}, nil
			}
		case *expr.Counter, *expr.Objref, *expr.Log:
		default:
			e.doubt()
		}
	}
	return nil, nil
}

func (e *evaluation) compare(op expr.CmpOp, value, with []byte) {
	if value == nil {
		e.doubt()
		return
	}
	c := bytes.Compare(value, with)
	e.require(map[expr.CmpOp]bool{expr.CmpOpEq: c == 0, expr.CmpOpNeq: c != 0, expr.CmpOpLt: c < 0, expr.CmpOpLte: c <= 0, expr.CmpOpGt: c > 0, expr.CmpOpGte: c >= 0}[op])
}

// lookup looks a value up in a set, or in a map of verdicts.
func (e *evaluation) lookup(x *expr.Lookup) (*expr.Verdict, error) {
	set, err := e.r.conn.GetSetByName(e.table, x.SetName)
	if err != nil {
		return nil, fmt.Errorf("read nftables set %s: %w", x.SetName, err)
	}
	elements, err := e.r.conn.GetSetElements(set)
	if err != nil {
		return nil, fmt.Errorf("read nftables set %s: %w", x.SetName, err)
	}
	if len(elements) == 0 {
		e.require(x.Invert)
		return nil, nil
	}
	value := e.get(x.SourceRegister, len(elements[0].Key))
	if value == nil || set.IsMap && !slices.ContainsFunc(elements, func(s nftables.SetElement) bool { return s.VerdictData != nil }) {
		e.doubt()
		return nil, nil
	}
	// The last boundary that isn't behind the value counts.
	slices.SortFunc(elements, func(a, b nftables.SetElement) int { return bytes.Compare(a.Key, b.Key) })
	var found *nftables.SetElement
	for i := range elements {
		s := &elements[i]
		switch {
		case s.KeyEnd != nil:
			if bytes.Compare(value, s.Key) >= 0 && bytes.Compare(value, s.KeyEnd) <= 0 {
				e.doubt() // each field has an interval of its own
			}
		case bytes.Equal(s.Key, value) && !s.IntervalEnd, set.Interval && bytes.Compare(s.Key, value) < 0 && !s.IntervalEnd:
			found = s
		case set.Interval && s.IntervalEnd && bytes.Compare(s.Key, value) <= 0:
			found = nil
		}
	}
	e.require((found != nil) != x.Invert)
	if found != nil && set.IsMap {
		return found.VerdictData, nil
	}
	return nil, nil
}

// extension evaluates the extensions of iptables that most rules about ports and connections have.
func (e *evaluation) extension(x *expr.Match) {
	within := func(ports [2]uint16, inverted bool) {
		e.require(e.p.Port >= ports[0] && e.p.Port <= ports[1] != inverted)
	}
	state := func(mask uint16, b xt.ConntrackMtinfoBase) {
		if b.MatchFlags != uint16(xt.ConntrackState) && b.MatchFlags != uint16(xt.ConntrackState|xt.ConntrackStateAlias) {
			e.doubt()
			return
		}
		e.require((mask&uint16(expr.CtStateBitNEW) != 0) != (b.InvertFlags&uint16(xt.ConntrackState) != 0))
	}
	switch info := x.Info.(type) {
	case *xt.Udp:
		e.require(e.p.Protocol == unix.IPPROTO_UDP)
		within(info.DstPorts, info.InvFlags&xt.UdpInvDestPorts != 0)
	case *xt.Tcp:
		e.require(e.p.Protocol == unix.IPPROTO_TCP)
		within(info.DstPorts, info.InvFlags&xt.TcpInvDestPorts != 0)
	case *xt.ConntrackMtinfo1:
		state(uint16(info.StateMask), info.ConntrackMtinfoBase)
	case *xt.ConntrackMtinfo2:
		state(info.StateMask, info.ConntrackMtinfoBase)
	case *xt.ConntrackMtinfo3:
		state(info.StateMask, info.ConntrackMtinfoBase)
	case *xt.Comment:
	default:
		e.doubt()
	}
}

// meta returns what is known of a packet besides its content.
func (p Packet) meta(key expr.MetaKey) []byte {
	switch key {
	case expr.MetaKeyIIFNAME:
		return append([]byte(p.Link), make([]byte, unix.IFNAMSIZ-len(p.Link))...)
	case expr.MetaKeyIIF:
		index := ^uint32(0) // no link's
		if l, err := net.InterfaceByName(p.Link); err == nil {
			index = uint32(l.Index)
		}
		return binary.NativeEndian.AppendUint32(nil, index)
	case expr.MetaKeyL4PROTO:
		return []byte{p.Protocol}
	case expr.MetaKeyNFPROTO:
		return []byte{map[bool]byte{true: unix.NFPROTO_IPV4, false: unix.NFPROTO_IPV6}[p.To.Is4()]}
	case expr.MetaKeyPROTOCOL:
		return binary.BigEndian.AppendUint16(nil, map[bool]uint16{true: unix.ETH_P_IP, false: unix.ETH_P_IPV6}[p.To.Is4()])
	}
	return nil
}

// payload returns what is known of a packet's headers.
func (p Packet) payload(x *expr.Payload) []byte {
	field := func(base expr.PayloadBase, offset int, value []byte) []byte {
		at := int(x.Offset) - offset
		if x.Base != base || at < 0 || at+int(x.Len) > len(value) {
			return nil
		}
		return slices.Clone(value[at : at+int(x.Len)])
	}
	source, protocol := 12, 9
	if !p.To.Is4() {
		source, protocol = 8, 6
	}
	for _, value := range [][]byte{
		field(expr.PayloadBaseNetworkHeader, source, slices.Concat(p.From.AsSlice(), p.To.AsSlice())),
		field(expr.PayloadBaseNetworkHeader, protocol, []byte{p.Protocol}),
		field(expr.PayloadBaseTransportHeader, 2, binary.BigEndian.AppendUint16(nil, p.Port)),
	} {
		if value != nil && (x.Base != expr.PayloadBaseTransportHeader || p.Port != 0) {
			return value
		}
	}
	return nil
}

// String returns the finding as one line.
func (d DroppedPacket) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s drops %s from other nodes", d.Where, d.Name))
}
