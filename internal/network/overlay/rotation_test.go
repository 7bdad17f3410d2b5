package overlay

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
)

// TestRotation changes a node's key of the kernel's WireGuard while packets of both families go to
// and fro. test/nodes does so with husk-wireguard.
func TestRotation(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "46"})
	a, b := l.nodes[0], l.nodes[1]
	if !a.supports(backend.WireGuard) {
		return
	}
	for _, n := range l.nodes {
		n.self.Backend, n.self.Record.Rotation = backend.OnlyWireGuard, &peer.Rotation{Port: peer.RotationPort}
	}
	apply := func(n *node) {
		t.Helper()
		peers := l.peers(n)
		sessions, err := n.Sessions()
		must(t, err)
		n.self.Second = n.self.BySecond(peers, sessions)
		n.plan = backend.For(n.self, peers)
		notes, err := n.Apply(n.plan)
		if must(t, err); len(notes) > 0 {
			t.Fatal(notes)
		}
	}
	// until applies the plans of nodes until both send by one link.
	until := func(when, link string) {
		t.Helper()
		eventually(t, func() string {
			for _, n := range l.nodes {
				apply(n)
			}
			for _, n := range l.nodes {
				if by := n.plan.Peers[0].Routes[0].Link; by != link {
					return fmt.Sprintf("%s: %s sends by %s", when, n.self.Record.Name, by)
				}
			}
			return ""
		})
		time.Sleep(time.Second) // for the last packets by the other link
	}
	first, second := backend.LinkName(instance, backend.WireGuard, false), a.self.SecondLink()
	until("before", first)
	l.reach("46")
	stops := map[string]func() (int, int){}
	for _, six := range []bool{false, true} {
		stops[fmt.Sprintf("from a, IPv6 %v", six)] = stream(t, a.pod, podAddress(1, six), b.pod, podAddress(2, six))
		stops[fmt.Sprintf("from b, IPv6 %v", six)] = stream(t, b.pod, podAddress(2, six), a.pod, podAddress(1, six))
	}
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	a.SetKeys(a.private, peer.Key(key))
	a.self.Record.Rotation = &peer.Rotation{Port: peer.RotationPort, Key: peer.Key(key.PublicKey())}
	until("begun", second)
	a.self.Record.WireGuard = []peer.WireGuard{{Key: peer.Key(key.PublicKey()), Port: peer.WireGuardPort}}
	apply(a)                           // b doesn't know it yet
	time.Sleep(200 * time.Millisecond) // of packets
	a.reopen()                         // as if huskd was killed and restarted
	a.SetKeys(peer.Key(key))
	until("switched", first)
	a.self.Record.Rotation = &peer.Rotation{Port: peer.RotationPort}
	until("ended", first)
	for name, stop := range stops {
		sent, arrived := stop()
		if t.Logf("%s: %d of %d packets arrived", name, arrived, sent); arrived < sent {
			t.Errorf("%s: %d of %d packets were lost", name, sent-arrived, sent)
		}
	}
	for _, n := range l.nodes {
		n.agrees()
		if links := netnstest.IP(t, n.path, "-br link"); strings.Contains(links, second) {
			t.Errorf("%s has a second link in the end:\n%s", n.self.Record.Name, links)
		}
	}
	l.reach("46")
}

// TestOptionalLink: a second WireGuard link that can't be made is a note, and all else works.
func TestOptionalLink(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "4"})
	l.apply(backend.OnlyVXLAN)
	n := l.nodes[0]
	second := n.self.SecondLink()
	l.ip(n.path, "link add "+second+" type bridge")
	p := n.plan
	p.Links = append(p.Links, backend.Link{Way: backend.WireGuard, Name: second, Optional: true})
	p.Peers[0].Tunnels = []backend.Tunnel{{Link: second, Key: peer.Key{1}, Endpoint: netip.MustParseAddrPort("192.0.2.9:1")}}
	for range 2 {
		notes, err := n.Apply(p)
		if err != nil || len(notes) != 1 || !strings.Contains(notes[0], second) {
			t.Errorf("the notes are %q, the error %v", notes, err)
		}
	}
	l.reach("46")
	p.Links = p.Links[:len(p.Links)-1]
	p.Peers[0].Tunnels = nil
	if notes, err := n.Apply(p); err != nil || len(notes) > 0 {
		t.Errorf("in the end, the notes are %q, the error %v", notes, err)
	}
}
