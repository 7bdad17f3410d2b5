// Package servicetable leads the connections of Services to their endpoints, by an nftables table
// of its own, inet husk-<instance>-service. See layout.go for its chains and sets.
//
// The rules are constant: what belongs to Services is in maps, so a packet's way is as long with
// ten thousand Services as with one, and a change of endpoints is one of elements.
//
// The table outlives the process. On Linux 6.9 and later, it belongs to the socket that made it, so
// that others don't change it; the next process's socket takes it over.
package servicetable

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/service/compile"
	"github.com/huskd/husk/internal/pod"
)

// kernelTable is the kernel's table, and the socket that changes it.
type kernelTable struct {
	nftable.Table
	instance pod.Instance
	as       []netip.Addr
}

// Table is an instance's. Its methods may be called concurrently.
type Table struct {
	netns string

	ending sync.Mutex // held while connections are ended
	flows  *nlsock.Conn

	mu     sync.Mutex // Invariant: guards what follows.
	kernel kernelTable
	wanted wanted
	loaded bool
	// chains are those that the kernel has for endpoints, and sticky are the fronts for whose
	// affinity it has a map.
	chains, sticky map[string]bool
	// unsure is whether the kernel may have something else than what is wanted.
	unsure bool
	// unchecked is whether connections may be open that lead to endpoints that were gone before
	// now: when another process had the table, or others have changed it.
	unchecked bool
	// former are the endpoints that another process has left in the table, until they are checked.
	former map[compile.Ended]bool
}

// wanted is what the kernel should have.
type wanted struct {
	fronts            map[compile.Key]*compile.Front
	clusterIPs, local map[netip.Addr]bool
	nodePorts         []netip.Prefix
}

// Open returns the table of an instance in the network namespace at path; an empty path means the
// process's namespace. To pods of the node, masqueraded packets come from an address of as, one of
// each family that has one. Nothing in the kernel changes.
func Open(path string, instance pod.Instance, as []netip.Addr) (*Table, error) {
	t := &Table{netns: path, wanted: wanted{fronts: map[compile.Key]*compile.Front{}, clusterIPs: map[netip.Addr]bool{}, local: map[netip.Addr]bool{}}}
	t.kernel = kernelTable{nftable.Table{Name: instance.ServiceTable()}, instance, as}
	open := func() (err error) {
		if t.flows, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return t.kernel.Open()
	}
	inNode := open
	if path != "" {
		inNode = func() error { return netns.Do(path, open) }
	}
	if err := inNode(); err != nil {
		return nil, errors.Join(t.kernel.Wrap(err), t.Close())
	}
	return t, nil
}

// Close closes the sockets. The table stays.
func (t *Table) Close() error {
	err := t.kernel.Close()
	if t.flows != nil {
		err = errors.Join(err, t.flows.Close())
	}
	return err
}

func isMissing(err error) bool { return errors.Is(err, unix.ENOENT) }

// Apply makes an update of what was applied before, in one transaction. The first one is compared
// with what a former process has left, of which only differences change. If there is an error, the
// next Apply repairs the table. Without Services there is no table.
func (t *Table) Apply(u *compile.Update) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded || t.unsure || u.NodePorts != nil {
		t.wanted.apply(u)
		return t.kernel.Wrap(t.synchronize())
	}
	c, forgets := t.changeOf(u), t.wanted.forgets(u)
	t.wanted.apply(u)
	if t.wanted.empty() || t.commit(c) != nil {
		return t.kernel.Wrap(t.synchronize())
	}
	if forgets {
		return t.kernel.Wrap(t.sweep())
	}
	return nil
}

// Repair makes the kernel agree with what was applied.
func (t *Table) Repair() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded && !t.unsure {
		return nil
	}
	return t.kernel.Wrap(t.synchronize())
}

// Verify describes how the kernel differs from what was applied.
func (t *Table) Verify() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded {
		return nil, nil
	}
	f, err := t.kernel.read()
	if err != nil {
		return nil, t.kernel.Wrap(err)
	}
	if why := f.broken(&t.kernel, t.wanted.nodePorts); why != "" {
		return []string{why}, nil
	}
	c := &change{}
	c.compare(f.contents, &t.wanted)
	differing := map[string]bool{}
	for _, elements := range []map[string][]element{c.remove, c.add} {
		for set := range elements {
			differing[set] = true
		}
	}
	var out []string
	for _, set := range slices.Sorted(maps.Keys(differing)) {
		out = append(out, "elements of "+set+" differ")
	}
	return out, nil
}

