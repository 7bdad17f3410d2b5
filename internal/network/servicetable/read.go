package servicetable

import (
	"fmt"

	"github.com/huskd/husk/internal/network/nftable"
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
	for _, s := range sets() {
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
