// Package peering joins this node's pod network with those of other nodes, as the configuration
// says: it opens the store, finds out by which ways this node can receive packets, and starts what
// speaks BGP.
package peering

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/bgp"
	"github.com/huskd/husk/internal/network/companion"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/nodestore"
	"github.com/huskd/husk/internal/network/overlay"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/wireguard"
	"github.com/huskd/husk/internal/pod"
)

// Config configures a Peering.
type Config struct {
	nodestore.Config
	Instance    pod.Instance
	NodeIPs     []netip.Addr      // the node's addresses; none to find them
	Root, State string            // directories of huskd
	Event       func(nodes.Event) // takes changes of the ways to other nodes
	Lost        func([]peer.Lost) // takes the blocks that pods need and the node has lost
	Monitors    *os.File          // directory of the cgroup for husk-bgp and husk-wireguard, or nil
}

// Peering joins the node with others. It is nil, and its methods do nothing, on a node by itself.
type Peering struct {
	cfg     Config
	store   *nodestore.Store
	kernel  *overlay.Overlay
	prober  *heartbeat.Prober
	speaker nodes.Speaker // nil without BGP
	keys    nodes.Keys    // nil without WireGuard
	ways    nodes.Ways
	closers []io.Closer
	// controller is nil until the network is open.
	controller *nodes.Controller
	stop       context.CancelFunc // ends Run
	ended      chan struct{}      // closed when Run has ended
	leaving    atomic.Bool
}

// Open opens what a node of several needs. Nothing changes in the kernel yet.
func Open(cfg Config) (*Peering, error) {
	if cfg.Store == config.StoreNone {
		return nil, nil
	}
	n := &Peering{cfg: cfg}
	if err := n.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("network-store %s: %w", cfg.Store, err), n.Close())
	}
	return n, nil
}

func (n *Peering) open() (err error) {
	cfg := overlay.Config{Instance: n.cfg.Instance, NodeIPs: n.cfg.NodeIPs}
	program, missing := companion.Find(wireguard.Program)
	if missing == nil {
		cfg.StartWireGuard = func(link string, mtu int) error {
			return companion.Start(n.cfg.Monitors, program, link, strconv.Itoa(mtu))
		}
	}
	if n.kernel, err = overlay.Open(cfg); err != nil {
		return err
	}
	n.closers = append(n.closers, n.kernel)
	if n.prober, err = heartbeat.Open("", n.cfg.Node); err != nil {
		return err
	}
	n.closers = append(n.closers, n.prober)
	if err := n.findWays(missing); err != nil {
		return err
	}
	if err := n.openSpeaker(); err != nil {
		return err
	}
	if n.store, err = nodestore.Open(n.cfg.Config); err != nil {
		return err
	}
	n.closers = append(n.closers, n.store)
	return nil
}

func (n *Peering) bgpSocket() string { return filepath.Join(n.cfg.State, "network", "bgp.sock") }

// openSpeaker opens what speaks BGP. With another backend, it ends what spoke it before.
func (n *Peering) openSpeaker() error {
	if n.Backend() != backend.OnlyBGP {
		return bgp.Stop(n.bgpSocket())
	}
	c := n.cfg.BGP
	cfg := bgp.Config{Socket: n.bgpSocket(), Monitors: n.cfg.Monitors, AS: uint32(c.AS), Cluster: n.cfg.Subnets}
	var err error
	if cfg.Password, err = config.ReadPassword("bgp-password-file", c.BGPPassword); err != nil {
		return err
	}
	peers, _ := c.BGPPeers() // config.Parse has checked them
	for _, p := range peers {
		cfg.Peers = append(cfg.Peers, bgp.Peer{Address: p.Address, AS: p.AS, Password: cfg.Password, BFD: p.BFD, GTSM: p.GTSM})
	}
	speaker, err := bgp.Open(cfg)
	if err != nil {
		return fmt.Errorf("network-backend bgp: %w", err)
	}
	n.speaker, n.ways.AS = speaker, cfg.AS
	return nil
}

