package nodes

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// keys returns a node's private keys of both links, "" for one that it hasn't.
func (m *machine) keys() (first, second string) {
	m.t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(m.Root, "network", name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			m.t.Fatal(err)
		}
		return string(text)
	}
	second = read("wireguard-key.next") // first, as the new key is written there first
	return read("wireguard-key"), second
}

// stage returns how far the change of a node's key has come.
func (m *machine) stage(old string) string {
	m.t.Helper()
	switch first, second := m.keys(); {
	case first == old && second == "":
		return "not begun"
	case first == old:
		return "begun"
	case second != "":
		return "switched"
	default:
		return "ended"
	}
}

// rotate changes a node's key, and calls at in each stage of it. In the end, no node has a
// second link.
func rotate(t *testing.T, m *machine, all []*machine, at func(stage string)) {
	t.Helper()
	old, _ := m.keys()
	began := time.Now()
	node.Eventually(t, time.Minute, func() string { // another node's change may not be over
		if r := m.Husk("net", "rotate-key"); r.Code != 0 {
			return r.Stderr
		}
		return ""
	})
	if r := m.Husk("net", "rotate-key"); r.Code == 0 || !strings.Contains(r.Stderr, "being changed already") {
		t.Errorf("a second change: code %d: %s", r.Code, r.Stderr)
	}
	last := ""
	node.Eventually(t, 3*time.Minute, func() string {
		stage := m.stage(old)
		if stage != last {
			t.Logf("%s: %s after %v", m.Uplink.Name(), stage, time.Since(began).Round(time.Second))
			last = stage
			at(stage)
		}
		if stage != "ended" {
			return "the change of the key has only " + stage
		}
		return ""
	})
	node.Eventually(t, 20*time.Second, func() string {
		for _, one := range all {
			if links := one.Must("ip", "-br", "link"); strings.Contains(links, "wg2") {
				return one.Uplink.Name() + " still has a second link:\n" + links
			}
		}
		return ""
	})
}

// TestRotateKey changes the keys of nodes while packets go between all of them, and kills huskds at
// each step of it. No packet is lost.
func TestRotateKey(t *testing.T) {
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	nodes := []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}
	store := startEtcd(t, nodes[0])
	for _, m := range nodes {
		m.Binary("husk-wireguard")
		m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
			"--node-name", m.Uplink.Name(), "--network-backend", "wireguard")
	}
	start(t, nodes...)
	for _, m := range nodes {
		m.run("a")
	}
	Reach(t, 30*time.Second, nodes...)
	a, b, c := nodes[0], nodes[1], nodes[2]
	var streams []*stream
	for _, s := range []struct {
		from *machine
		to   netip.Addr
	}{{a, b.pods[0].address(false)}, {b, a.pods[0].address(true)}, {c, a.pods[0].address(false)}} {
		streams = append(streams, s.from.pods[0].streamTo(t, s.to, 2*time.Millisecond))
	}
	for _, s := range streams {
		s.after(t, 500)
	}
	none := func(when string) {
		t.Helper()
		for _, s := range streams {
			if sent, lost, gap := s.end(); lost > 0 || sent == 0 {
				t.Errorf("%s: %d of %d packets lost, the longest gap was %v", when, lost, sent, gap)
			} else {
				t.Logf("%s: %d packets, none lost", when, sent)
			}
		}
	}
	rotate(t, a, nodes, func(string) {})
	rotate(t, c, nodes, func(stage string) {
		for _, m := range []*machine{c, a} {
			if stage != "ended" {
				m.huskd.Kill()
				m.restart()
			}
		}
	})
	none("while two keys were changed")
	Reach(t, 30*time.Second, nodes...)
	store.stop()
	remove(t, nodes...)
}