// Teardown removes the table.
func (t *Table) Teardown() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.kernel.Wrap(t.teardown())
}

func (t *Table) teardown() error {
	s, err := t.kernel.Find()
	if err != nil || !s.Exists {
		return err
	}
	if err := t.kernel.Conn.Transact(append(t.kernel.Adopt(s), t.kernel.Delete())...); err != nil {
		return err
	}
	t.loaded = false
	return nil
}

func (w *wanted) empty() bool { return len(w.fronts)+len(w.clusterIPs)+len(w.local) == 0 }

func (w *wanted) apply(u *compile.Update) {
	if u.NodePorts != nil {
		w.nodePorts = u.NodePorts
	}
	for k, f := range u.Fronts {
		if w.fronts[k] = f; f == nil {
			delete(w.fronts, k)
		}
	}
	for to, from := range map[*map[netip.Addr]bool]map[netip.Addr]bool{&w.clusterIPs: u.ClusterIPs, &w.local: u.Local} {
		for a, present := range from {
			if (*to)[a] = true; !present {
				delete(*to, a)
			}
		}
	}
}

// change is what a transaction does.
type change struct {
	begin       []*nl.NetlinkRequest
	remove, add map[string][]element
	chains      map[target]bool // needed; true also masqueraded
	deleted     []string
	forgotten   []string // fronts whose affinity is deleted
}

func (c *change) need(t target, masquerade bool) { c.chains[t] = c.chains[t] || masquerade }

// drop deletes what the kernel has and nothing leads to any more: chains, and the maps of fronts
// without one. Chains come in the order in which they refer to each other.
func (c *change) drop(chains []string) {
	fronts := map[string]bool{} // whether they are still needed
	for t := range c.chains {
		fronts[t.sticky] = true
	}
	var plain []string
	for _, chain := range chains {
		t, _ := targetOf(chain)
		switch masquerade, needed := c.chains[t]; {
		case chain != t.chain() && !masquerade:
			c.deleted = append(c.deleted, chain)
		case chain == t.chain() && !needed:
			plain = append(plain, chain)
		}
		if _, known := fronts[t.sticky]; !known && t.sticky != "" {
			fronts[t.sticky] = false
			c.forgotten = append(c.forgotten, t.sticky)
		}
	}
	c.deleted = append(c.deleted, plain...)
}

// changeOf returns what an update changes.
func (t *Table) changeOf(u *compile.Update) *change {
	c, is := &change{chains: map[target]bool{}}, contents{}
	var own []string // chains that only these fronts have
	for k := range u.Fronts {
		if old := t.wanted.fronts[k]; old != nil {
			frontElements(k, old, is.add, func(of target, _ bool) {
				for _, chain := range []string{of.chain(), masqueraded(of.chain())} {
					if of.sticky != "" && t.chains[chain] && !slices.Contains(own, chain) {
						own = append(own, chain)
					}
				}
			})
		}
	}
	for a := range u.ClusterIPs {
		if t.wanted.clusterIPs[a] {
			clusterIPElement(a, is.add)
		}
	}
	for a := range u.Local {
		if t.wanted.local[a] {
			localElement(a, is.add)
		}
	}
	c.remove, c.add = difference(is, func(add yield) {
		for k, f := range u.Fronts {
			if f != nil {
				frontElements(k, f, add, c.need)
			}
		}
		for a, present := range u.ClusterIPs {
			if present {
				clusterIPElement(a, add)
			}
		}
		for a, present := range u.Local {
			if present {
				localElement(a, add)
			}
		}
	})
	c.drop(own)
	return c
}

// elements yields what the kernel should have, and the chains that it needs.
func (w *wanted) elements(add yield, need func(target, bool)) {
	for k, f := range w.fronts {
		frontElements(k, f, add, need)
	}
	for a := range w.clusterIPs {
		clusterIPElement(a, add)
	}
	for a := range w.local {
		localElement(a, add)
	}
}

// compare finds how elements differ from what is wanted, and which chains that needs.
func (c *change) compare(is contents, w *wanted) {
	c.chains = map[target]bool{}
	c.remove, c.add = difference(is, func(add yield) { w.elements(add, c.need) })
}

