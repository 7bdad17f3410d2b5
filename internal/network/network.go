// Package network owns the pod network of one node: it assigns addresses to pods and makes the
// kernel agree. It is built in: an attachment is a function call, and no program is run.
//
// A lease is reserved, bound, releasing, and then gone, with its addresses in quarantine. Every
// step is in the journal before it is taken. So a crash between any two steps neither loses an
// address nor assigns it twice: Reconcile continues from the records. Nothing outlives a boot, so
// nothing here waits for a disk.
//
// Detach cuts the traffic at once. It leaves the deletion of the link, which waits for several RCU
// grace periods, to the reaper, which deletes all links that were cut in the last 50 ms together.
// Only then are the addresses released into quarantine.
//
// The packages below decide (ipam, plan), act on the kernel (datapath) and find conflicts with
// other software on the node (preflight).
package network

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/keylock"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/pod"
)

// Name is the network's name, as inspect shows it.
const Name = "husk"

// Config of the network of one instance on one node.
type Config struct {
	Instance pod.Instance
	Dir      string // the journal's directory
	// Netns is the path of the node's network namespace. Empty means the process's own.
	Netns string
	Mode  plan.Mode // empty is plan.PTP
	// Subnets are what pod addresses are allocated from: at most one per family, the primary first.
	// The IPv6 one is left out on a node without IPv6.
	Subnets []netip.Prefix
	// Cluster are the subnets of the pods of all nodes, the primary family's first, if there are
	// other nodes. Then Subnets is empty: pod addresses are allocated from this node's blocks of the
	// cluster's subnets, see SetBlocks.
	Cluster []netip.Prefix
	// May returns nil if an address of the block may be given to a pod now, and otherwise the reason
	// why not. For the zero Prefix it returns why this node has no block. It returns at once and
	// doesn't call the Network. A nil May permits everything.
	May func(block netip.Prefix) error `json:"-"`
	// Masquerade rewrites the source of packets to outside the pod subnets to the node's address.
	// NonMasquerade are further destinations to which pods send from their own addresses.
	Masquerade    bool
	NonMasquerade []netip.Prefix
	// BGP means that the node exchanges routes with others by BGP, and with the Routers.
	BGP     bool
	Routers []netip.Addr
	// Encrypted drops packets of other nodes' pods that don't come by a link to other nodes.
	Encrypted bool
	// Resolver is the address at which the node serves DNS to pods, one of plan.Resolvers. It is
	// invalid if the node doesn't.
	Resolver netip.Addr
	// PortTaken, if set, returns why a pod can't have a port of the node. It must not block.
	PortTaken func(pod.PortMapping) error `json:"-"`
	// Policy, if set, puts network policy in force for pods.
	Policy Policy `json:"-"`
	// Refused, if set, is called when a pod begins no further connections, as it holds too much of
	// the node's connection tracking table.
	Refused func(pod, message string) `json:"-"`
	// MTU of pods; 0 is that of SetMTU or, without one, the uplink's. Watch sets it for running pods
	// when it changes.
	MTU int
	// Quarantine is how long an address stays unused after release; 0 is ipam.DefaultQuarantine,
	// negative is none.
	Quarantine time.Duration
	Log        *slog.Logger // nil is slog.Default()
}

// Policy puts network policy in force for pods of the node. It doesn't call the Network.
type Policy interface {
	// Admit is called before a pod's link comes up. Once it has returned, the pod's packets meet its
	// policies. Its errors are like those of Attach.
	Admit(ctx context.Context, a pod.Attachment, addresses []netip.Prefix) error
	// Adopt is called for the pods that are attached when huskd starts. It doesn't wait.
	Adopt(a pod.Attachment, addresses []netip.Prefix)
	// Forget is called when a pod's packets are cut off.
	Forget(a pod.Attachment)
}

// noPolicy is the Policy of a network without one.
type noPolicy struct{}

func (noPolicy) Admit(context.Context, pod.Attachment, []netip.Prefix) error { return nil }
func (noPolicy) Adopt(pod.Attachment, []netip.Prefix)                        {}
func (noPolicy) Forget(pod.Attachment)                                       {}

