package datapath

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// VerifyBase returns the differences between the kernel and the node's part of the network: the
// table and its rules, the bridge, the settings of the bridge and lo, and the sysctls.
func (d *Datapath) VerifyBase(b plan.Base) (diffs []Difference, err error) {
	diffs, err = d.table.compare(b.Table)
	if err != nil {
		return nil, err
	}
	err = d.withConn(func(c *nlsock.Conn) error {
		o, err := observe(c, d.handle, func(link string) bool { return link == "lo" || link == d.bridge })
		if err != nil {
			return err
		}
		if b.Link != nil {
			if l, ok := o.links[d.bridge]; !ok || l.mac != b.Link.MAC {
				diffs = append(diffs, Difference{Object: "link " + d.bridge, Problem: missing})
			} else if !l.up {
				diffs = append(diffs, Difference{Object: "link " + d.bridge, Problem: "down"})
			}
		}
		for _, a := range b.Host.Addresses {
			a.LastResort = false // not observed
			if _, ok := o.links[a.Link]; ok && !o.addresses[a] {
				diffs = append(diffs, Difference{Object: a.String(), Problem: missing})
			}
		}
		for _, r := range b.Host.Routes {
			if !o.routes[r] {
				diffs = append(diffs, Difference{Object: r.String(), Problem: missing})
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	err = d.InNode(func() error {
		for _, name := range b.Sysctls {
			value, err := ReadSysctl(name)
			if err != nil {
				return err
			}
			if value == "0" {
				diffs = append(diffs, Difference{Object: "sysctl " + dotted(name), Problem: "is 0, so pods can't reach anything: set it to 1"})
			}
		}
		return nil
	})
	return diffs, err
}

// compare returns the differences between the table and its plan. It only counts the rules of each
// chain.
func (t *table) compare(p plan.Table) (diffs []Difference, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := "nftables table inet " + t.nft.Name
	if !t.existsLocked() {
		return []Difference{{Object: name, Problem: missing}}, nil
	}
	want := rules(p)
	for _, chain := range chains(t.nft, p.Owner) {
		have, err := t.conn.GetRules(t.nft, chain)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, t.wrap(errors.Join(fmt.Errorf("list chain %s: %w", chain.Name, err), t.reopen()))
		}
		if len(have) != len(want[chain.Name]) {
			diffs = append(diffs, Difference{Object: "chain " + chain.Name + " of " + name, Problem: fmt.Sprintf("%d rules, not %d", len(have), len(want[chain.Name]))})
		}
	}
	return diffs, nil
}
