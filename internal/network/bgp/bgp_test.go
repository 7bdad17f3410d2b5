package bgp

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/companion"
	"github.com/huskd/husk/internal/network/peer"
)

func addresses(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

var exact = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

func TestDesired(t *testing.T) {
	self := peer.Node{Name: "a", Addresses: addresses("192.0.2.7"), Blocks: prefixes("10.201.1.0/24", "fd68:0:0:1::/64")}
	others := []*peer.Node{
		{Name: "b", AS: 64512, Addresses: addresses("192.0.2.9", "2001:db8::9"), Blocks: prefixes("10.201.9.0/24")},
		{Name: "c", AS: 64512, Addresses: addresses("192.0.2.3"), Blocks: prefixes("10.201.3.0/24")},
		{Name: "another AS", AS: 64513, Addresses: addresses("192.0.2.4")},
		{Name: "no BGP", Addresses: addresses("192.0.2.5")},
		{Name: "another family", AS: 64512, Addresses: addresses("2001:db8::6")},
		{Name: "the address of c", AS: 64512, Addresses: addresses("192.0.2.3", "2001:db8::8"), Blocks: prefixes("10.201.8.0/24")},
	}
	mesh := Config{AS: 64512, Password: "secret", Cluster: prefixes("10.201.0.0/16")}
	want := Desired{
		Version: Version, AS: 64512, RouterID: self.Addresses[0], Local: self.Addresses, Inside: mesh.Cluster,
		Prefixes: prefixes("10.201.1.0/24"), // there is no next hop for the other
		Peers: []Peer{
			{Address: netip.MustParseAddr("192.0.2.3"), AS: 64512, Password: "secret", Passive: true, GTSM: true,
				Node: &Node{Blocks: prefixes("10.201.3.0/24", "10.201.8.0/24"), Addresses: addresses("192.0.2.3", "192.0.2.3", "2001:db8::8")}},
			{Address: netip.MustParseAddr("192.0.2.9"), AS: 64512, Password: "secret", GTSM: true,
				Node: &Node{Blocks: prefixes("10.201.9.0/24"), Addresses: addresses("192.0.2.9", "2001:db8::9")}},
		},
	}
	if diff := cmp.Diff(want, mesh.desired(self, others), exact); diff != "" {
		t.Error(diff)
	}
	routers := mesh
	routers.Peers = []Peer{{Address: netip.MustParseAddr("192.0.2.254"), AS: 65000}}
	want.Peers = routers.Peers
	if diff := cmp.Diff(want, routers.desired(self, others), exact); diff != "" {
		t.Errorf("with configured peers: %s", diff)
	}
	self.Addresses = addresses("2001:db8::1")
	d := mesh.desired(self, others)
	if !d.RouterID.Is4() || len(d.Prefixes) != 2 || len(d.Peers) != 3 {
		t.Errorf("with IPv6 only: %+v", d)
	}
}

func TestAggregate(t *testing.T) {
	for list, want := range map[string]string{
		"":                            "",
		"10.201.3.0/24 10.201.2.0/24": "10.201.2.0/23",
		"10.201.1.0/24 10.201.2.0/24": "10.201.1.0/24 10.201.2.0/24", // no prefix is exactly both
		"10.201.4.0/24 10.201.6.0/23 10.201.5.0/24 fd68::/64":     "10.201.4.0/22 fd68::/64",
		"10.201.4.0/24 10.201.6.0/23":                             "10.201.4.0/24 10.201.6.0/23",
		"10.201.4.0/24 10.201.4.0/22 10.201.4.0/24 10.201.7.0/24": "10.201.4.0/22",
		"0.0.0.0/1 128.0.0.0/1":                                   "0.0.0.0/0",
		"fd68:0:0:2::/64 fd68:0:0:3::/64":                         "fd68:0:0:2::/63",
	} {
		got := fmt.Sprint(aggregate(prefixes(strings.Fields(list)...)))
		if got != fmt.Sprint(prefixes(strings.Fields(want)...)) {
			t.Errorf("%s: got %s, want %s", list, got, want)
		}
	}
}

// TestLearnedStays checks that a program that has started anew doesn't take away what the last one
// had learned, before its peers have sent their routes.
func TestLearnedStays(t *testing.T) {
	s := &Speaker{}
	if _, known := s.Learned(); known {
		t.Error("known before the first state")
	}
	s.update(State{})
	if _, known := s.Learned(); known {
		t.Error("known before the program has settled")
	}
	s.update(State{Settled: true, Routes: []Route{{netip.MustParsePrefix("10.201.2.0/24"), addresses("192.0.2.2")}}})
	s.update(State{})
	if routes, known := s.Learned(); !known || len(routes) != 1 {
		t.Errorf("as the program restarted: %v, %t", routes, known)
	}
	s.update(State{Settled: true})
	if routes, known := s.Learned(); !known || len(routes) != 0 {
		t.Errorf("after all were withdrawn: %v, %t", routes, known)
	}
}

// asProgram makes the test binary a program that takes a while to end.
const asProgram = "HUSK_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		companion.Main("program SOCKET ENDED", func(args []string, ready func()) error {
			listener, err := net.Listen("unix", args[0])
			if err != nil {
				return err
			}
			ready()
			conn, err := listener.Accept()
			if err != nil {
				return err
			}
			if args[1] == "" {
				if err := json.NewEncoder(conn).Encode(State{Version: Version + 1}); err != nil {
					return err
				}
				time.Sleep(time.Minute) // it is killed before
			}
			var d Desired
			if err := json.NewDecoder(conn).Decode(&d); err != nil || !d.Stop {
				return fmt.Errorf("told %+v, %w", d, err)
			}
			_ = conn.Close()
			time.Sleep(stopTime / 20)
			return os.WriteFile(args[1], nil, 0o600)
		})
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// TestStopWaits checks that Stop returns when the program has ended, not when it closes the
// connection: until then it keeps the mount that its socket is on busy.
func TestStopWaits(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asProgram, "1")
	socket, ended := filepath.Join(t.TempDir(), "s"), filepath.Join(t.TempDir(), "ended")
	if err := companion.Start(nil, self, socket, ended); err != nil {
		t.Fatal(err)
	}
	if err := Stop(socket); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("the program still runs: %v", err)
	}
	if err := Stop(socket); err != nil {
		t.Errorf("without a program: %v", err)
	}
}

