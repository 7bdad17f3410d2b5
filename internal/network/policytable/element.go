package policytable

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// form says what an element's last is for.
type form byte

const (
	single form = iota
	interval
	concatRange
)

// element is one of a set's. Its key has the bytes that the kernel has.
type element struct {
	key, last string
	form      form
	value     valueKind
	chain     string
	identity  uint32
}

type valueKind byte

const (
	noValue valueKind = iota
	identityValue
	chainValue
)

// Append appends the element to a list, with its value or without.
func (e element) Append(a nftable.Attributes, valued bool) nftable.Attributes {
	a, item := a.Begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
	if e.form == concatRange {
		a = a.Key(e.key, e.last)
	} else {
		a = a.Key(e.key, "")
	}
	switch {
	case !valued:
	case e.value == chainValue:
		a = a.Verdict(unix.NFTA_SET_ELEM_DATA, unix.NFT_JUMP, e.chain)
	case e.value == identityValue:
		a = a.Data(unix.NFTA_SET_ELEM_DATA, string(nftable.Native(e.identity)))
	}
	a = a.End(item)
	if e.form != interval {
		return a
	}
	// The end of an interval is an element of its own: the first address behind it, unless it ends
	// with the last address of all.
	behind := []byte(e.last)
	for i := len(behind) - 1; i >= 0; i-- {
		if behind[i]++; behind[i] != 0 {
			a, item = a.Begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
			a = a.Key(string(behind), "")
			return a.Number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END).End(item)
		}
	}
	return a
}

// elementKey identifies an element in its set.
type elementKey struct{ key, last string }

// contents are the elements of sets by their names.
type contents map[string]map[elementKey]element

func (c contents) add(set string, e element) {
	if c[set] == nil {
		c[set] = map[elementKey]element{}
	}
	c[set][elementKey{e.key, e.last}] = e
}

// yield takes the elements that something in a ruleset stands for.
type yield func(set string, e element)

func suffix(addr netip.Addr) string {
	if addr.Is4() {
		return "4"
	}
	return "6"
}

func raw(addr netip.Addr) string { return string(addr.AsSlice()) }

func identityElement(addr netip.Addr, id ruleset.Identity, add yield) {
	add("id"+suffix(addr), element{key: raw(addr), value: identityValue, identity: uint32(id)})
}

func rangeElement(r ruleset.Range, add yield) {
	add("net"+suffix(r.First), element{key: raw(r.First), last: raw(r.Last), form: interval, value: identityValue, identity: uint32(r.Identity)})
}

func podElements(p ruleset.Pod, add yield) {
	own, s := element{key: raw(p.Addr)}, suffix(p.Addr)
	add("self"+s, element{key: own.key + own.key})
	if p.Ingress != "" || p.Egress != "" {
		add("strict"+s, own)
	}
	for direction, id := range map[policy.Direction]ruleset.ProfileID{policy.Ingress: p.Ingress, policy.Egress: p.Egress} {
		chain := chainOf(direction, "")
		if id == "" {
			add(chain+"open"+s, own)
			continue
		}
		add(chain+"pod"+s, element{key: own.key, value: chainValue, chain: chainOf(direction, id)})
	}
	if p.Node != "" {
		add(chainNode+"-pod"+s, element{key: own.key, value: chainValue, chain: chainOf(policy.Egress, p.Node)})
	}
}

func matchElements(chain string, m ruleset.Match, add yield) {
	k, s := kindOf(m), kindOf(m).set(chain)
	key := nftable.Native(uint32(m.Identity))
	if g, ok := groups[m.Identity]; ok {
		key = []byte{g.proto, 0, 0, 0}[:min(4, s.KeySize())]
	}
	if len(s.Key) > 1 {
		key = append(key, byte(m.Protocol), 0, 0, 0)
	}
	numbered := func(n uint16) string { return string(append(binary.BigEndian.AppendUint16(key[:8:8], n), 0, 0)) }
	switch k.what() {
	case port:
		for n := int(m.First); n <= int(m.Last); n++ {
			add(s.Name, element{key: numbered(uint16(n))})
		}
	case portRange:
		add(s.Name, element{key: numbered(m.First), last: numbered(m.Last), form: concatRange})
	default:
		add(s.Name, element{key: string(key)})
	}
}

