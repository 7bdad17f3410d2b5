package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/bgp"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/lease/file"
	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/lease/kubernetes"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/overlay"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/wireguard"
)

// podNodes joins this node's pod network with those of others. It is nil, and its methods do
// nothing, on a node by itself.
type podNodes struct {
	d        *daemon
	subnets  []netip.Prefix // of the pods of all nodes
	registry peer.Registry
	kernel   *overlay.Overlay
	prober   *heartbeat.Prober
	speaker  nodes.Speaker // nil without BGP
	keys     nodes.Keys    // nil without WireGuard
	ways     nodes.Ways
	closers  []io.Closer
	// controller is nil until the network is open.
	controller *nodes.Controller
}

// openNodes opens what a node of several needs. Nothing changes in the kernel yet.
func openNodes(d *daemon, subnets []netip.Prefix) (*podNodes, error) {
	if d.cfg.Store == config.StoreNone {
		return nil, nil
	}
	if err := checkNodeIPs(d.cfg); err != nil {
		return nil, err
	}
	n := &podNodes{d: d, subnets: subnets}
	err := n.open()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network-store %s: %w", d.cfg.Store, err), n.close())
	}
	return n, nil
}

func (n *podNodes) open() (err error) {
	cfg := overlay.Config{Instance: n.d.instance}
	if cfg.NodeIPs, err = n.d.cfg.NodeIPs(); err != nil {
		return err
	}
	program, missing := wireguard.FindProgram()
	if missing == nil {
		cfg.StartWireGuard = func(link string, mtu int) error { return wireguard.Start(program, link, mtu) }
	}
	if n.kernel, err = overlay.Open(cfg); err != nil {
		return err
	}
	n.closers = append(n.closers, n.kernel)
	if n.prober, err = heartbeat.Open("", nodeName(n.d.cfg)); err != nil {
		return err
	}
	n.closers = append(n.closers, n.prober)
	if err := n.findWays(missing); err != nil {
		return err
	}
	if err := n.openSpeaker(); err != nil {
		return err
	}
	return n.openRegistry()
}

func (n *podNodes) bgpSocket() string { return filepath.Join(n.d.cfg.State, "network", "bgp.sock") }

// openSpeaker opens what speaks BGP. With another backend, it ends what spoke it before.
func (n *podNodes) openSpeaker() error {
	if n.backend() != backend.OnlyBGP {
		return bgp.Stop(n.bgpSocket())
	}
	c := n.d.cfg.BGP
	cfg := bgp.Config{Socket: n.bgpSocket(), AS: uint32(c.AS), Cluster: n.subnets}
	var err error
	if cfg.Password, err = readPassword("bgp-password-file", c.BGPPassword); err != nil {
		return err
	}
	peers, _ := c.BGPPeers() // config.Parse has checked them
	for _, p := range peers {
		cfg.Peers = append(cfg.Peers, bgp.Peer{Address: p.Address, AS: p.AS, Password: cfg.Password})
	}
	speaker, err := bgp.Open(cfg)
	if err != nil {
		return fmt.Errorf("network-backend bgp: %w", err)
	}
	n.speaker, n.ways.AS = speaker, cfg.AS
	return nil
}

// findWays finds the ways by which this node can receive packets.
func (n *podNodes) findWays(noProgram error) error {
	for _, way := range n.backend().Ways() {
		if err := n.kernel.Supports(way); err != nil {
			n.d.log.Info("pod network: this node lacks a way to others", "way", way, "error", err)
			if way == backend.WireGuard && n.backend() == backend.OnlyWireGuard {
				return errors.Join(err, noProgram)
			}
			continue
		}
		switch way {
		case backend.VXLAN:
			n.ways.VXLAN = backend.VXLANOf(nodeName(n.d.cfg))
		case backend.IPIP:
			n.ways.IPIP = true
		case backend.WireGuard:
			keys, err := wireguard.OpenKeys(filepath.Join(n.d.cfg.Root, "network", "wireguard-key"), n.kernel.SetKeys)
			if err != nil {
				return err
			}
			n.keys = keys
			if n.d.cfg.Store != config.StoreFile {
				n.ways.Rotation = &peer.Rotation{Port: peer.RotationPort}
			}
		}
	}
	return nil
}

