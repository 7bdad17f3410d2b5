package policytable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// move is a change of an address's identity.
type move struct{ from, to ruleset.Identity }

// noteTaken notes what an update of r may deny that r allows. A new pod has no connections yet.
func (t *Table) noteTaken(r *ruleset.Ruleset, u *ruleset.Update) {
	if len(u.Disallow)+len(u.RemoveRanges)+len(u.AddRanges) > 0 {
		t.stale = true
	}
	for _, p := range u.SetPods {
		if old, ok := r.Pods[p.Addr]; ok && old != p {
			t.stale = true
		}
	}
	for addr, to := range u.Identities {
		if t.stale {
			return
		}
		t.moves[move{r.IdentityOf(addr), to}] = true
	}
}

// takenAway reports whether some connection may be open that wanted denies.
func (t *Table) takenAway() bool {
	if t.stale {
		return true
	}
	to := map[ruleset.Identity][]ruleset.Identity{}
	for m := range t.moves {
		to[m.from] = append(to[m.from], m.to)
		if m.from.IsPod() && !m.to.IsPod() {
			for _, pods := range []ruleset.Identity{ruleset.PodsIPv4, ruleset.PodsIPv6} {
				to[pods] = append(to[pods], m.to)
			}
		}
	}
	for _, p := range t.wanted.Profiles {
		for match := range p.Allow {
			for _, id := range to[match.Identity] {
				match.Identity = id
				if _, ok := p.Allow[match]; !ok {
					return true
				}
			}
		}
	}
	return false
}

// EndFlows ends the open connections of local pods that were allowed when they began and no longer
// are: it deletes their conntrack entries, so that their next packets are judged again. It does
// nothing unless something was loaded or taken away since it last succeeded. It reads all of the
// node's entries, without delaying other calls, so callers let a moment pass between calls. It
// returns how many it ended.
//
// TCP connections end, as the table then wants a SYN. In other protocols, packets of the end that
// accepted count as a new connection's, which may be allowed.
func (t *Table) EndFlows() (int, error) {
	t.ending.Lock()
	defer t.ending.Unlock()
	index := t.taken()
	if index == nil {
		return 0, nil
	}
	crashpoint.Hit("policytable.end")
	// What the node itself sends isn't judged, and what is sent to it could go on by its answers.
	var node map[netip.Addr]bool
	n, err := 0, t.inNode(func() (err error) {
		node, err = ownAddresses()
		return err
	})
	if err == nil {
		n, err = conntrack.End(t.flows, func(c conntrack.Connection) bool {
			if !index.IsPod(c.From) && !index.IsPod(c.To) || node[c.From] || node[c.To] || c.From.IsLoopback() {
				return false
			}
			return !index.Allows(policy.Flow{From: c.From, To: c.To, Protocol: policy.Protocol(c.Protocol), Port: c.Port})
		})
	}
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.stale = true
		return n, fmt.Errorf("end connections that policy denies: %w", err)
	}
	return n, nil
}

// taken returns what is allowed if something was taken away, or nil, and forgets that it was.
func (t *Table) taken() *ruleset.Index {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.wanted != nil && t.takenAway()
	t.stale = false
	clear(t.moves)
	if !taken {
		return nil
	}
	return t.wanted.Index()
}

// IsOwn reports whether an address is one of the process's network namespace.
func IsOwn(addr netip.Addr) (bool, error) {
	all, err := ownAddresses()
	return all[addr], err
}

// ownAddresses are those of the calling thread's network namespace.
func ownAddresses() (map[netip.Addr]bool, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	out := map[netip.Addr]bool{}
	for _, a := range all {
		n, ok := a.(*net.IPNet)
		addr, valid := netip.Addr{}, false
		if ok {
			addr, valid = netip.AddrFromSlice(n.IP)
		}
		if !valid {
			return nil, errors.New("list the node's addresses: " + a.String() + " isn't one")
		}
		out[addr.Unmap()] = true
	}
	return out, nil
}
