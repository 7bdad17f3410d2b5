// Package policytable writes network policy to the kernel, as an nftables table of its own, inet
// husk-<instance>-policy. See layout.go for its chains and sets.
//
// The table judges what the node forwards for its pods: what comes from their links or leaves by
// them. A pod that isn't in the table gets and sends nothing that is forwarded. What the node
// itself sends to its pods isn't judged, and what they send to it only for pods with a profile for
// that.
//
// The table outlives the process. On Linux 6.9 and later, it belongs to the socket that made it, so
// that others, such as `nft flush ruleset`, don't change it; after the process has ended, the next
// one's socket takes it over. Before 6.9, others can change it, and Maintain puts it back.
package policytable

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/policy/ruleset"
	"github.com/huskd/husk/internal/pod"
)

// kernelTable is the kernel's table, and the socket that changes it.
type kernelTable struct {
	nftable.Table
	instance pod.Instance
}

// Table is an instance's. Its methods may be called concurrently.
type Table struct {
	netns string

	ending sync.Mutex // held while connections are ended
	flows  *nlsock.Conn

	mu     sync.Mutex // Invariant: guards what follows.
	kernel kernelTable
	// wanted is what the kernel should have; nil before Load.
	wanted *ruleset.Ruleset
	// chains has the kinds of sets of each profile's chain in the kernel.
	chains map[string]map[kind]bool
	// unused are profiles that the kernel still has.
	unused map[ruleset.ProfileID]ruleset.Profile
	// unsure is whether the kernel may have something else than wanted and unused.
	unsure bool
	// stale is whether connections may be open that wanted denies, and moves are those of addresses
	// since they were last ended, by which there may be some.
	stale bool
	moves map[move]bool
}

// Open returns the table of an instance in the network namespace at path; an empty path means the
// process's namespace. Nothing in the kernel changes.
func Open(path string, instance pod.Instance) (*Table, error) {
	t := &Table{netns: path, moves: map[move]bool{}}
	t.kernel = kernelTable{nftable.Table{Name: instance.PolicyTable()}, instance}
	err := t.inNode(func() (err error) {
		if t.flows, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		return t.kernel.Open()
	})
	if err != nil {
		return nil, errors.Join(t.kernel.Wrap(err), t.Close())
	}
	return t, nil
}

func (t *Table) inNode(fn func() error) error {
	if t.netns == "" {
		return fn()
	}
	return netns.Do(t.netns, fn)
}

// Close closes the sockets. The table stays.
func (t *Table) Close() error {
	err := t.kernel.Close()
	if t.flows != nil {
		err = errors.Join(err, t.flows.Close())
	}
	return err
}

// Load makes the kernel agree with r, in one transaction. What a former process has left changes
// only where it differs. r belongs to the table afterwards, also if there is an error.
func (t *Table) Load(r *ruleset.Ruleset) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := check(slices.Collect(maps.Values(r.Profiles))); err != nil {
		return err
	}
	t.wanted = r
	return t.kernel.Wrap(t.synchronize())
}

// Apply makes an update of what was loaded, in one transaction. If the kernel refuses it, as others
// have changed the table, Apply repairs the table. If there is an error, the next Apply does.
func (t *Table) Apply(u *ruleset.Update) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted == nil {
		return t.kernel.Wrap(errdefs.ErrFailedPrecondition.WithMessage("the policies aren't loaded yet"))
	}
	if err := check(u.AddProfiles); err != nil {
		return err
	}
	t.noteTaken(t.wanted, u)
	c := t.changeOf(u)
	t.wanted.Apply(u)
	if t.unsure || t.commit(c) != nil {
		return t.kernel.Wrap(t.synchronize())
	}
	for _, p := range u.AddProfiles {
		delete(t.unused, p.ID)
	}
	maps.Copy(t.unused, c.unused)
	return nil
}

// Unused returns how many profiles Reap would delete.
func (t *Table) Unused() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.unused)
}

// Reap deletes the chains and sets of removed profiles, for which the kernel takes some 20 ms
// however many there are.
func (t *Table) Reap() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.unused) == 0 || t.unsure {
		return nil
	}
	c := newChange()
	for id, p := range t.unused {
		c.deleted = append(c.deleted, chainOf(p.Direction, id))
	}
	if err := t.commit(c); err != nil {
		return t.kernel.Wrap(t.synchronize())
	}
	clear(t.unused)
	return nil
}

// Teardown removes the table.
func (t *Table) Teardown() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.kernel.Find()
	if err != nil {
		return t.kernel.Wrap(err)
	}
	t.wanted = nil
	clear(t.unused) // they go with the table
	if !f.Exists {
		return nil
	}
	crashpoint.Hit("policytable.teardown")
	return t.kernel.Wrap(t.kernel.Conn.Transact(append(t.kernel.Adopt(f), t.kernel.Delete())...))
}

