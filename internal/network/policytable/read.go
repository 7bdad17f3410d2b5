package policytable

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// found is what the kernel has.
type found struct {
	exists   bool
	flags    uint32
	sets     map[string]bool
	chains   map[string][]foundRule
	contents contents
}

type foundRule struct {
	comment string
	counted bool
	packets uint64
}

// find returns the table without its chains and sets.
func (k *kernelTable) find() (*found, error) {
	f := &found{sets: map[string]bool{}, chains: map[string][]foundRule{}, contents: contents{}}
	get := k.conn.Do(request(unix.NFT_MSG_GETTABLE, 0, attributes{}.text(unix.NFTA_TABLE_NAME, k.name)))[0]
	if errors.Is(get.Err, unix.ENOENT) {
		return f, nil
	}
	if get.Err != nil {
		return nil, get.Err
	}
	f.exists = true
	for typ, value := range fields(get.Data) {
		if typ == unix.NFTA_TABLE_FLAGS {
			f.flags = number(value)
		}
	}
	return f, nil
}

// read returns all that the kernel has.
func (k *kernelTable) read() (*found, error) {
	f, err := k.find()
	if err != nil || !f.exists {
		return f, err
	}
	_, err = nlsock.List(k.conn, request(unix.NFT_MSG_GETCHAIN, 0, nil), func(data []byte) (struct{}, bool) {
		var table, name string
		for typ, value := range fields(data) {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				table = unix.ByteSliceToString(value)
			case unix.NFTA_CHAIN_NAME:
				name = unix.ByteSliceToString(value)
			}
		}
		if table == k.name && f.chains[name] == nil {
			f.chains[name] = []foundRule{}
		}
		return struct{}{}, false
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	if err := k.readRules(f); err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	_, err = nlsock.List(k.conn, request(unix.NFT_MSG_GETSET, 0, attributes{}.text(unix.NFTA_SET_TABLE, k.name)), func(data []byte) (struct{}, bool) {
		for typ, value := range fields(data) {
			if typ == unix.NFTA_SET_NAME {
				f.sets[unix.ByteSliceToString(value)] = true
			}
		}
		return struct{}{}, false
	})
	if err != nil {
		return nil, fmt.Errorf("list sets: %w", err)
	}
	for name := range f.sets {
		if err := k.readElements(f, name); err != nil {
			return nil, fmt.Errorf("list set %s: %w", name, err)
		}
	}
	return f, nil
}

func (k *kernelTable) readRules(f *found) error {
	type chainRule struct {
		chain string
		foundRule
	}
	rules, err := nlsock.List(k.conn, request(unix.NFT_MSG_GETRULE, 0, attributes{}.text(unix.NFTA_RULE_TABLE, k.name)), func(data []byte) (chainRule, bool) {
		var r chainRule
		var table string
		for typ, value := range fields(data) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				table = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_CHAIN:
				r.chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				r.comment = comment(value)
			case unix.NFTA_RULE_EXPRESSIONS:
				r.packets, r.counted = ruleCounter(value)
			}
		}
		return r, table == k.name
	})
	for _, r := range rules {
		f.chains[r.chain] = append(f.chains[r.chain], r.foundRule)
	}
	return err
}

// comment returns the comment in a rule's user data.
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == ruleComment {
			return unix.ByteSliceToString(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

// ruleCounter returns the packets of a rule's counter, if it has one.
func ruleCounter(exprs []byte) (packets uint64, ok bool) {
	for _, expr := range nlsock.Attributes(exprs) {
		if packets, ok = counter(expr); ok {
			return packets, true
		}
	}
	return 0, false
}

// counter returns the packets of an expression, if it is a counter.
func counter(expr []byte) (packets uint64, ok bool) {
	const counterPackets = 2
	name := ""
	for typ, value := range nlsock.Attributes(expr) {
		if typ == unix.NFTA_EXPR_NAME {
			name = unix.ByteSliceToString(value)
		}
		if typ != unix.NFTA_EXPR_DATA || name != "counter" {
			continue
		}
		for typ, value := range nlsock.Attributes(value) {
			if typ == counterPackets && len(value) == 8 {
				return binary.BigEndian.Uint64(value), true
			}
		}
	}
	return 0, false
}

func (k *kernelTable) readElements(f *found, name string) error {
	list, err := k.listElements(name)
	if err != nil {
		return err
	}
	var ends []string
	var all []element
	for _, l := range list {
		if l.end {
			ends = append(ends, l.key)
		} else {
			all = append(all, l.element)
		}
	}
	slices.Sort(ends)
	f.contents[name] = make(map[elementKey]element, len(all))
	for _, e := range all {
		if strings.HasPrefix(name, "net") {
			e.form = interval
			at, _ := slices.BinarySearchFunc(ends, e.key, func(end, key string) int {
				if end > key {
					return 1
				}
				return -1
			})
			e.last = strings.Repeat("\xff", len(e.key))
			if at < len(ends) {
				e.last = before(ends[at])
			}
		}
		f.contents.add(name, e)
	}
	return nil
}

// listedElement is an item of a set's list.
type listedElement struct {
	element
	end     bool // of an interval
	packets uint64
}

func (k *kernelTable) listElements(set string) ([]listedElement, error) {
	req := request(unix.NFT_MSG_GETSETELEM, 0, attributes{}.text(unix.NFTA_SET_ELEM_LIST_TABLE, k.name).text(unix.NFTA_SET_ELEM_LIST_SET, set))
	// A list that changed while it was read is read again.
	parts, err := nlsock.List(k.conn, req, func(data []byte) (part []listedElement, _ bool) {
		for typ, value := range fields(data) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, item := range nlsock.Attributes(value) {
				part = append(part, parseElement(item))
			}
		}
		return part, true
	})
	return slices.Concat(parts...), err
}

// before returns the key in front of another one.
func before(key string) string {
	b := []byte(key)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]--; b[i] != math.MaxUint8 {
			break
		}
	}
	return string(b)
}

