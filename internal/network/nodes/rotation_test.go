package nodes_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
)

// keys are those of a node.
type keys struct{ first, second peer.Key }

// keyring holds a node's keys in memory.
type keyring struct {
	mu   sync.Mutex
	keys keys
}

func (r *keyring) change(change func(*keys)) keys {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.keys)
	return r.keys
}

func (r *keyring) now() keys { return r.change(func(*keys) {}) }

func (r *keyring) Public() (first, second peer.Key) {
	k := r.now()
	return k.first, k.second
}

func (r *keyring) Begin() error {
	r.change(func(k *keys) { k.second = peer.Key{k.first[0] + 1} })
	return nil
}

func (r *keyring) Switch() error {
	r.change(func(k *keys) { k.first = k.second })
	return nil
}

func (r *keyring) End() error {
	r.change(func(k *keys) { k.second = peer.Key{} })
	return nil
}

// encrypts returns a record of a node that has WireGuard.
func encrypts(name, at, block string, key byte) *peer.Node {
	n := record(name, at, block)
	n.WireGuard, n.Rotation = []peer.WireGuard{{Key: peer.Key{key}, Port: peer.WireGuardPort}}, &peer.Rotation{Port: peer.RotationPort}
	return n
}

const firstLink, secondLink = "hn0b5ewg", "hn0b5ewg2"

// hear makes a packet come by a link from the peer with a key.
func (w *world) hear(link string, key byte, alive bool) {
	id := backend.TunnelID{Link: link, Key: peer.Key{key}}
	w.set(func() {
		w.sessions[id] = backend.Session{Alive: alive, Own: w.own(link), Received: w.sessions[id].Received + 100}
	})
}

// startRotation runs a controller whose peer b changes keys with it, and c not: it has an older
// version of Husk. d is down.
func startRotation(t *testing.T, check func(w *world, c *nodes.Controller, k *keyring)) {
	startWith(t, func(cfg *nodes.Config) {
		cfg.Backend, cfg.Keys, cfg.Ways.Rotation = backend.OnlyWireGuard, &keyring{keys: keys{first: peer.Key{10}}}, &peer.Rotation{Port: peer.RotationPort}
	}, func(w *world, c *nodes.Controller, cfg nodes.Config) {
		w.sessions = map[backend.TunnelID]backend.Session{}
		w.own = func(link string) peer.Key {
			k := cfg.Keys.(*keyring).now()
			if link == secondLink && k.second != (peer.Key{}) {
				return k.second
			}
			return k.first
		}
		older := encrypts("c", "192.0.2.3", "10.201.3.0/24", 3)
		older.Rotation = nil
		w.see(peer.View{Blocks: cfg.Cluster[:0], Peers: []*peer.Node{encrypts("b", "192.0.2.2", "10.201.2.0/24", 2), older, encrypts("d", "192.0.2.4", "10.201.4.0/24", 4)}})
		w.hear(firstLink, 2, true)
		w.hear(firstLink, 3, true)
		w.after(time.Second)
		check(w, c, cfg.Keys.(*keyring))
	})
}

// ask asks for a change of the key. The test's own context is of outside the bubble.
func ask(c *nodes.Controller, now bool) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return c.RotateKey(ctx, now)
}

// link returns the link of the route to a peer.
func (w *world) link(peer int) string { return w.lastPlan().Peers[peer].Routes[0].Link }

func TestRotateKey(t *testing.T) {
	startRotation(t, func(w *world, c *nodes.Controller, k *keyring) {
		expect := func(when string, want keys, links string) {
			t.Helper()
			w.after(1500 * time.Millisecond)
			told := w.lastAnnounced()
			if got := w.link(0) + " " + w.link(1); k.now() != want || got != links || told.Key() != want.first || told.Rotation.Key != want.second {
				t.Errorf("%s: keys %v, links %s, announced %v and %v; want %v, %s", when, k.now(), got, told.Key(), told.Rotation.Key, want, links)
			}
		}
		before, begun, switched, ended := keys{first: peer.Key{10}}, keys{peer.Key{10}, peer.Key{11}}, keys{peer.Key{11}, peer.Key{11}}, keys{first: peer.Key{11}}
		expect("before", before, firstLink+" "+firstLink)
		if err := ask(c, false); err != nil {
			t.Fatal(err)
		}
		expect("begun", begun, firstLink+" "+firstLink)
		if err := ask(c, false); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a second change: %v", err)
		}
		w.after(2 * time.Minute)
		expect("without b's second link", begun, firstLink+" "+firstLink)
		if n := fmt.Sprint(c.Status().Notes); !strings.Contains(n, "waits for b: let UDP port 51822 pass") {
			t.Errorf("the notes are %s", n)
		}
		w.hear(secondLink, 2, true)
		expect("with it", begun, secondLink+" "+firstLink)
		for range 20 { // b hasn't followed yet
			w.hear(firstLink, 2, true)
			w.after(500 * time.Millisecond)
		}
		expect("b still uses the first link", begun, secondLink+" "+firstLink)
		w.after(quiet)
		expect("switched", switched, secondLink+" "+firstLink)
		w.after(quiet)
		expect("b doesn't know the new key", switched, secondLink+" "+firstLink)
		w.hear(firstLink, 2, true)
		expect("b knows it", switched, firstLink+" "+firstLink)
		w.after(quiet)
		expect("ended", ended, firstLink+" "+firstLink)
		if st := c.Status(); len(st.Notes) > 0 || len(st.Links) != 1 {
			t.Errorf("in the end, there are the notes %v and links %v", st.Notes, st.Links)
		}
	})
}

const quiet = 8 * time.Second

// TestRotateKeyNow goes on without a peer that doesn't follow.
func TestRotateKeyNow(t *testing.T) {
	startRotation(t, func(w *world, c *nodes.Controller, k *keyring) {
		for range 2 {
			if err := ask(c, true); err != nil {
				t.Fatal(err)
			}
			w.after(time.Second)
		}
		if want := (keys{peer.Key{11}, peer.Key{11}}); k.now() != want {
			t.Errorf("keys %v, want %v", k.now(), want)
		}
	})
}

// TestRotateKeyRefused: a node can't change its key while another one does, as its second link has
// the old key then.
func TestRotateKeyRefused(t *testing.T) {
	startRotation(t, func(w *world, c *nodes.Controller, _ *keyring) {
		changing := encrypts("b", "192.0.2.2", "10.201.2.0/24", 2)
		changing.Rotation.Key = peer.Key{20}
		w.see(peer.View{Peers: []*peer.Node{changing}})
		w.after(time.Second)
		if err := ask(c, false); err == nil || !strings.Contains(err.Error(), "node b is changing its key") {
			t.Errorf("while b changes its key: %v", err)
		}
		w.hear(secondLink, 20, true)
		w.after(1500 * time.Millisecond)
		if w.link(0) != secondLink {
			t.Errorf("packets go to b by %s", w.link(0))
		}
		w.set(func() { clear(w.sessions) }) // b has died
		w.after(1500 * time.Millisecond)
		if err := ask(c, false); err != nil {
			t.Errorf("after b has died in the middle of it: %v", err)
		}
	})
	for want, edit := range map[string]func(*nodes.Config){
		"doesn't use WireGuard": func(*nodes.Config) {},
		"written by hand":       func(cfg *nodes.Config) { cfg.Keys = &keyring{} },
	} {
		startWith(t, edit, func(_ *world, c *nodes.Controller, _ nodes.Config) {
			if err := ask(c, false); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}
