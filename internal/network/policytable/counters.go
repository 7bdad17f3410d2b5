package policytable

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// Denied is how many packets were denied.
type Denied struct {
	// Profiles has those of each profile in the kernel.
	Profiles map[ruleset.ProfileID]uint64
	// Unknown are those of pods that the table doesn't have.
	Unknown map[policy.Direction]uint64
}

// Denied reads the counters. They begin at 0 when the profile is added.
func (t *Table) Denied() (Denied, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	rules, err := t.kernel.Rules()
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return Denied{}, t.kernel.Wrap(fmt.Errorf("read counters: %w", err))
	}
	d := Denied{map[ruleset.ProfileID]uint64{}, map[policy.Direction]uint64{}}
	for _, r := range rules {
		if !r.Counted {
			continue
		}
		switch _, id, ok := profileOf(r.Chain); {
		case ok:
			d.Profiles[id] += r.Packets
		case r.Chain == chainIn:
			d.Unknown[policy.Ingress] += r.Packets
		case r.Chain == chainOut:
			d.Unknown[policy.Egress] += r.Packets
		}
	}
	return d, nil
}

// Allowed returns how many connections each match of each profile let pass, since the kernel got
// the match. Of protocols without connections, it counts the packets until the first answer.
func (t *Table) Allowed() (map[ruleset.ProfileID]map[ruleset.Match]uint64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.wanted == nil {
		return nil, nil
	}
	out := make(map[ruleset.ProfileID]map[ruleset.Match]uint64, len(t.wanted.Profiles))
	for id, p := range t.wanted.Profiles {
		counts, err := t.kernel.countAllowed(chainOf(p.Direction, id), t.chains[chainOf(p.Direction, id)], p)
		if err != nil {
			return nil, t.kernel.Wrap(err)
		}
		out[id] = counts
	}
	return out, nil
}

func (k *kernelTable) countAllowed(chain string, has map[kind]bool, p ruleset.Profile) (map[ruleset.Match]uint64, error) {
	packets := map[string]map[elementKey]uint64{} // by sets
	for kind := range has {
		set := kind.set(chain).Name
		list, err := nftable.Elements(&k.Table, set, parseElement)
		if err != nil {
			return nil, fmt.Errorf("read counters of set %s: %w", set, err)
		}
		packets[set] = make(map[elementKey]uint64, len(list))
		for _, e := range list {
			packets[set][elementKey{e.key, e.last}] = e.packets
		}
	}
	counts := make(map[ruleset.Match]uint64, len(p.Allow))
	for m := range p.Allow {
		matchElements(chain, m, func(set string, e element) { counts[m] += packets[set][elementKey{e.key, e.last}] })
	}
	return counts, nil
}
