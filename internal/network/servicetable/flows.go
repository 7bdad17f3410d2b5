package servicetable

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
)

// End deletes the conntrack entries that lead to endpoints that are gone, so that their next
// packets are led elsewhere. If all is empty, it does so only if there may be others: when another
// process had the table, or others have changed it. It reads all of the node's entries.
func (t *Table) End(all []compile.Ended) (int, error) {
	t.ending.Lock()
	defer t.ending.Unlock()
	t.mu.Lock()
	s := staleness{ended: map[compile.Ended]bool{}, nodePorts: t.wanted.nodePorts}
	unchecked := t.unchecked
	if unchecked {
		s.fronts, s.former = maps.Clone(t.wanted.fronts), t.former
		t.unchecked = false
	}
	for _, e := range all {
		// An endpoint that has come back since is not gone.
		if f := t.wanted.fronts[e.Key]; f == nil || !e.Endpoint.IsValid() || !f.Keeps(e.Key.Protocol, e.Endpoint) {
			s.ended[e] = true
		}
	}
	t.mu.Unlock()
	if len(s.ended) == 0 && !unchecked {
		return 0, nil
	}
	n, err := conntrack.EndTranslated(t.flows, s.has)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err != nil {
		t.unchecked = t.unchecked || unchecked
		return n, fmt.Errorf("end connections to endpoints that are gone: %w", err)
	}
	if unchecked {
		t.former = nil
	}
	return n, nil
}

// staleness says which connections lead to endpoints that are gone.
type staleness struct {
	ended     map[compile.Ended]bool
	nodePorts []netip.Prefix
	// fronts, unless nil, are all that there are, and former are endpoints of a former process.
	fronts map[compile.Key]*compile.Front
	former map[compile.Ended]bool
}

func (s *staleness) has(c conntrack.Translation) bool {
	e := compile.Ended{Key: compile.Key{Addr: c.To.Addr(), Protocol: service.Protocol(c.Protocol), Port: c.To.Port()}}
	if c.To != c.Now {
		e.Endpoint = c.Now
	}
	if s.front(e) {
		return true
	}
	if !slices.ContainsFunc(s.nodePorts, func(p netip.Prefix) bool { return p.Contains(c.To.Addr()) }) {
		return false
	}
	e.Key.Addr = netip.IPv4Unspecified()
	if c.To.Addr().Is6() {
		e.Key.Addr = netip.IPv6Unspecified()
	}
	return s.front(e)
}

// front reports whether nothing leads from a front to an endpoint any more.
func (s *staleness) front(e compile.Ended) bool {
	if s.ended[e] {
		return true
	}
	f := s.fronts[e.Key]
	if f == nil {
		return s.former[e]
	}
	if e.Endpoint.IsValid() {
		return !f.Keeps(e.Key.Protocol, e.Endpoint)
	}
	return e.Key.Protocol == service.UDP && len(f.All)+len(f.Own) > 0
}

// led returns the endpoints in the kernel's maps.
func (f *found) led() map[compile.Ended]bool {
	out := map[compile.Ended]bool{}
	for _, family := range families {
		for _, scope := range []string{scopeAll, scopeOwn} {
			for _, e := range f.contents[scope+family.suffix] {
				const index = 4
				if len(e.key) != int(index+family.size+8) || len(e.value) != int(family.size+4) {
					continue
				}
				out[compile.Ended{Key: family.parseKey(e.key[index:]), Endpoint: family.parseEndpoint(e.value)}] = true
			}
		}
	}
	return out
}
