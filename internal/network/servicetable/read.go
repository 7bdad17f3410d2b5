package servicetable

import (
	"fmt"

	"github.com/huskd/husk/internal/network/nftable"
)

// found is what the kernel has.
type found struct {
	nftable.State
	sets     map[string]bool
	chains   map[string][]string // the comments of their rules
	contents contents
}

// read returns all that the kernel has.
func (k *kernelTable) read() (*found, error) {
	f := &found{sets: map[string]bool{}, chains: map[string][]string{}, contents: contents{}}
	var err error
	if f.State, err = k.Find(); err != nil || !f.Exists {
		return f, err
	}
	chains, err := k.Chains()
	if err != nil {
		return nil, err
	}
	for _, name := range chains {
		f.chains[name] = nil
	}
	rules, err := k.Rules()
	if err != nil {
		return nil, err
	}
	for _, r := range rules {
		f.chains[r.Chain] = append(f.chains[r.Chain], r.Comment)
	}
	for _, s := range sets() {
		if s.Timeout > 0 {
			continue
		}
		all, err := nftable.Elements(&k.Table, s.Name, parseElement)
		if isMissing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", s.Name, err)
		}
		f.contents[s.Name] = make(map[string]element, len(all))
		for _, e := range all {
			f.contents.add(s.Name, e)
		}
		f.sets[s.Name] = true
	}
	return f, nil
}
