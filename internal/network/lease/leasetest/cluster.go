package leasetest

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

// Journal is a lease.Journal in memory.
type Journal struct {
	mu    sync.Mutex
	saved claim.Saved
}

// Load implements lease.Journal.
func (j *Journal) Load() (claim.Saved, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.saved, nil
}

// Save implements lease.Journal.
func (j *Journal) Save(s claim.Saved) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.saved = s
	return nil
}

// Change changes what the journal has.
func (j *Journal) Change(f func(*claim.Saved)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	f(&j.saved)
}

// Cluster is a peertest.Cluster of Keepers with one store.
type Cluster struct {
	Store    lease.Store
	journals map[string]*Journal
}

// Join implements peertest.Cluster.
func (c *Cluster) Join(t *testing.T, name string, _ netip.Addr) peer.Registry {
	return c.Keeper(t, name)
}

// Keeper returns the Keeper of a node. It has the journal of the one before.
func (c *Cluster) Keeper(t testing.TB, name string) *lease.Keeper {
	t.Helper()
	if c.journals == nil {
		c.journals = map[string]*Journal{}
	}
	if c.journals[name] == nil {
		c.journals[name] = new(Journal)
	}
	k, err := lease.New(lease.Config{
		Config: claim.Config{Node: name, Boot: "boot-" + name, Pool: claim.Pool{Subnets: peertest.Subnets}, Store: "the store"},
		Store:  c.Store, Journal: c.journals[name], Clock: lease.SystemClock{}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Leave implements peertest.Cluster.
func (c *Cluster) Leave(t *testing.T, name string) {
	t.Helper()
	saved, _ := c.journals[name].Load()
	if err := c.Store.End(context.Background(), saved.Session); err != nil {
		t.Fatal(err)
	}
}