func parseElement(item []byte) (e listedElement) {
	for typ, value := range nlsock.Attributes(item) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = dataValue(value)
		case setElemKeyEnd:
			e.last, e.form = dataValue(value), concatRange
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = number(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.packets, _ = counter(value)
		case unix.NFTA_SET_ELEM_DATA:
			for typ, value := range nlsock.Attributes(value) {
				if typ == unix.NFTA_DATA_VALUE {
					e.value, e.identity = identityValue, nlsock.Uint32(value)
					continue
				}
				e.value = chainValue
				for typ, value := range nlsock.Attributes(value) {
					if typ == unix.NFTA_VERDICT_CHAIN {
						e.chain = unix.ByteSliceToString(value)
					}
				}
			}
		}
	}
	return e
}

func dataValue(data []byte) string {
	for typ, value := range nlsock.Attributes(data) {
		if typ == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return ""
}

// fields are the attributes of a message.
func fields(data []byte) func(func(uint16, []byte) bool) {
	const header = 4 // struct nfgenmsg
	return nlsock.Attributes(data[min(header, len(data)):])
}

func number(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// profiles returns the chains of profiles that there are.
func (f *found) profiles() (chains []string) {
	for name := range f.chains {
		if _, _, ok := profileOf(name); ok {
			chains = append(chains, name)
		}
	}
	return chains
}

// broken says what is wrong with the sets, chains and rules, other than elements and profiles that
// are missing. It is empty if nothing is.
func (f *found) broken(k *kernelTable) string {
	// The kernel lists a table whose owner has ended without that flag.
	if f.flags|k.flags&tableOwner != k.flags {
		return fmt.Sprintf("the table's flags are %#x, not %#x", f.flags, k.flags)
	}
	for _, s := range fixedSets() {
		if !f.sets[s.name] {
			return "set " + s.name + " is missing"
		}
	}
	wanted := map[string][]string{}
	for _, r := range k.fixedRules() {
		wanted[r.chain] = append(wanted[r.chain], r.comment)
	}
	for chain, comments := range wanted {
		if !slices.Equal(f.comments(chain), comments) {
			return "the rules of chain " + chain + " were changed"
		}
	}
	for _, chain := range f.profiles() {
		is := f.comments(chain)
		slices.Sort(is)
		var should []string
		for kind := range f.kindsOf(chain) {
			should = append(should, kind.rule(chain).comment)
		}
		for _, r := range k.endRules(chain) {
			should = append(should, r.comment)
		}
		slices.Sort(should)
		end := f.chains[chain]
		if !slices.Equal(is, should) || !end[len(end)-1].counted {
			return "the rules of chain " + chain + " were changed"
		}
	}
	return ""
}

func (f *found) comments(chain string) (out []string) {
	for _, r := range f.chains[chain] {
		out = append(out, r.comment)
	}
	return out
}

// kindsOf are the kinds of sets that a profile's chain has.
func (f *found) kindsOf(chain string) map[kind]bool {
	has := map[kind]bool{}
	for k := range kinds {
		if f.sets[k.set(chain).name] {
			has[k] = true
		}
	}
	return has
}

// describe describes how two contents differ, by up to limit elements.
func describe(is, wanted contents, limit int) (out []string) {
	remove, add := difference(is, wanted)
	for verb, bySet := range map[string]map[string][]element{"missing": add, "additional": remove} {
		for _, set := range slices.Sorted(maps.Keys(bySet)) {
			elements := bySet[set]
			slices.SortFunc(elements, func(a, b element) int { return cmp.Compare(a.key, b.key) })
			for _, e := range elements {
				if len(out) == limit {
					return append(out, "…")
				}
				out = append(out, fmt.Sprintf("%s: %s element %x", set, verb, e.key))
			}
		}
	}
	return out
}
