package etcd_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/peer"
)

// wipe makes etcd as if it had never run.
func (s *server) wipe() {
	s.t.Helper()
	s.kill()
	if err := os.RemoveAll(filepath.Join(s.dir, "data")); err != nil {
		s.t.Fatal(err)
	}
	s.run()
	s.listens()
}

// knows reports whether the node knows another one with its blocks.
func (m *member) knows(name string, blocks []netip.Prefix) bool {
	return slices.ContainsFunc(m.now().Peers, func(p *peer.Node) bool {
		return p.Name == name && slices.Equal(p.Blocks, slices.SortedFunc(slices.Values(blocks), netip.Prefix.Compare))
	})
}

// TestEmptied: whatever way etcd loses what nodes have written, the others go on with a node that
// can't reach it, and write that into etcd again. Nobody else gets its blocks.
func TestEmptied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cut   bool // all nodes from etcd
		empty func(t *testing.T, s *server)
	}{
		"Wiped":                {empty: func(_ *testing.T, s *server) { s.wipe() }},
		"WipedWhileAllAreAway": {true, func(_ *testing.T, s *server) { s.wipe() }},
		"WipedAndFull": {true, func(t *testing.T, s *server) { // its revision is higher than before
			s.wipe()
			client := s.client("", "")
			for i := range 1000 {
				if _, err := client.Put(t.Context(), "x", fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
		}},
		"Deleted": {empty: func(t *testing.T, s *server) {
			if _, err := s.client("", "").Delete(t.Context(), "/husk/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			toAway, toOthers := s.proxy(), s.proxy()
			cfg := etcd.Config{Endpoints: []string{toOthers.url}, TTL: 2 * time.Minute}
			away := join(t, "a", etcd.Config{Endpoints: []string{toAway.url}, TTL: cfg.TTL})
			others := []*member{join(t, "b", cfg), join(t, "c", cfg)}
			blocks := away.ready()
			for _, m := range others {
				m.ready()
				eventually(t, "all nodes are known", func() bool { return len(m.now().Peers) == 2 && m.knows("a", blocks) })
			}
			toAway.set(true)
			toOthers.set(c.cut)
			c.empty(t, s)
			toOthers.set(false)
			client := s.client("", "")
			eventually(t, "everything is in etcd again", func() bool {
				for _, m := range others {
					if !m.knows("a", blocks) || len(m.now().Peers) != 2 {
						t.Fatalf("node %s doesn't know node a with %v any more: %+v", m.name, blocks, m.now())
					}
				}
				resp, err := client.Get(t.Context(), "/husk/default/", clientv3.WithRange("/husk/default/settling"), clientv3.WithKeysOnly())
				return err == nil && len(resp.Kvs) == 3+3*2
			})
			late := join(t, "d", cfg)
			if of := late.ready(); slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return slices.Contains(of, b) }) {
				t.Errorf("node d has %v, of which node a has some: %v", of, blocks)
			}
			eventually(t, "the new node knows the others", func() bool { return late.knows("a", blocks) && len(late.now().Peers) == 3 })
			toAway.set(false)
			eventually(t, "node a knows the new one", func() bool {
				if !others[0].knows("a", blocks) {
					t.Fatalf("node b doesn't know node a with %v any more: %+v", blocks, others[0].now())
				}
				return len(away.now().Peers) == 3 && away.Status() == nil
			})
			if of := away.ready(); !slices.Equal(of, blocks) {
				t.Errorf("node a had %v, and has %v", blocks, of)
			}
			eventually(t, "nothing is kept any more", func() bool { return others[0].now().Loss == "" && len(others[0].now().Notes) == 0 })
		})
	}
}

// TestTakenOutAfterEmptied: a node that is deleted, or whose lease is revoked, is dropped at once.
// So it is after others wrote it into etcd again.
func TestTakenOutAfterEmptied(t *testing.T) {
	t.Parallel()
	s := start(t)
	p := s.proxy()
	cfg := etcd.Config{Endpoints: []string{s.url}, TTL: 2 * time.Minute}
	away, other := join(t, "a", etcd.Config{Endpoints: []string{p.url}, TTL: cfg.TTL}), join(t, "b", cfg)
	third := join(t, "c", cfg)
	blocks := away.ready()
	third.ready()
	other.ready()
	eventually(t, "all nodes are known", func() bool { return other.knows("a", blocks) && len(other.now().Peers) == 2 })
	p.set(true)
	s.wipe()
	client := s.client("", "")
	var lease clientv3.LeaseID
	eventually(t, "node a is in etcd again", func() bool {
		if !other.knows("a", blocks) {
			t.Fatalf("node b doesn't know node a with %v any more: %+v", blocks, other.now())
		}
		if other.now().Loss != "" {
			return false
		}
		resp, err := client.Get(t.Context(), "/husk/default/nodes/a")
		if err != nil || len(resp.Kvs) == 0 {
			return false
		}
		lease = clientv3.LeaseID(resp.Kvs[0].Lease)
		return true
	})
	if _, err := client.Delete(t.Context(), "/husk/default/nodes/a"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "node a is dropped", func() bool { return len(other.now().Peers) == 1 })
	p.set(false)
	eventually(t, "node a is there", func() bool { return other.knows("a", blocks) })
	p.set(true)
	if _, err := client.Revoke(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	eventually(t, "node a is dropped", func() bool { return len(other.now().Peers) == 1 })
}