// findWays finds the ways by which this node can receive packets.
func (n *Peering) findWays(noProgram error) error {
	for _, way := range n.Backend().Ways() {
		if err := n.kernel.Supports(way); err != nil {
			n.cfg.Log.Info("pod network: this node lacks a way to others", "way", way, "error", err)
			if way == backend.WireGuard && n.Backend() == backend.OnlyWireGuard {
				return errors.Join(err, noProgram)
			}
			continue
		}
		switch way {
		case backend.VXLAN:
			n.ways.VXLAN = backend.VXLANOf(n.cfg.Node)
		case backend.IPIP:
			n.ways.IPIP = true
		case backend.WireGuard:
			keys, err := wireguard.OpenKeys(filepath.Join(n.cfg.Root, "network", "wireguard-key"), n.kernel.SetKeys)
			if err != nil {
				return err
			}
			n.keys = keys
			if n.cfg.Store != config.StoreFile {
				n.ways.Rotation = &peer.Rotation{Port: peer.RotationPort}
			}
		}
	}
	return nil
}

// Backend returns the configured backend.
func (n *Peering) Backend() backend.Backend { return backend.Backend(n.cfg.Backend) }

// Routers returns whether the node speaks BGP, and the routers with which it does.
func (n *Peering) Routers() (bgp bool, routers []netip.Addr) {
	peers, _ := n.cfg.BGP.BGPPeers() // config.Parse has checked them
	for _, p := range peers {
		routers = append(routers, p.Address)
	}
	return n.Backend() == backend.OnlyBGP, routers
}

// May is network.Config.May: whether a pod may get an address of a block.
func (n *Peering) May(block netip.Prefix) error {
	if n.leaving.Load() {
		return errdefs.ErrUnavailable.WithMessage("this node is leaving the network of nodes")
	}
	return n.store.May(block)
}

// Connect makes the controller of the node's open network. It fails if the node had another name
// when it gave its pods their addresses, and the store can't give them to the present one.
func (n *Peering) Connect(pods *network.Network) error {
	if n == nil {
		return nil
	}
	if n.store.Renamed != nil {
		if err := n.store.Renamed(pods.Blocks()); err != nil {
			return fmt.Errorf("network-store %s: %w", n.cfg.Store, err)
		}
	}
	n.controller = nodes.New(nodes.Config{
		Instance: n.cfg.Instance, Name: n.cfg.Node, Boot: n.cfg.Boot, Machine: host.MachineHash(), Cluster: n.cfg.Subnets, Backend: n.Backend(), Ways: n.ways,
		Store: n.cfg.Store, Registry: n.store, Kernel: n.kernel, Prober: n.prober, Speaker: n.speaker, Keys: n.keys, Pods: pods, Event: n.cfg.Event, Lost: n.cfg.Lost, Log: n.cfg.Log,
	})
	return nil
}

// Run follows the other nodes until ctx ends.
func (n *Peering) Run(ctx context.Context, running *errgroup.Group) {
	if n == nil {
		return
	}
	ctx, n.stop = context.WithCancel(ctx)
	n.ended = make(chan struct{})
	running.Go(func() error {
		defer close(n.ended)
		return n.controller.Run(ctx)
	})
}

// Store returns the open store, nil on a node by itself.
func (n *Peering) Store() *nodestore.Store {
	if n == nil {
		return nil
	}
	return n.store
}

// CanLeave reports whether the node has something in a store that Leave removes.
func (n *Peering) CanLeave() bool { return n != nil && n.store.Leave != nil }

// Leave ends Run, gives this node's blocks back and removes its record. Pods get no more addresses.
// unused returns nil once none has one; if it fails, the node stays as it is. If Leave fails after
// that, it can be repeated.
func (n *Peering) Leave(ctx context.Context, unused func() error) error {
	n.leaving.Store(true)
	if err := unused(); err != nil {
		n.leaving.Store(false)
		return err
	}
	n.stop()
	select {
	case <-n.ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	return n.store.Leave(ctx)
}

// Controller returns the controller, nil on a node by itself.
func (n *Peering) Controller() *nodes.Controller {
	if n == nil {
		return nil
	}
	return n.controller
}

// Verify returns how the kernel differs from the plan for one peer. Objects that aren't in the plan
// don't count.
func (n *Peering) Verify(s nodes.Status, p nodes.Peer) (out []string, err error) {
	diffs, err := n.kernel.Verify(backend.Plan{Links: s.Links, Peers: []*backend.Peer{p.Plan}, MTU: s.MTU})
	for _, d := range diffs {
		if !d.Foreign() {
			out = append(out, d.String())
		}
	}
	return out, err
}

// Teardown removes the links and routes to other nodes.
func (n *Peering) Teardown() error {
	if n == nil {
		return nil
	}
	return errors.Join(n.kernel.Teardown(), bgp.Stop(n.bgpSocket()))
}

// Close closes what Open has opened. Run has returned.
func (n *Peering) Close() error {
	if n == nil {
		return nil
	}
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
