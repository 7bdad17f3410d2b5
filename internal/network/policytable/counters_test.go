package policytable

import (
	"maps"
	"testing"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// TestAllowed opens connections by a port, by a range and by a protocol, and looks at what was
// counted, also after the table is loaded again.
func TestAllowed(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	must(t, table.Load(small()))
	for _, f := range []policy.Flow{
		{From: far[0], To: locals[0], Protocol: policy.TCP, Port: 80},
		{From: far[0], To: locals[0], Protocol: policy.TCP, Port: 81},
		{From: far[4], To: locals[4], Protocol: policy.TCP, Port: 80},
		{From: far[0], To: locals[0], Protocol: policy.UDP, Port: 80},
	} {
		must(t, l.probe(f, patience))
	}
	tcp := ruleset.Match{Identity: 1, Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 81}
	udp := ruleset.Match{Identity: 1, Protocol: ruleset.Protocol(policy.UDP), First: 80, Last: 90}
	for range 2 {
		counts, err := table.Allowed()
		must(t, err)
		server := maps.Clone(counts["server"])
		if server[udp] == 0 {
			t.Errorf("no packet of UDP was counted: %v", server)
		}
		delete(server, udp)
		if want := map[ruleset.Match]uint64{tcp: 3, {Identity: 1, Protocol: ruleset.Other}: 0}; !maps.Equal(server, want) {
			t.Errorf("counted %v, want %v", server, want)
		}
		if n := counts["client"][tcp]; n != 0 {
			t.Errorf("%d connections were counted that nobody opened", n)
		}
		must(t, table.Load(small()))
	}
}