// TestAnotherVersion checks that a program of another version is killed: its peers keep the routes
// of one that ends in this way.
func TestAnotherVersion(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asProgram, "1")
	socket := filepath.Join(t.TempDir(), "s")
	if err := companion.Start(nil, self, socket, ""); err != nil {
		t.Fatal(err)
	}
	s := &Speaker{cfg: Config{Socket: socket}, send: make(chan struct{}, 1)}
	if err := s.follow(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "another version") {
		t.Errorf("got %v", err)
	}
	if conn, err := net.Dial("unix", socket); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the program: %v, want it killed", err)
		_ = conn.Close()
	}
}

// TestAnnounced checks which announcements of a node count, and for which of its blocks.
func TestAnnounced(t *testing.T) {
	n := &Node{Blocks: prefixes("10.201.4.0/24", "10.201.5.0/24", "10.201.9.0/24", "fd68:0:0:1::/64"), Addresses: addresses("192.0.2.1", "2001:db8::1")}
	for announced, want := range map[string]string{
		"10.201.4.0/24 192.0.2.1":     "10.201.4.0/24",
		"10.201.4.0/24 2001:db8::1":   "10.201.4.0/24",
		"10.201.4.0/24 192.0.2.2":     "", // another's address
		"10.201.4.0/23 192.0.2.1":     "10.201.4.0/24 10.201.5.0/24",
		"10.201.8.0/23 192.0.2.1":     "10.201.9.0/24", // others' blocks in it aren't the node's
		"10.201.9.0/25 192.0.2.1":     "",
		"10.201.3.0/24 192.0.2.1":     "",
		"fd68:0:0:1::/64 2001:db8::1": "fd68:0:0:1::/64",
		"fd68:0:0:3::/64 2001:db8::1": "",
	} {
		prefix, via, _ := strings.Cut(announced, " ")
		got := fmt.Sprint(n.Announced(netip.MustParsePrefix(prefix), netip.MustParseAddr(via)))
		if got != fmt.Sprint(prefixes(strings.Fields(want)...)) {
			t.Errorf("%s counts for %s, want %s", announced, got, want)
		}
	}
}
