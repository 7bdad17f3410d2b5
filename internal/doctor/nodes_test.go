package doctor

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
)

func TestNodes(t *testing.T) {
	now := time.Now()
	long := now.Add(-time.Minute)
	self := peer.Node{Name: "a", Blocks: []netip.Prefix{netip.MustParsePrefix("10.201.1.0/24")}}
	for name, c := range map[string]struct {
		status nodes.Status
		want   []string
	}{
		"not known": {nodes.Status{Error: "underlay: no route"}, []string{"fail underlay: no route", "warn the store of nodes has not answered yet: routes to other nodes stay as they were"}},
		"alone":     {nodes.Status{Known: true, Self: self}, []string{"ok 0 of 0 are reached as they should be"}},
		"no block": {nodes.Status{Known: true, Self: peer.Node{Name: "a"}, Notes: []string{"line 3 is odd"}},
			[]string{"warn line 3 is odd", "fail node a has no subnet of pod addresses in the store: no pod can start", "ok 0 of 0 are reached as they should be"}},
		"peers": {nodes.Status{Known: true, Self: self, Peers: []nodes.Peer{
			{Name: "b", Way: backend.Direct, Since: long, Health: heartbeat.Health{Answered: true, Last: now}},
			{Name: "c", Why: "not direct: far"},
			{Name: "d", Way: backend.VXLAN, Since: long, Health: heartbeat.Health{Answered: true, Last: long}},
			{Name: "e", Way: backend.Direct, Since: long},
			{Name: "f", Way: backend.Direct, Since: now},
			{Name: "g", Way: backend.VXLAN, Why: "not direct: no answer", Since: long, Health: heartbeat.Health{Answered: true, Last: now, Broken: []backend.Way{backend.Direct}}},
			{Name: "h", Way: backend.Direct, Since: long, Health: heartbeat.Health{Answered: true, Last: now, Limit: 1370}},
		}}, []string{
			"fail pods of node c can't be reached: not direct: far",
			"warn node d has not answered for 1m0s",
			"note node e has never answered",
			"warn node g is reached by vxlan: not direct: no answer",
			"warn packets of more than 1370 bytes don't reach node h",
			"ok 2 of 7 are reached as they should be",
		}},
	} {
		var d diagnosis
		d.nodes(c.status, now)
		var got []string
		for _, check := range d.checks {
			got = append(got, check.Level+" "+check.Finding)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestReversePath(t *testing.T) {
	for values, warns := range map[[2]string]bool{{"0", "0"}: false, {"1", "0"}: true, {"0", "1"}: true, {"1", "1"}: true, {"1", "2"}: false, {"2", "1"}: false} {
		var d diagnosis
		d.reversePath("eth0", func(sysctl string) (string, error) {
			return map[string]string{"net/ipv4/conf/all/rp_filter": values[0], "net/ipv4/conf/eth0/rp_filter": values[1]}[sysctl], nil
		})
		if got := len(d.checks) > 0; got != warns {
			t.Errorf("all %s, eth0 %s: warns %v, want %v", values[0], values[1], got, warns)
		}
	}
}