// Exists reports whether the table exists. `nft flush ruleset` removes all tables, before Linux
// 6.9.
func (t *Table) Exists() (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.kernel.Find()
	return err == nil && f.Exists, t.kernel.Wrap(err)
}

// View calls fn with what is loaded, or nil. fn must not keep it.
func (t *Table) View(fn func(*ruleset.Ruleset)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn(t.wanted)
}

// Read returns what the kernel has; nil without a table. A Match of few ports is returned as one
// for each port, and profiles don't have Policies.
func (t *Table) Read() (*ruleset.Ruleset, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := t.kernel.read()
	if err != nil || !f.Exists {
		return nil, t.kernel.Wrap(err)
	}
	return rulesetOf(f.contents, f.profiles()), nil
}

// Verify describes how the kernel differs from what was loaded.
func (t *Table) Verify() ([]string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted == nil {
		return nil, nil
	}
	f, err := t.kernel.read()
	if err != nil {
		return nil, t.kernel.Wrap(err)
	}
	if why := f.broken(&t.kernel); why != "" {
		return []string{why}, nil
	}
	const enough = 20
	return describe(f.contents, t.everything(), enough), nil
}

// Repair makes the kernel agree with what was loaded.
func (t *Table) Repair() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted == nil {
		return nil
	}
	return t.kernel.Wrap(t.synchronize())
}

// everything is what the kernel should have, with unused profiles.
func (t *Table) everything() contents {
	c := contentsOf(t.wanted)
	for _, p := range t.unused {
		for m := range p.Allow {
			matchElements(chainOf(p.Direction, p.ID), m, c.add)
		}
	}
	return c
}

// profileName is what a ProfileID must look like to be part of the names of chains and sets.
var profileName = regexp.MustCompile(`^[0-9A-Za-z_.-]{1,64}$`)

func check(profiles []ruleset.Profile) error {
	for _, p := range profiles {
		if !profileName.MatchString(string(p.ID)) {
			return fmt.Errorf("policy profile %q: the name has characters that nftables doesn't allow", p.ID)
		}
	}
	return nil
}

// synchronize compares the kernel with what is wanted, and makes it so. Connections may have begun
// that what it changes would have denied.
func (t *Table) synchronize() error {
	t.unsure, t.stale = true, true
	f, err := t.kernel.read()
	if err != nil {
		return err
	}
	agree := func() error {
		if f.broken(&t.kernel) != "" {
			return t.replace(f)
		}
		return t.amend(f)
	}
	err = agree()
	if t.kernel.Downgrade(f.State, err) {
		err = agree()
	}
	t.unsure = err != nil
	return err
}

// replace makes the table anew, in one transaction. A packet that meets the table then may be
// dropped.
func (t *Table) replace(f *found) error {
	var begin []*nl.NetlinkRequest
	if f.Exists {
		begin = append(t.kernel.Adopt(f.State), t.kernel.Delete())
	}
	c := newChange()
	elements(t.wanted, c.adds)
	for _, p := range t.wanted.Profiles {
		c.chains[chainOf(p.Direction, p.ID)] = kindsOf(p)
	}
	t.chains, t.unused = map[string]map[kind]bool{}, map[ruleset.ProfileID]ruleset.Profile{}
	c.begin = append(begin, t.kernel.New())
	for _, s := range fixedSets() {
		c.begin = append(c.begin, t.kernel.NewSet(s))
	}
	for _, chain := range []string{chainIn, chainOut, chainNode, chainForward, chainInput} {
		c.begin = append(c.begin, t.kernel.NewChain(chain, hooks[chain]))
	}
	for _, r := range t.kernel.fixedRules() {
		c.end = append(c.end, t.kernel.AppendRule(r))
	}
	return t.commit(c)
}

// amend changes what differs in the kernel.
func (t *Table) amend(f *found) error {
	c := newChange()
	c.begin = t.kernel.Adopt(f.State)
	t.chains, t.unused = map[string]map[kind]bool{}, map[ruleset.ProfileID]ruleset.Profile{}
	for _, chain := range f.profiles() {
		t.chains[chain] = f.kindsOf(chain)
		d, id, _ := profileOf(chain)
		if p, ok := t.wanted.Profiles[id]; ok && p.Direction == d {
			continue
		}
		c.deleted = append(c.deleted, chain)
		for k := range kinds {
			delete(f.contents, k.set(chain).Name)
		}
	}
	for _, p := range t.wanted.Profiles {
		c.chains[chainOf(p.Direction, p.ID)] = kindsOf(p)
	}
	c.remove, c.add = difference(f.contents, contentsOf(t.wanted))
	return t.commit(c)
}

func kindsOf(p ruleset.Profile) map[kind]bool {
	out := map[kind]bool{}
	for m := range p.Allow {
		out[kindOf(m)] = true
	}
	return out
}