// commit makes a change in one transaction.
func (t *Table) commit(c *change) error {
	all := c.begin
	made, sticky := map[string]bool{}, map[string]bool{}
	var rules []nftable.Rule
	for target, masquerade := range c.chains {
		chain := target.chain()
		if front := target.sticky; front != "" && !t.sticky[front] && !sticky[front] {
			sticky[front] = true
			all = append(all, t.kernel.NewSet(affinitySet(front)))
		}
		if !t.chains[chain] {
			made[chain] = true
			rules = append(rules, target.rules()...)
		}
		if masquerade && !t.chains[masqueraded(chain)] {
			made[masqueraded(chain)] = true
			rules = append(rules, masqueradeRules(chain)...)
		}
	}
	for chain := range made {
		all = append(all, t.kernel.NewChain(chain, hooks[chain]))
	}
	for _, r := range rules {
		all = append(all, t.kernel.AppendRule(r))
	}
	all = append(all, nftable.DeleteElements(&t.kernel.Table, c.remove)...)
	all = append(all, nftable.AddElements(&t.kernel.Table, c.add)...)
	for _, chain := range c.deleted {
		all = append(all, t.kernel.DeleteChain(chain)...)
	}
	for _, front := range c.forgotten {
		all = append(all, t.kernel.DeleteSet(affinitySet(front).Name))
	}
	if len(all) == 0 {
		return nil
	}
	if err := t.kernel.Conn.Transact(all...); err != nil {
		return err
	}
	maps.Copy(t.chains, made)
	for _, chain := range c.deleted {
		delete(t.chains, chain)
	}
	maps.Copy(t.sticky, sticky)
	for _, front := range c.forgotten {
		delete(t.sticky, front)
	}
	return nil
}

// synchronize compares the kernel with what is wanted, and makes it so.
func (t *Table) synchronize() error {
	t.unsure = true
	f, err := t.kernel.read()
	if err != nil {
		return err
	}
	if !t.loaded {
		t.former = f.led()
	}
	t.unchecked = true
	if t.wanted.empty() {
		err := t.teardown()
		t.unsure = err != nil
		return err
	}
	agree := func() error {
		if f.broken(&t.kernel, t.wanted.nodePorts) != "" {
			return t.replace(f)
		}
		return t.amend(f)
	}
	err = agree()
	if t.kernel.Downgrade(f.State, err) {
		err = agree()
	}
	if err == nil {
		err = t.sweep()
	}
	t.unsure = err != nil
	t.loaded = t.loaded || err == nil
	return err
}

// replace makes the table anew, in one transaction.
func (t *Table) replace(f *found) error {
	c := &change{}
	if f.Exists {
		c.begin = append(t.kernel.Adopt(f.State), t.kernel.Delete())
	}
	c.begin = append(c.begin, t.kernel.New())
	for _, s := range sets() {
		c.begin = append(c.begin, t.kernel.NewSet(s))
	}
	for _, chain := range fixedChains {
		c.begin = append(c.begin, t.kernel.NewChain(chain, hooks[chain]))
	}
	for _, r := range t.kernel.fixedRules(t.wanted.nodePorts) {
		c.begin = append(c.begin, t.kernel.AppendRule(r))
	}
	t.chains, t.sticky = map[string]bool{}, map[string]bool{}
	c.compare(nil, &t.wanted)
	return t.commit(c)
}

// amend changes what differs in the kernel. Chains that nothing leads to any more are deleted.
func (t *Table) amend(f *found) error {
	c := &change{begin: t.kernel.Adopt(f.State)}
	t.chains, t.sticky = map[string]bool{}, map[string]bool{}
	c.compare(f.contents, &t.wanted)
	for chain := range f.chains {
		if target, ok := targetOf(chain); ok {
			t.chains[chain] = true
			if target.sticky != "" { // its rules have the map
				t.sticky[target.sticky] = true
			}
		}
	}
	c.drop(slices.Collect(maps.Keys(t.chains)))
	return t.commit(c)
}

// broken says what is wrong with the sets, chains and rules. It is empty if nothing is.
func (f *found) broken(k *kernelTable, nodePorts []netip.Prefix) string {
	if why := k.Broken(f.State); why != "" {
		return why
	}
	for _, s := range sets() {
		if !f.sets[s.Name] {
			return "set " + s.Name + " is missing"
		}
	}
	comments := map[string][]string{}
	for _, r := range k.fixedRules(nodePorts) {
		comments[r.Chain] = append(comments[r.Chain], r.Comment)
	}
	for chain := range f.chains {
		target, ok := targetOf(chain)
		if !ok {
			continue
		}
		rules := target.rules()
		if chain != target.chain() {
			rules = masqueradeRules(target.chain())
		}
		for _, r := range rules {
			comments[chain] = append(comments[chain], r.Comment)
		}
	}
	for chain, wanted := range comments {
		if !slices.Equal(nftable.Comments(f.chains[chain]), wanted) {
			return "the rules of chain " + chain + " were changed"
		}
	}
	return ""
}