// Network is an open network. Its methods may be called concurrently.
type Network struct {
	cfg   Config
	base  plan.BaseConfig
	log   *slog.Logger
	notes []string
	dp    *datapath.Datapath
	limit *connlimit.Limiter

	ledger *ledger
	reaper *reaper
	// changes are to be compared by Watch.
	changes changes
	drops   drops

	share      atomic.Pointer[share]      // never nil
	nodes      atomic.Pointer[plan.Nodes] // see SetNodes; nil if they aren't known
	changing   sync.Mutex                 // held while the share changes
	unfinished bool                       // the last change failed; Invariant: guarded by changing

	closing   sync.Once
	sandboxes keylock.Locks // held while working on a sandbox
	// kernelMu is held for reading while a sandbox's kernel objects change, and for writing while
	// all of them are compared or removed.
	kernelMu sync.RWMutex
	// Invariant: guarded by kernelMu. Once true, the base is never made again.
	tornDown bool
	// subnets is how many the base has: the blocks, and those that only running pods still have.
	// Invariant: guarded by kernelMu.
	subnets int
}

func (n *Network) plan(r *record) plan.Plan {
	return plan.For(plan.Node{Instance: n.cfg.Instance, Mode: r.Mode, MTU: n.ledger.mtu(r), Source: r.Source}, r.Attachment, r.Addresses)
}

// Open opens the network and makes its base on the node. Attached pods aren't affected; call
// Reconcile next.
func Open(ctx context.Context, cfg Config) (*Network, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	boot, err := host.BootID()
	if err != nil {
		return nil, fmt.Errorf("network: %w", err)
	}
	return open(cfg, boot)
}

func open(cfg Config, boot string) (*Network, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	n := &Network{cfg: cfg, log: cfg.Log, changes: changes{wake: make(chan struct{}, 1)}}
	n.base = plan.BaseConfig{Instance: cfg.Instance, Mode: cfg.Mode, Masquerade: cfg.Masquerade, NonMasquerade: cfg.NonMasquerade, Encrypted: cfg.Encrypted, BGP: cfg.BGP, Routers: cfg.Routers, Resolver: cfg.Resolver}
	n.base.Tag, _ = plan.Tag(cfg.Instance)
	if len(cfg.Cluster) > 0 {
		n.base.NodeLinks, n.base.TunnelPort = backend.LinkPrefix(cfg.Instance), peer.VXLANPort
	}
	ledger, err := openLedger(cfg, boot)
	if err != nil {
		return nil, err
	}
	n.ledger = ledger
	if err := n.openNode(); err != nil {
		if n.dp != nil {
			err = errors.Join(err, n.dp.Close())
		}
		if n.limit != nil {
			err = errors.Join(err, n.limit.Close())
		}
		return nil, errors.Join(err, ledger.journal.Close())
	}
	n.reaper = startReaper(n)
	return n, nil
}

// check fills in defaults and returns an error if the configuration is invalid.
func (c *Config) check() error {
	invalid := func(format string, args ...any) error {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(format, args...))
	}
	if _, err := plan.Tag(c.Instance); err != nil {
		return err
	}
	if c.Mode == "" {
		c.Mode = plan.PTP
	}
	if c.Mode != plan.PTP && c.Mode != plan.Bridge {
		return invalid("network.mode %q: use %s or %s", c.Mode, plan.PTP, plan.Bridge)
	}
	if c.MTU != 0 && (c.MTU < minMTU || c.MTU > maxMTU) {
		return invalid("network.mtu %d: use 1280 to 65535, or 0 for the uplink's", c.MTU)
	}
	c.Quarantine = ipam.QuarantineOf(c.Quarantine)
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Policy == nil {
		c.Policy = noPolicy{}
	}
	for _, s := range slices.Concat(c.Subnets, c.Cluster) {
		if a := s.Addr(); a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
			return invalid("pod-subnets: %v has addresses that pods can't have", s)
		}
	}
	var err error
	switch {
	case len(c.Cluster) == 0:
		_, err = ipam.New(c.Quarantine, c.Subnets...)
	case len(c.Subnets) > 0:
		return invalid("pod-subnets: a node of a cluster gets its subnets from it, and can't have %v of its own", c.Subnets)
	case c.Mode == plan.Bridge:
		return invalid("network.mode %q is for a node by itself: use %s in a cluster", c.Mode, plan.PTP)
	default:
		_, err = ipam.NewOfBlocks(c.Quarantine, c.Cluster, nil)
	}
	if err != nil {
		return fmt.Errorf("pod-subnets: %w", err)
	}
	return nil
}

