package policytable

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink/nl"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// change is what a transaction does.
type change struct {
	begin, end  []*nl.NetlinkRequest
	chains      map[string]map[kind]bool // what profiles' chains must have
	remove, add map[string][]element
	deleted     []string // chains of profiles
	unused      map[ruleset.ProfileID]ruleset.Profile
}

func newChange() *change {
	return &change{chains: map[string]map[kind]bool{}, remove: map[string][]element{}, add: map[string][]element{}, unused: map[ruleset.ProfileID]ruleset.Profile{}}
}

func (c *change) adds(set string, e element) { c.add[set] = append(c.add[set], e) }

func (c *change) removes(set string, e element) { c.remove[set] = append(c.remove[set], e) }

// commit makes a change in one transaction. If pods move to new profiles, those are made in a
// transaction before: during the transaction that makes a chain, packets find it empty and are
// dropped.
func (t *Table) commit(c *change) error {
	if first := t.takeProfiles(c); first != nil {
		if err := t.transact(first); err != nil {
			return err
		}
	}
	return t.transact(c)
}

// takeProfiles moves the new profiles of a change to another one, if the change moves pods.
func (t *Table) takeProfiles(c *change) *change {
	moves := slices.ContainsFunc(slices.Collect(maps.Keys(c.remove)), func(set string) bool { return podSets[set] })
	first := newChange()
	for chain, needed := range c.chains {
		if _, exists := t.chains[chain]; exists || !moves {
			continue
		}
		first.chains[chain] = needed
		for k := range kinds {
			if set := k.set(chain).Name; c.add[set] != nil {
				first.add[set] = c.add[set]
				delete(c.add, set)
			}
		}
	}
	if len(first.chains) == 0 {
		return nil
	}
	first.begin, c.begin = c.begin, nil
	return first
}

// podSets are the sets that say which profiles pods have.
var podSets = func() map[string]bool {
	out := map[string]bool{}
	for _, f := range families {
		for _, chain := range []string{chainIn, chainOut, chainNode} {
			out[chain+"-open"+f.suffix], out[chain+"-pod"+f.suffix] = true, true
		}
	}
	return out
}()

// transact makes a change in one transaction.
func (t *Table) transact(c *change) error {
	all := c.begin
	for chain, needed := range c.chains {
		has, exists := t.chains[chain]
		if !exists {
			all = append(all, t.kernel.NewChain(chain, nil))
		}
		for k := range kinds {
			if needed[k] && !has[k] {
				all = append(all, t.kernel.NewSet(k.set(chain)), t.kernel.PrependRule(k.rule(chain)))
			}
		}
		if !exists {
			for _, r := range t.kernel.endRules(chain) {
				all = append(all, t.kernel.AppendRule(r))
			}
		}
	}
	all = append(all, c.end...)
	all = append(all, nftable.DeleteElements(&t.kernel.Table, c.remove)...)
	all = append(all, nftable.AddElements(&t.kernel.Table, c.add)...)
	for _, chain := range c.deleted {
		all = append(all, t.kernel.DeleteChain(chain)...)
		for k := range t.chains[chain] {
			all = append(all, t.kernel.DeleteSet(k.set(chain).Name))
		}
	}
	if len(all) == 0 {
		return nil
	}
	crashpoint.Hit("policytable.commit")
	if err := t.kernel.Conn.Transact(all...); err != nil {
		return err
	}
	crashpoint.Hit("policytable.committed")
	for chain, needed := range c.chains {
		if t.chains[chain] == nil {
			t.chains[chain] = map[kind]bool{}
		}
		maps.Copy(t.chains[chain], needed)
	}
	for _, chain := range c.deleted {
		delete(t.chains, chain)
	}
	return nil
}

// changeOf returns what an update changes.
func (t *Table) changeOf(u *ruleset.Update) *change {
	c, r := newChange(), t.wanted
	for addr, id := range u.Identities {
		old, known := r.Identities[addr]
		if known && old == id {
			continue
		}
		if known {
			identityElement(addr, old, c.removes)
		}
		if id != ruleset.World {
			identityElement(addr, id, c.adds)
		}
	}
	for _, n := range u.RemoveRanges {
		if old, ok := r.Ranges[n.First]; ok {
			rangeElement(old, c.removes)
		}
	}
	for _, n := range u.AddRanges {
		rangeElement(n, c.adds)
	}
	pods := func(addr netip.Addr, p *ruleset.Pod) {
		is, wanted := contents{}, contents{}
		if old, ok := r.Pods[addr]; ok {
			podElements(old, is.add)
		}
		if p != nil {
			podElements(*p, wanted.add)
		}
		gone, fresh := difference(is, wanted)
		c.append(gone, fresh)
	}
	for _, p := range u.SetPods {
		pods(p.Addr, &p)
	}
	for _, addr := range u.RemovePods {
		pods(addr, nil)
	}
	t.changeProfiles(u, c)
	return c
}

// changeProfiles adds to c what an update changes in profiles.
func (t *Table) changeProfiles(u *ruleset.Update, c *change) {
	differ := func(chain string, old, now map[ruleset.Match]struct{}) {
		is, wanted := contents{}, contents{}
		for m := range old {
			matchElements(chain, m, is.add)
		}
		for m := range now {
			matchElements(chain, m, wanted.add)
			needs(c.chains, chain)[kindOf(m)] = true
		}
		gone, fresh := difference(is, wanted)
		c.append(gone, fresh)
	}
	for _, p := range u.AddProfiles {
		chain := chainOf(p.Direction, p.ID)
		needs(c.chains, chain)
		old := t.unused[p.ID].Allow
		if same, ok := t.wanted.Profiles[p.ID]; ok {
			old = same.Allow
		}
		differ(chain, old, p.Allow)
	}
	changed := map[ruleset.ProfileID]bool{}
	for id := range u.Allow {
		changed[id] = true
	}
	for id := range u.Disallow {
		changed[id] = true
	}
	for id := range changed {
		p, ok := t.wanted.Profiles[id]
		if !ok {
			continue
		}
		old, now := map[ruleset.Match]struct{}{}, map[ruleset.Match]struct{}{}
		for _, m := range u.Disallow[id] {
			if _, ok := p.Allow[m]; ok {
				old[m] = struct{}{}
			}
		}
		for _, m := range u.Allow[id] {
			if _, ok := p.Allow[m]; !ok {
				now[m] = struct{}{}
			} else {
				delete(old, m)
			}
		}
		differ(chainOf(p.Direction, id), old, now)
	}
	for _, id := range u.RemoveProfiles {
		if p, ok := t.wanted.Profiles[id]; ok {
			c.unused[id] = p
		}
	}
}

func needs(chains map[string]map[kind]bool, chain string) map[kind]bool {
	if chains[chain] == nil {
		chains[chain] = map[kind]bool{}
	}
	return chains[chain]
}

func (c *change) append(remove, add map[string][]element) {
	for set, elements := range remove {
		c.remove[set] = append(c.remove[set], elements...)
	}
	for set, elements := range add {
		c.add[set] = append(c.add[set], elements...)
	}
}
