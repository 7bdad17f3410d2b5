package servicetable

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/service/compile"
)

// forgets reports whether an update takes endpoints from clients that have affinity to them.
func (w *wanted) forgets(u *compile.Update) bool {
	for k, now := range u.Fronts {
		was := w.fronts[k]
		if was == nil || was.Affinity == 0 {
			continue
		}
		if now == nil || now.Affinity == 0 {
			return true
		}
		for _, e := range slices.Concat(was.All, was.Own) {
			if !now.Has(e) {
				return true
			}
		}
	}
	return false
}

// sweep deletes the entries of affinity whose endpoints are gone. A client that has one goes to
// another endpoint with its next connection.
func (t *Table) sweep() error {
	for front := range t.sticky {
		f, name := families[frontFamily(front)], affinitySet(front).Name
		all, err := nftable.Elements(&t.kernel.Table, name, parseElement)
		if err != nil && !isMissing(err) {
			return fmt.Errorf("list set %s: %w", name, err)
		}
		all = slices.DeleteFunc(all, func(e element) bool { return t.wanted.remembers(f, e) })
		for _, e := range all {
			requests := nftable.DeleteElements(&t.kernel.Table, map[string][]element{name: {e}})
			if err := t.kernel.Conn.Transact(requests...); err != nil && !isMissing(err) { // it has expired
				return fmt.Errorf("delete elements of set %s: %w", name, err)
			}
		}
	}
	return nil
}

// remembers reports whether an entry of affinity is as wanted.
func (w *wanted) remembers(f family, e element) bool {
	if len(e.key) != int(2*f.size+8) || len(e.value) != int(f.size+4) {
		return false
	}
	k := f.parseKey(e.key[f.size:])
	front := w.fronts[k]
	if front == nil {
		k.Addr, _ = netip.AddrFromSlice(make([]byte, f.size)) // a port of the node
		front = w.fronts[k]
	}
	return front != nil && front.Affinity > 0 && front.Has(f.parseEndpoint(e.value))
}