// openNode checks the node, restores the leases and makes the base.
func (n *Network) openNode() error {
	dp, err := datapath.Open(n.cfg.Netns, n.cfg.Instance, "")
	if err != nil {
		return err
	}
	n.dp = dp
	six, why := dp.IPv6()
	usable := func(subnets []netip.Prefix) (out []netip.Prefix) {
		for _, s := range subnets {
			if s.Addr().Is6() && !six {
				n.notes = append(n.notes, fmt.Sprintf("pods get no IPv6 address from %v: %s", s, why))
				n.log.Warn("network: " + n.notes[len(n.notes)-1])
				continue
			}
			out = append(out, s)
		}
		return out
	}
	n.base.Subnets, n.base.Cluster = usable(n.cfg.Subnets), usable(n.cfg.Cluster)
	if len(n.base.Subnets)+len(n.base.Cluster) == 0 {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("this node has no IPv6 (%s) and pod-subnets has only that: add an IPv4 subnet", why))
	}
	own := share{Blocks: n.base.Subnets}
	if len(n.base.Cluster) > 0 {
		own = n.ledger.loadShare(n.base.Cluster)
	} else if err := n.ledger.forgetShare(); err != nil {
		return err
	}
	n.share.Store(&own)
	if err := dp.InNode(func() error { return preflight.Overlap(n.cfg.Instance, "", own.Blocks) }); err != nil {
		return err
	}
	alloc, err := own.allocator(n.cfg, n.base.Cluster)
	if err != nil {
		return err
	}
	if err := n.ledger.restore(alloc, time.Now()); err != nil {
		return err
	}
	n.ledger.retire(own.Retired)
	if err := setSysctls(n); err != nil {
		return err
	}
	if len(n.base.Cluster) > 0 {
		known, err := dp.Nodes()
		if err != nil {
			return err
		}
		n.nodes.Store(known)
	}
	b := n.basePlan()
	n.subnets = subnetsOf(b, n.cfg)
	if err := dp.Ensure(b); err != nil {
		return err
	}
	if err := dp.SetNodes(nil, b.Table.Nodes); err != nil { // of a table that had to be made again
		return err
	}
	setTimeouts(n)
	return openLimit(n)
}

// subnetsOf returns how many subnets a base has.
func subnetsOf(b plan.Base, cfg Config) int {
	if cfg.Resolver.IsValid() {
		return len(b.Host.Addresses) - 1
	}
	return len(b.Host.Addresses)
}

// basePlan returns the plan of the base, including what pods of former configurations need.
func (n *Network) basePlan() plan.Base {
	c := n.base
	c.Subnets, c.Nodes = n.share.Load().Blocks, n.nodes.Load()
	c.Leased = map[plan.Mode][]netip.Prefix{}
	for _, r := range n.ledger.all() {
		for _, p := range r.Addresses {
			if s := p.Masked(); !slices.Contains(c.Leased[r.Mode], s) {
				c.Leased[r.Mode] = append(c.Leased[r.Mode], s)
			}
		}
	}
	for _, subnets := range c.Leased {
		slices.SortFunc(subnets, netip.Prefix.Compare)
	}
	return plan.ForNode(c)
}

// setSysctls sets the sysctls that routing needs, after recording their former values.
func setSysctls(n *Network) error {
	changes, err := n.dp.MissingSysctls(plan.ForNode(n.base).Sysctls)
	if err != nil {
		return err
	}
	return changeSysctls(n, changes)
}

// changeSysctls changes sysctls, after recording their former values.
func changeSysctls(n *Network, changes []datapath.Sysctl) error {
	for _, c := range changes {
		if _, recorded := n.ledger.journal.Get("sysctl/" + c.Name); recorded {
			continue
		}
		if err := n.ledger.sysctls.Put(c.Name, c.Former); err != nil {
			return err
		}
	}
	return n.dp.SetSysctls(changes)
}

// Close stops the background work, within some seconds, and closes the journal. Pods stay attached.
// A second call does nothing.
func (n *Network) Close() error {
	var err error
	n.closing.Do(func() {
		err = errors.Join(n.reaper.stop(), n.dp.Close(), n.limit.Close(), n.ledger.journal.Close())
	})
	return err
}

// Teardown removes everything of the network from the node and restores the sysctls. It fails if a
// pod is attached or a detachment isn't finished. Afterwards only Teardown and Close may be called.
func (n *Network) Teardown() error {
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	if attached := len(n.ledger.all()); attached > 0 {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("the network has %d attachments: detach them first", attached))
	}
	n.tornDown = true
	if err := errors.Join(n.dp.Teardown(), n.limit.Teardown()); err != nil {
		return err
	}
	return n.restoreSysctls()
}

// restoreSysctls sets back what setSysctls changed and forgets the former values.
func (n *Network) restoreSysctls() error {
	former := map[string]string{}
	errs := n.ledger.sysctls.Load(func(name, value string) error {
		former[name] = value
		return nil
	})
	if err := n.dp.RestoreSysctls(former); err != nil {
		return errors.Join(append(errs, err)...)
	}
	for name := range former {
		errs = append(errs, n.ledger.sysctls.Delete(name))
	}
	return errors.Join(errs...)
}
