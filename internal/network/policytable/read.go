package policytable

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
)

// found is what the kernel has.
type found struct {
	nftable.State
	sets     map[string]bool
	chains   map[string][]nftable.FoundRule
	contents contents
}

// read returns all that the kernel has.
func (k *kernelTable) read() (*found, error) {
	f := &found{sets: map[string]bool{}, contents: contents{}}
	var err error
	if f.State, err = k.Find(); err != nil || !f.Exists {
		return f, err
	}
	if f.chains, err = k.Chains(); err != nil {
		return nil, err
	}
	_, err = nlsock.List(k.Conn, nftable.Request(unix.NFT_MSG_GETSET, 0, nftable.Attributes{}.Text(unix.NFTA_SET_TABLE, k.Name)), func(data []byte) (struct{}, bool) {
		for typ, value := range nftable.Fields(data) {
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

func (k *kernelTable) readElements(f *found, name string) error {
	list, err := nftable.Elements(&k.Table, name, parseElement)
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
			e.key = nftable.ParseData(value)
		case nftable.SetElemKeyEnd:
			e.last, e.form = nftable.ParseData(value), concatRange
		case unix.NFTA_SET_ELEM_FLAGS:
			e.end = nftable.ParseNumber(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.packets, _ = nftable.ParseCounter(value)
		case unix.NFTA_SET_ELEM_DATA:
			if data := nftable.ParseData(value); data != "" {
				e.value, e.identity = identityValue, nlsock.Uint32([]byte(data))
			} else {
				e.value, e.chain = chainValue, nftable.ParseVerdict(value)
			}
		}
	}
	return e
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
	if why := k.Broken(f.State); why != "" {
		return why
	}
	for _, s := range fixedSets() {
		if !f.sets[s.Name] {
			return "set " + s.Name + " is missing"
		}
	}
	wanted := map[string][]string{}
	for _, r := range k.fixedRules() {
		wanted[r.Chain] = append(wanted[r.Chain], r.Comment)
	}
	for chain, comments := range wanted {
		if !slices.Equal(nftable.Comments(f.chains[chain]), comments) {
			return "the rules of chain " + chain + " were changed"
		}
	}
	for _, chain := range f.profiles() {
		is := nftable.Comments(f.chains[chain])
		slices.Sort(is)
		var should []string
		for kind := range f.kindsOf(chain) {
			should = append(should, kind.rule(chain).Comment)
		}
		for _, r := range k.endRules(chain) {
			should = append(should, r.Comment)
		}
		slices.Sort(should)
		end := f.chains[chain]
		if !slices.Equal(is, should) || !end[len(end)-1].Counted {
			return "the rules of chain " + chain + " were changed"
		}
	}
	return ""
}

// kindsOf are the kinds of sets that a profile's chain has.
func (f *found) kindsOf(chain string) map[kind]bool {
	has := map[kind]bool{}
	for k := range kinds {
		if f.sets[k.set(chain).Name] {
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
