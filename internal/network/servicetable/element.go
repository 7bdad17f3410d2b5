package servicetable

import (
	"cmp"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
)

// element is one of a set's. Its key and value have the bytes that the kernel has.
type element struct {
	key, last string
	value     string
	verdict   string // the chain to go to, or dropped
}

// dropped is no chain's name.
const dropped = " drop"

// id tells an element of a set from the others.
func (e element) id() string { return e.key + e.last }

// Append appends the element to a list, with its value or without.
func (e element) Append(a nftable.Attributes, valued bool) nftable.Attributes {
	a, item := a.Begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
	a = a.Key(e.key, e.last)
	switch {
	case !valued:
	case e.verdict == dropped:
		const drop = 0 // NF_DROP of linux/netfilter.h
		a = a.Verdict(unix.NFTA_SET_ELEM_DATA, drop, "")
	case e.verdict != "":
		a = a.Verdict(unix.NFTA_SET_ELEM_DATA, unix.NFT_GOTO, e.verdict)
	case e.value != "":
		a = a.Data(unix.NFTA_SET_ELEM_DATA, e.value)
	}
	return a.End(item)
}

func parseElement(item []byte) (e element) {
	for typ, value := range nlsock.Attributes(item) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = nftable.ParseData(value)
		case nftable.SetElemKeyEnd:
			e.last = nftable.ParseData(value)
		case unix.NFTA_SET_ELEM_DATA:
			if e.value = nftable.ParseData(value); e.value == "" {
				e.verdict = cmp.Or(nftable.ParseVerdict(value), dropped)
			}
		}
	}
	return e
}

// contents are the elements of sets by their names and ids.
type contents map[string]map[string]element

func (c contents) add(set string, e element) {
	if c[set] == nil {
		c[set] = map[string]element{}
	}
	c[set][e.id()] = e
}

// yield takes the elements that something stands for.
type yield func(set string, e element)

func raw(a netip.Addr) string { return string(a.AsSlice()) }

// rawPort fills a register.
func rawPort(n uint16) string { return string(append(binary.BigEndian.AppendUint16(nil, n), 0, 0)) }

func parsePort(register string) uint16 { return binary.BigEndian.Uint16([]byte(register[:2])) }

func (f family) parseKey(at string) compile.Key {
	a, _ := netip.AddrFromSlice([]byte(at[:f.size]))
	return compile.Key{Addr: a, Protocol: service.Protocol(at[f.size]), Port: parsePort(at[f.size+4:])}
}

func (f family) parseEndpoint(value string) netip.AddrPort {
	a, _ := netip.AddrFromSlice([]byte(value[:f.size]))
	return netip.AddrPortFrom(a, parsePort(value[f.size:]))
}

func rawEndpoint(e netip.AddrPort) string { return raw(e.Addr()) + rawPort(e.Port()) }

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

func suffix(a netip.Addr) string { return families[familyOf(a)].suffix }

// frontElements yields the elements of a front, and the chains that it needs.
func frontElements(k compile.Key, f *compile.Front, add yield, need func(target, bool)) {
	s, ofNode := suffix(k.Addr), k.Addr.IsUnspecified()
	service4 := string([]byte{byte(k.Protocol), 0, 0, 0}) + rawPort(k.Port)
	at := raw(k.Addr) + service4
	key, port := at, ""
	if ofNode {
		key, port = service4, "-port"
	}
	refused, sticky := "", ""
	if f.Affinity > 0 {
		sticky = frontName(k)
	}
	for side, lead := range map[string]compile.Lead{chainInside: f.Inside, chainOutside: f.Outside} {
		switch lead.Verdict {
		case service.Forward:
			t := target{family: familyOf(k.Addr), port: ofNode, scope: scopeAll, n: len(f.Endpoints(lead)), sticky: sticky}
			if lead.Own {
				t.scope = scopeOwn
			}
			need(t, lead.Masquerade)
			chain := t.chain()
			if lead.Masquerade {
				chain = masqueraded(chain)
			}
			add(side+port+s, element{key: key, verdict: chain})
		case service.Reject:
			refused = chainReject
		default:
			refused = dropped
		}
	}
	if sticky != "" {
		t := target{remember: int(f.Affinity.Seconds()), sticky: sticky}
		need(t, false)
		add("sticky"+port+s, element{key: key, verdict: t.chain()})
	}
	if refused != "" {
		add("refused"+port+s, element{key: key, verdict: refused})
	}
	for scope, endpoints := range map[string][]netip.AddrPort{scopeAll: f.All, scopeOwn: f.Own} {
		for i, e := range endpoints {
			add(scope+s, element{key: string(nftable.Native(uint32(i))) + at, value: rawEndpoint(e)})
		}
	}
	if len(f.Sources) > 0 {
		add("ranged"+s, element{key: at})
		for _, p := range f.Sources {
			add("sources"+s, element{key: at + raw(p.Addr()), last: at + raw(last(p))})
		}
	}
}

// last returns the last address of a prefix.
func last(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func clusterIPElement(a netip.Addr, add yield) { add("clusterips"+suffix(a), element{key: raw(a)}) }

func localElement(a netip.Addr, add yield) { add("self"+suffix(a), element{key: raw(a) + raw(a)}) }

// difference returns the elements to delete from, and to add to, what there is. It takes what is
// wanted out of is.
func difference(is contents, wanted func(yield)) (remove, add map[string][]element) {
	remove, add = map[string][]element{}, map[string][]element{}
	wanted(func(set string, e element) {
		if is[set][e.id()] == e {
			delete(is[set], e.id())
		} else {
			add[set] = append(add[set], e)
		}
	})
	for set, elements := range is {
		for _, e := range elements {
			remove[set] = append(remove[set], e)
		}
	}
	return remove, add
}
