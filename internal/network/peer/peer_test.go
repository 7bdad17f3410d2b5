package peer_test

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/huskd/husk/internal/network/peer"
)

const record = `{"v":1,"node":"n7","addresses":["192.0.2.7","2001:db8::7"],"blocks":["10.201.9.0/24","fd68:9::/64"],"mtu":1500,` +
	`"vxlan":{"vni":1,"port":8472,"mac":"02:00:00:00:00:07"},"wireguard":[{"key":"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=","port":51820}]}`

func TestParse(t *testing.T) {
	n, err := peer.Parse([]byte(record))
	if err != nil {
		t.Fatal(err)
	}
	if data, err := json.Marshal(n); err != nil || string(data) != record {
		t.Errorf("got %s, %v, want the record again", data, err)
	}
	if !n.Equal(n) {
		t.Error("a record isn't equal to itself")
	}
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"n7"`, `"n 7"`, `record of node "n 7": not a name`},
		{`"n7"`, `""`, "not a name"},
		{`"v":1`, `"v":0`, "version 0"},
		{"192.0.2.7", "127.0.0.1", "address 127.0.0.1 is not one that other nodes can reach"},
		{"192.0.2.7", "224.0.0.1", "address 224.0.0.1 is not one"},
		{"192.0.2.7", "0.0.0.0", "address 0.0.0.0 is not one"},
		{"192.0.2.7", "255.255.255.255", "address 255.255.255.255 is not one"},
		{"192.0.2.7", "169.254.169.254", "address 169.254.169.254 is not one"},
		{"192.0.2.7", "::ffff:192.0.2.7", "address ::ffff:192.0.2.7 is not one"},
		{"2001:db8::7", "fe80::1%eth0", "fe80::1%eth0 is not one"},
		{"2001:db8::7", "2001:db8::7%eth0", "2001:db8::7%eth0 is not one"},
		{"2001:db8::7", "fe80::1", "address fe80::1 is not one"},
		{"2001:db8::7", "::", "address :: is not one"},
		{"2001:db8::7", "::1", "address ::1 is not one"},
		{"2001:db8::7", "ff02::1", "address ff02::1 is not one"},
		{"2001:db8::7", "192.0.2.8", "at most one of each family"},
		{"10.201.9.0/24", "10.201.9.1/24", "block 10.201.9.1/24 is not a subnet"},
		{"10.201.9.0/24", "0.0.0.0/0", "block 0.0.0.0/0 is not a subnet"},
		{"10.201.9.0/24", "224.1.0.0/16", "has addresses that pods can't have"},
		{"10.201.9.0/24", "fd68:9::/48", "block fd68:9::/64 overlaps another"},
		{`"10.201.9.0/24"`, strings.Join(manyBlocks(peer.MaxBlocks), ","), "65 blocks: at most 64"}, // with that of IPv6
		{"1500", "99", "mtu 99"},
		{"8472", "0", "vxlan: needs"},
		{`"vni":1`, `"vni":16777216`, "vxlan: needs"},
		{"02:00:00:00:00:07", "01:00:00:00:00:07", "not the address of one interface"},
		{"51820", "0", "wireguard: needs"},
		{"AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "AQE=", "not a key of 32 bytes"},
		{`"v":1`, `"v":1,"x":"` + strings.Repeat("x", 16<<10) + `"`, "at most 16384"},
	} {
		bad := strings.Replace(record, c.old, c.new, 1)
		_, err := peer.Parse([]byte(bad))
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s instead of %s: got %v, want one line with %q", c.new, c.old, err, c.want)
		}
	}
}

// manyBlocks returns blocks as they are in a record.
func manyBlocks(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf(`"10.201.%d.0/24"`, i))
	}
	return out
}

// TestParseTakesManyBlocks: the limit isn't a block too low.
func TestParseTakesManyBlocks(t *testing.T) {
	n, err := peer.Parse([]byte(strings.Replace(record, `"10.201.9.0/24"`, strings.Join(manyBlocks(peer.MaxBlocks-1), ","), 1)))
	if err != nil || len(n.Blocks) != peer.MaxBlocks {
		t.Errorf("%d blocks, %v", len(n.Blocks), err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(record))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := peer.Parse(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(n)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := peer.Parse(again); err != nil || !got.Equal(n) {
			t.Errorf("%s became %v, %v", again, got, err)
		}
	})
}

func node(name, address string, blocks ...string) peer.Node {
	n := peer.Node{Version: 1, Name: name, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
	for _, b := range blocks {
		n.Blocks = append(n.Blocks, netip.MustParsePrefix(b))
	}
	return n
}

// refer returns records as in a view.
func refer(nodes ...peer.Node) (out []*peer.Node) {
	for i := range nodes {
		out = append(out, &nodes[i])
	}
	return out
}

func TestAccept(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd68::/48")}
	self := node("b", "192.0.2.2", "10.201.2.0/24", "fd68::2:0:0:0:0/64")
	self.Addresses = append(self.Addresses, netip.MustParseAddr("2001:db8::2"))
	peers, notes := peer.Accept(cluster, self, refer(
		node("z", "192.0.2.26", "10.201.1.128/25", "10.201.26.0/24"), // overlaps a's
		node("b", "192.0.2.99", "10.201.99.0/24"),                    // is self
		node("a", "192.0.2.1", "10.201.1.0/24", "fd68:0:0:1::/64"),
		node("c", "192.0.2.2", "10.201.3.0/24"),                    // self's address
		node("d", "192.0.2.4", "10.201.2.128/25", "10.99.0.0/16"),  // overlaps self's; outside
		node("e", "192.0.2.5", "10.0.0.0/8"),                       // contains the cluster
		node("f", "0.0.0.0", "10.201.6.0/24"),                      // invalid
		node("g", "192.0.2.7", "10.201.24.0/22", "10.201.28.0/22"), // z's block is inside the first
		node("h", "10.201.1.7", "10.201.7.0/24"),                   // a pod's address
		node("i", "fd68:0:0:1::7", "10.201.8.0/24"),
		node("j", "2001:db8::2", "10.201.10.0/24"),                  // self's address
		node("k", "192.0.2.1", "10.201.11.0/24", "fd68:0:0:1::/64"), // a's address and block
	))
	var names []string
	for _, p := range peers {
		for _, b := range p.Blocks {
			names = append(names, p.Name+" "+b.String())
		}
	}
	if diff := cmp.Diff([]string{"a 10.201.1.0/24", "a fd68:0:0:1::/64", "g 10.201.24.0/22", "g 10.201.28.0/22", "k 10.201.11.0/24"}, names); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"node c has this node's address 192.0.2.2: give one of them another",
		"block 10.201.2.128/25 of node d overlaps one of node b",
		"block 10.99.0.0/16 of node d is outside the pod subnets [10.201.0.0/16 fd68::/48]",
		"block 10.0.0.0/8 of node e is outside the pod subnets [10.201.0.0/16 fd68::/48]",
		"record of node f: address 0.0.0.0 is not one that other nodes can reach",
		"node h has the address 10.201.1.7, which is inside the pod subnets [10.201.0.0/16 fd68::/48]",
		"node i has the address fd68:0:0:1::7, which is inside the pod subnets [10.201.0.0/16 fd68::/48]",
		"node j has this node's address 2001:db8::2: give one of them another",
		"block fd68:0:0:1::/64 of node k overlaps one of node a",
		"block 10.201.1.128/25 of node z overlaps one of node a",
		"block 10.201.26.0/24 of node z overlaps one of node g",
	}
	if diff := cmp.Diff(want, notes, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
}

func TestAcceptIdentities(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}
	with := func(n peer.Node, mac byte, keys ...byte) peer.Node {
		n.VXLAN = &peer.VXLAN{VNI: 1, Port: 8472, MAC: peer.MAC{2, 5: mac}}
		for _, k := range keys {
			n.WireGuard = append(n.WireGuard, peer.WireGuard{Key: peer.Key{k}, Port: 51820})
		}
		return n
	}
	records := refer(
		with(node("d", "192.0.2.4", "10.201.4.0/24"), 3, 4, 5), // c's MAC
		with(node("c", "192.0.2.3", "10.201.3.0/24"), 3, 1),    // self's key
		with(node("e", "192.0.2.5", "10.201.5.0/24"), 1, 9, 5), // self's MAC and d's key
		with(node("f", "192.0.2.6", "10.201.6.0/24"), 6, 6),
		with(node("g", "192.0.2.7", "10.201.7.0/24"), 7, 7), // changes to self's key
	)
	records[4].Rotation = &peer.Rotation{Port: 51822, Key: peer.Key{1}}
	peers, notes := peer.Accept(cluster, with(node("a", "192.0.2.1"), 1, 1), records)
	var got []string
	for _, p := range peers {
		got = append(got, fmt.Sprintf("%s vxlan %v wireguard %d", p.Name, p.VXLAN != nil, len(p.WireGuard)))
	}
	if diff := cmp.Diff([]string{"c vxlan true wireguard 0", "d vxlan false wireguard 2", "e vxlan false wireguard 0", "f vxlan true wireguard 1", "g vxlan true wireguard 1"}, got); diff != "" {
		t.Error(diff)
	}
	want := []string{
		"node c has the key AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= of node a: give one of them another",
		"node d has the MAC 02:00:00:00:00:03 of node c: give one of them another",
		"node e has the MAC 02:00:00:00:00:01 of node a: give one of them another",
		"node e has the key BQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= of node d: give one of them another",
		"node g has the key AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA= of node a: give one of them another",
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Error(diff)
	}
	if peers[4].Rotation != nil {
		t.Error("a rotation to the key of another node was accepted")
	}
	if records[4].Rotation == nil || records[0].VXLAN == nil || records[1].WireGuard == nil {
		t.Error("Accept changed the records that it was given")
	}
}
