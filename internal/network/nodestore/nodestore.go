// Package nodestore opens the store that tells the nodes of a pod network of each other, as the
// configuration names it.
package nodestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/lease/file"
	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/lease/kubernetes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/policy/exchange"
)

// Config configures a Store.
type Config struct {
	config.PodNetwork
	Subnets []netip.Prefix // of the pods of all nodes
	Node    string         // the node's name
	Boot    string         // the machine's boot ID
	// Connect returns a client of the API server once there is one, or the error of ctx. Only the
	// store kubernetes needs it.
	Connect func(ctx context.Context) (*cluster.Client, error)
	Journal *journal.Journal
	Log     *slog.Logger
}

// Store is an open store, and this node's registry in it.
type Store struct {
	peer.Registry
	connection io.Closer // nil without one
	// Workloads tells other nodes of this one's pods. It is nil unless the store is etcd.
	Workloads exchange.Store
	// Leave gives this node's blocks back and removes its record. The Registry's Run has returned,
	// and no pod has an address of the blocks. It is nil if others than the node decide on both.
	Leave func(context.Context) error
	// Renamed returns an error if pods have addresses that are the node's under another name only,
	// and the store can't give them to the present one. It is nil if the store can.
	Renamed func(used []peer.Usage) error
}

// Open opens the store. It sends no request yet.
func Open(cfg Config) (*Store, error) {
	switch cfg.Store {
	case config.StoreFile:
		registry := file.New(cfg.NodesFile, cfg.Node, cfg.Log)
		return &Store{Registry: registry, Renamed: func(used []peer.Usage) error { return renamedFile(cfg, registry, used) }}, nil
	case config.StoreKubernetes:
		registry := kubernetes.New(kubernetes.Config{Connect: cfg.Connect, Node: cfg.Node, Journal: cfg.Journal})
		return &Store{Registry: registry, Leave: registry.Leave, Renamed: registry.Renamed}, nil
	case config.StoreEtcd, config.StoreFlannel:
		return openEtcd(cfg)
	}
	return nil, fmt.Errorf("there is no store of the name %q", cfg.Store)
}

// fileNodeKey is the key in the journal of the name under which the node was last in a nodes file.
const fileNodeKey = "network/file-node"

func renamedFile(cfg Config, registry *file.Registry, used []peer.Usage) error {
	former, known := cfg.Journal.Get(fileNodeKey)
	if known && string(former) == cfg.Node {
		return nil
	}
	if known && slices.ContainsFunc(used, func(u peer.Usage) bool { return u.Used > 0 }) {
		if err := registry.Renamed(string(former)); err != nil {
			return err
		}
	}
	return cfg.Journal.Put(fileNodeKey, []byte(cfg.Node))
}

// Close closes the connection to the store. The Registry's Run has returned.
func (s *Store) Close() error {
	if s.connection == nil {
		return nil
	}
	return s.connection.Close()
}

func openEtcd(cfg Config) (*Store, error) {
	password, err := config.ReadPassword("etcd-password-file", cfg.EtcdPassword)
	if err != nil {
		return nil, err
	}
	c := etcd.Config{
		Endpoints: cfg.EtcdEndpoints, Cluster: cfg.EtcdCluster, TTL: blockTTL, CA: cfg.EtcdCA, Cert: cfg.EtcdCert, Key: cfg.EtcdKey,
		Username: cfg.EtcdUser, Password: password,
	}
	var store interface {
		lease.Store
		io.Closer
	}
	if cfg.Store == config.StoreFlannel {
		store, err = etcd.NewFlannel(c, flannel.DefaultPrefix)
	} else {
		store, err = etcd.New(c)
	}
	if err != nil {
		return nil, err
	}
	keeper, err := lease.New(lease.Config{
		Config: claim.Config{Node: cfg.Node, Boot: cfg.Boot, Pool: pool(cfg), Store: "etcd at " + strings.Join(cfg.EtcdEndpoints, ",")},
		Store:  store, Journal: savedClaims{cfg.Journal}, Clock: lease.SystemClock{}, Log: cfg.Log,
	})
	if err != nil {
		return nil, errors.Join(err, store.Close())
	}
	opened := &Store{Registry: keeper, connection: store, Leave: keeper.Leave}
	if own, ok := store.(*etcd.Store); ok && cfg.Store == config.StoreEtcd {
		opened.Workloads = etcd.Workloads{Store: own}
	}
	return opened, nil
}

// blockTTL is how long a block stays a node's that can't reach the store. It starts pods during
// that time.
const blockTTL = 24 * time.Hour

// pool returns the pool of blocks. Of an IPv6 subnet that is itself no larger than a node's usual
// block, nodes take smaller ones, though not in a flannel network.
func pool(cfg Config) claim.Pool {
	p := claim.Pool{Subnets: cfg.Subnets, Length4: cfg.BlockLength, Length6: claim.DefaultLength6}
	for _, s := range cfg.Subnets {
		if s.Addr().Is6() && s.Bits()+8 > p.Length6 && cfg.Store != config.StoreFlannel {
			p.Length6 = min(s.Bits()+16, 112)
		}
	}
	return p
}

// savedClaims keeps the state of the node's claims in the journal.
type savedClaims struct{ journal *journal.Journal }

const claimsKey = "network/claims"

// Load implements lease.Journal.
func (s savedClaims) Load() (saved claim.Saved, err error) {
	if data, ok := s.journal.Get(claimsKey); ok {
		err = json.Unmarshal(data, &saved)
	}
	return saved, err
}

// Save implements lease.Journal.
func (s savedClaims) Save(saved claim.Saved) error {
	data, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	if err := s.journal.Put(claimsKey, data); err != nil {
		return err
	}
	return s.journal.Sync(context.Background())
}