// elements yields all elements of a ruleset.
func elements(r *ruleset.Ruleset, add yield) {
	for addr, id := range r.Identities {
		identityElement(addr, id, add)
	}
	for _, n := range r.Ranges {
		rangeElement(n, add)
	}
	for _, p := range r.Pods {
		podElements(p, add)
	}
	for _, p := range r.Profiles {
		for m := range p.Allow {
			matchElements(chainOf(p.Direction, p.ID), m, add)
		}
	}
}

func contentsOf(r *ruleset.Ruleset) contents {
	c := contents{}
	elements(r, c.add)
	return c
}

// rulesetOf is the inverse of contentsOf. Ports that were in one match may be in several.
func rulesetOf(c contents, chains []string) *ruleset.Ruleset {
	r := ruleset.New()
	for _, s := range []string{"4", "6"} {
		for _, e := range c["id"+s] {
			r.Identities[address(e.key)] = ruleset.Identity(e.identity)
		}
		for _, e := range c["net"+s] {
			r.Ranges[address(e.key)] = ruleset.Range{First: address(e.key), Last: address(e.last), Identity: ruleset.Identity(e.identity)}
		}
		// A pod that is in one direction's sets only was changed by hand.
		for _, set := range []string{"in-open", "out-open", "in-pod", "out-pod", "node-pod"} {
			for _, e := range c[set+s] {
				addr := address(e.key)
				p := r.Pods[addr]
				p.Addr = addr
				switch d, id, _ := profileOf(e.chain); {
				case e.chain == "":
				case set == "node-pod":
					p.Node = id
				case d == policy.Ingress:
					p.Ingress = id
				default:
					p.Egress = id
				}
				r.Pods[addr] = p
			}
		}
	}
	for _, chain := range chains {
		d, id, _ := profileOf(chain)
		p := ruleset.Profile{ID: id, Direction: d, Allow: map[ruleset.Match]struct{}{}}
		for k := range kinds {
			for _, e := range c[k.set(chain).Name] {
				p.Allow[k.match(e)] = struct{}{}
			}
		}
		r.Profiles[id] = p
	}
	return r
}

func (k kind) match(e element) ruleset.Match {
	var m ruleset.Match
	if k.whom() == forIdentities {
		m.Identity = ruleset.Identity(binary.NativeEndian.Uint32([]byte(e.key)))
	}
	for id, g := range groups {
		if g.whom == k.whom() && g.proto == e.key[0] {
			m.Identity = id
		}
	}
	number := func(key string) uint16 { return binary.BigEndian.Uint16([]byte(key[8:])) }
	if len(e.key) > 4 {
		m.Protocol = ruleset.Protocol(e.key[4])
	}
	switch k.what() {
	case anything:
		m.Protocol = ruleset.Every
	case other:
		m.Protocol = ruleset.Other
	case proto:
		m.Last = 65535
	case port:
		m.First, m.Last = number(e.key), number(e.key)
	case portRange:
		m.First, m.Last = number(e.key), number(e.last)
	}
	return m
}

func address(key string) netip.Addr {
	addr, _ := netip.AddrFromSlice([]byte(key))
	return addr
}

// difference returns the elements to delete from, and to add to, what there is.
func difference(is, wanted contents) (remove, add map[string][]element) {
	remove, add = map[string][]element{}, map[string][]element{}
	for set, elements := range is {
		for k, e := range elements {
			if w, ok := wanted[set][k]; !ok || w != e {
				remove[set] = append(remove[set], e)
			}
		}
	}
	for set, elements := range wanted {
		for k, e := range elements {
			if g, ok := is[set][k]; !ok || g != e {
				add[set] = append(add[set], e)
			}
		}
	}
	return remove, add
}
