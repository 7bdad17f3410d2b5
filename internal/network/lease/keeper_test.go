package lease_test

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestFake(t *testing.T) {
	const ttl = 2 * time.Second
	leasetest.Run(t, ttl, func(*testing.T) lease.Store { return &leasetest.Fake{TTL: ttl} })
}

// memory is a journal in memory.
type memory struct {
	mu    sync.Mutex
	saved claim.Saved
}

func (m *memory) Load() (claim.Saved, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saved, nil
}

func (m *memory) Save(s claim.Saved) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.saved = s
	return nil
}

// cluster is a cluster of Keepers for peertest.
type cluster struct {
	store    lease.Store
	journals map[string]*memory
}

func newCluster(store lease.Store) *cluster { return &cluster{store, map[string]*memory{}} }

func (c *cluster) Join(t *testing.T, name string, _ netip.Addr) peer.Registry {
	if c.journals[name] == nil {
		c.journals[name] = new(memory)
	}
	k, err := lease.New(lease.Config{
		Config: claim.Config{Node: name, Boot: "boot-" + name, Pool: claim.Pool{Subnets: peertest.Subnets}, Store: "the store"},
		Store:  c.store, Journal: c.journals[name], Clock: lease.SystemClock{}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func (c *cluster) Leave(t *testing.T, name string) {
	if err := c.store.End(context.Background(), c.journals[name].saved.Session); err != nil {
		t.Fatal(err)
	}
}

func TestRegistry(t *testing.T) {
	peertest.Run(t, func(*testing.T) peertest.Cluster { return newCluster(&leasetest.Fake{TTL: time.Minute}) }, peertest.Options{})
}