func (n *podNodes) backend() backend.Backend { return backend.Backend(n.d.cfg.Backend) }

func (n *podNodes) openRegistry() (err error) {
	name := nodeName(n.d.cfg)
	switch n.d.cfg.Store {
	case config.StoreFile:
		n.registry = file.New(n.d.cfg.NodesFile, name, n.d.log)
	case config.StoreKubernetes:
		n.registry = kubernetes.New(kubernetes.Config{Connect: n.d.membership.connect, Node: name, Journal: n.d.journal})
	case config.StoreEtcd, config.StoreFlannel:
		n.registry, err = n.openEtcd(name)
	}
	return err
}

func (n *podNodes) openEtcd(name string) (peer.Registry, error) {
	c := n.d.cfg.Etcd
	password, err := readPassword("etcd-password-file", c.EtcdPassword)
	if err != nil {
		return nil, err
	}
	cfg := etcd.Config{
		Endpoints: c.EtcdEndpoints, Cluster: c.EtcdCluster, TTL: blockTTL, CA: c.EtcdCA, Cert: c.EtcdCert, Key: c.EtcdKey,
		Username: c.EtcdUser, Password: password, Insecure: c.EtcdInsecure,
	}
	var store interface {
		lease.Store
		io.Closer
	}
	if n.d.cfg.Store == config.StoreFlannel {
		store, err = etcd.NewFlannel(cfg, flannel.DefaultPrefix)
	} else {
		store, err = etcd.New(cfg)
	}
	if err != nil {
		return nil, err
	}
	n.closers = append(n.closers, store)
	return lease.New(lease.Config{
		Config: claim.Config{Node: name, Boot: n.d.facts.BootID, Pool: n.pool(), Store: "etcd at " + strings.Join(c.EtcdEndpoints, ",")},
		Store:  store, Journal: savedClaims{n.d.journal}, Clock: lease.SystemClock{}, Log: n.d.log,
	})
}

// readPassword returns the password in the file that a key of the configuration names, without one
// none.
func readPassword(key, file string) (string, error) {
	if file == "" {
		return "", nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// blockTTL is how long a block stays a node's that can't reach the store. It starts pods during
// that time.
const blockTTL = 24 * time.Hour

// pool returns the pool of blocks. Of an IPv6 subnet that is itself no larger than a node's usual
// block, nodes take smaller ones, though not in a flannel network.
func (n *podNodes) pool() claim.Pool {
	p := claim.Pool{Subnets: n.subnets, Length4: n.d.cfg.BlockLength, Length6: claim.DefaultLength6}
	for _, s := range n.subnets {
		if s.Addr().Is6() && s.Bits()+8 > p.Length6 && n.d.cfg.Store != config.StoreFlannel {
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

// may is network.Config.May: whether a pod may get an address of a block.
func (n *podNodes) may() func(netip.Prefix) error {
	if n == nil {
		return nil
	}
	return n.registry.May
}

// connect makes the controller of the node's open network.
func (n *podNodes) connect(pods *network.Network) error {
	if n == nil {
		return nil
	}
	n.controller = nodes.New(nodes.Config{
		Instance: n.d.instance, Name: nodeName(n.d.cfg), Boot: n.d.facts.BootID, Cluster: n.subnets, Backend: n.backend(), Ways: n.ways,
		Store: n.d.cfg.Store, Registry: n.registry, Kernel: n.kernel, Prober: n.prober, Speaker: n.speaker, Keys: n.keys, Pods: pods, Log: n.d.log,
	})
	return nil
}

// run follows the other nodes until ctx ends.
func (n *podNodes) run(ctx context.Context, running *errgroup.Group) {
	if n != nil {
		running.Go(func() error { return n.controller.Run(ctx) })
	}
}

// status returns the controller, nil on a node by itself.
func (n *podNodes) status() *nodes.Controller {
	if n == nil {
		return nil
	}
	return n.controller
}

// teardown removes the links and routes to other nodes.
func (n *podNodes) teardown() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.kernel.Teardown(), bgp.Stop(n.bgpSocket()))
}

func (n *podNodes) close() error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
