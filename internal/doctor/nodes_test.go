package doctor

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/preflight"
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

func TestNeighbours(t *testing.T) {
	direct := func(six bool) int { return map[bool]int{false: 1000, true: 10}[six] }
	for limit, want := range map[string]string{"1024": "sysctl -w net.ipv4.neigh.default.gc_thresh3=2128", "2128": "", "odd": ""} {
		var d diagnosis
		d.neighbours(direct, func(string) (string, error) { return limit, nil })
		if got := remedies(d); got != want {
			t.Errorf("gc_thresh3 %s: remedy %q, want %q", limit, got, want)
		}
	}
}

func remedies(d diagnosis) string {
	var out []string
	for _, c := range d.checks {
		out = append(out, c.Remedy)
	}
	return strings.Join(out, "; ")
}

// TestDroppedPackets gives the node a firewall that lets only some of the packets pass.
func TestDroppedPackets(t *testing.T) {
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), "net")
	netnstest.Make(t, path)
	block := func(i int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("10.201.%d.0/24", i)) }
	st := nodes.Status{
		Self: peer.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Blocks: []netip.Prefix{block(1)},
			VXLAN: &peer.VXLAN{Port: 8472}, WireGuard: []peer.WireGuard{{Port: 51820}}, IPIP: true, AS: 64512},
		Links: []backend.Link{{Name: "hnbe0fvx", Way: backend.VXLAN}},
		Peers: []nodes.Peer{
			{Name: "b", Way: backend.Direct, Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Blocks: []netip.Prefix{block(2)}},
			{Name: "c", Way: backend.VXLAN, Addresses: []netip.Addr{netip.MustParseAddr("198.51.100.3"), netip.MustParseAddr("2001:db8:1::3")}, Blocks: []netip.Prefix{block(3)}},
		},
	}
	find := func() (d diagnosis) {
		if err := netns.Do(path, func() error {
			d.dropped(preflight.DroppedInput(st.Incoming("eth0")))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return d
	}
	netnstest.Run(t, path, "nft", "add table inet fw; add chain inet fw in { type filter hook input priority 0; policy drop; }; add rule inet fw in ct state established,related accept; add rule inet fw in udp dport 51820 accept")
	found := find()
	want := []string{
		"nftables table inet fw, chain in drops what other nodes send to 192.0.2.1: UDP port 8472", "nftables table inet fw, chain in drops what other nodes send to 192.0.2.1: IP protocol 4",
		"nftables table inet fw, chain in drops what other nodes send to 192.0.2.1: TCP port 179", "nftables table inet fw, chain in drops what other nodes send to 10.201.1.1: UDP port 8473",
		"nftables table inet fw, chain in drops what other nodes send to 2001:db8::1: UDP port 8472", "nftables table inet fw, chain in drops what other nodes send to 2001:db8::1: TCP port 179",
	}
	var got []string
	for _, c := range found.checks {
		got = append(got, c.Finding)
		netnstest.Run(t, path, "sh", "-c", c.Remedy)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if left := find(); len(left.checks) > 0 {
		t.Errorf("after the remedies: %v", left.checks)
	}
}

// TestDrops warns of packets that were dropped lately.
func TestDrops(t *testing.T) {
	now := time.Now()
	var d diagnosis
	d.drops([]network.Dropped{{Why: datapath.Spoofed, Count: 12, Last: now.Add(-5 * time.Minute)}}, nil, "husk-be0f", now)
	d.drops([]network.Dropped{{Why: datapath.Spoofed, Count: 12}, {Why: datapath.Spoofed, Count: 12, Last: now.Add(-2 * recently)}}, nil, "husk-be0f", now)
	if len(d.checks) != 1 || d.checks[0].Level != warn || !strings.HasPrefix(d.checks[0].Finding, "12 packets with the address of a pod") || !strings.HasSuffix(d.checks[0].Finding, "the last of them 5m0s ago") ||
		!strings.Contains(d.checks[0].Remedy, "husk-be0f") {
		t.Errorf("%v", d.checks)
	}
}
