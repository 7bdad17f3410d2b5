package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/kernelwatch"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
)

// share is what this node has of a cluster's network. It is in the journal, and outlives a reboot,
// so that pods can start while the cluster's registry is away. Of a node by itself, the blocks are
// the configured subnets, and nothing is in the journal.
//
// Invariant: a share doesn't change.
type share struct {
	Blocks []netip.Prefix `json:"blocks"` // in the order in which they are filled
	// Retired are former blocks, of which pods may still have addresses.
	Retired []netip.Prefix `json:"retired,omitempty"`
	MTU     int            `json:"mtu,omitempty"` // see SetMTU
}

// shareID is the ID of the only record of ledger.shares, and shareKey is its key in the journal.
const (
	shareID  = "share"
	shareKey = "cluster/" + shareID
)

// checkBlock returns an error unless the block is a subnet of the cluster's.
func checkBlock(cluster []netip.Prefix, b netip.Prefix) error {
	if err := ipam.Check(b); err != nil {
		return err
	}
	if !slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Bits() <= b.Bits() && c.Contains(b.Addr()) }) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("block %v is outside the pod subnets %v", b, cluster))
	}
	return nil
}

// valid returns the share without blocks that a node of the cluster can't have, and an error that
// names them.
func (s share) valid(cluster []netip.Prefix) (share, error) {
	out := share{MTU: s.MTU}
	var errs []error
	filter := func(blocks []netip.Prefix) (valid []netip.Prefix) {
		for _, b := range blocks {
			err := checkBlock(cluster, b)
			if err == nil && slices.ContainsFunc(slices.Concat(out.Blocks, valid), b.Overlaps) {
				err = fmt.Errorf("block %v overlaps another", b)
			}
			if err == nil {
				valid = append(valid, b)
			}
			errs = append(errs, err)
		}
		return valid
	}
	out.Blocks = filter(s.Blocks)
	out.Retired = filter(s.Retired)
	return out, errors.Join(errs...)
}

// next returns the share that follows when this node has other blocks, and an error that names
// those that it can't have. check returns why a new block can't be used. ranges are the
// allocator's. The blocks that stay keep their order.
func (s share) next(blocks []netip.Prefix, ranges []ipam.Usage, check func(netip.Prefix) error) (share, error) {
	next := share{MTU: s.MTU}
	for _, b := range s.Blocks {
		if slices.Contains(blocks, b) {
			next.Blocks = append(next.Blocks, b)
		}
	}
	var errs []error
	for _, b := range blocks {
		if slices.Contains(next.Blocks, b) {
			continue
		}
		err := check(b)
		for _, u := range ranges {
			stays := slices.Contains(next.Blocks, u.Range) || u.Used+u.Quarantined > 0
			if err == nil && stays && u.Range != b && u.Range.Overlaps(b) {
				err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("block %v overlaps block %v, which pods of this node have", b, u.Range))
			}
		}
		if err == nil && slices.ContainsFunc(next.Blocks, b.Overlaps) {
			err = errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("block %v overlaps another of this node", b))
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		next.Blocks = append(next.Blocks, b)
	}
	for _, u := range ranges {
		if !slices.Contains(next.Blocks, u.Range) {
			next.Retired = append(next.Retired, u.Range)
		}
	}
	return next, errors.Join(errs...)
}

// allocator returns an allocator of the share's blocks.
func (s share) allocator(cfg Config, cluster []netip.Prefix) (*ipam.Allocator, error) {
	if len(cluster) == 0 {
		return ipam.New(cfg.Quarantine, s.Blocks...)
	}
	alloc, err := ipam.NewOfBlocks(cfg.Quarantine, cluster, cfg.May)
	if err != nil {
		return nil, err
	}
	for _, b := range slices.Concat(s.Blocks, s.Retired) {
		if err := alloc.AddBlock(b); err != nil {
			return nil, err
		}
	}
	return alloc, nil
}

// SetBlocks sets this node's blocks of the cluster's subnets. Pods get their addresses of these
// from now on, and of no others. Pods that have addresses of a former block keep them, and the
// block's routes stay until the last of them has gone.
//
// If a block can't be used, because it is invalid or overlaps another subnet of the node, the
// others are set nevertheless, and the error names it.
func (n *Network) SetBlocks(ctx context.Context, blocks []netip.Prefix) error {
	if len(n.base.Cluster) == 0 {
		return errdefs.ErrFailedPrecondition.WithMessage("this node has pod subnets of its own and gets none from a cluster")
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	if six := slices.ContainsFunc(n.base.Cluster, func(c netip.Prefix) bool { return c.Addr().Is6() }); !six {
		// A note says why pods on this node have no IPv6.
		blocks = slices.DeleteFunc(slices.Clone(blocks), func(b netip.Prefix) bool { return b.Addr().Is6() })
	}
	was := n.share.Load()
	ranges, _ := n.ledger.usage()
	next, refused := was.next(blocks, ranges, func(b netip.Prefix) error {
		if err := checkBlock(n.base.Cluster, b); err != nil {
			return err
		}
		return n.dp.InNode(func() error { return preflight.Overlap(n.cfg.Instance, "", []netip.Prefix{b}) })
	})
	if slices.Equal(was.Blocks, next.Blocks) && !n.unfinished {
		return refused
	}
	n.unfinished = true
	if err := n.changeShare(ctx, next); err != nil {
		return errors.Join(refused, err)
	}
	n.unfinished = false
	n.log.Info("network: this node's blocks have changed", "blocks", next.Blocks, "before", was.Blocks)
	return refused
}

// changeShare takes a share into use. Blocks are retired before their routes go, and added after
// theirs are there. The caller holds changing.
func (n *Network) changeShare(ctx context.Context, s share) error {
	// The reserve lets a node with a full disk give up blocks.
	if err := n.ledger.shares.PutUsingReserve(shareID, s); err != nil {
		return err
	}
	if err := n.ledger.journal.Sync(ctx); err != nil {
		return err
	}
	crashpoint.Hit("network.share")
	n.ledger.retire(s.Retired)
	if err := n.remakeBase(&s); err != nil {
		return err
	}
	return n.ledger.add(s.Blocks)
}

// remakeBase makes the base of a share and removes what is no longer part of it. If the share is
// nil, it does this only if the last pod of a former subnet has gone.
func (n *Network) remakeBase(s *share) error {
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	switch {
	case s == nil && (n.tornDown || n.subnets == len(n.share.Load().Blocks)):
		return nil
	case n.tornDown:
		return errdefs.ErrFailedPrecondition.WithMessage("the network was removed from the node")
	case s != nil:
		n.share.Store(s)
	}
	b := n.basePlan()
	if s == nil && subnetsOf(b, n.cfg) == n.subnets {
		return nil
	}
	if err := n.dp.Ensure(b); err != nil {
		return err
	}
	n.subnets = subnetsOf(b, n.cfg)
	return n.dp.SweepBase(b)
}

// Blocks returns how many addresses of each block are in use. It includes former blocks that pods
// still have, and the addresses of pods that are in none, each as a block of its own.
func (n *Network) Blocks() (out []peer.Usage) {
	ranges, _ := n.ledger.usage()
	for _, u := range ranges {
		out = append(out, peer.Usage{Block: u.Range, Size: u.Size, Used: u.Used + u.Quarantined})
	}
	for _, addr := range n.ledger.strays() {
		out = append(out, peer.Usage{Block: netip.PrefixFrom(addr, addr.BitLen()), Size: 1, Used: 1})
	}
	return out
}

// SetNodes says by which addresses nodes know each other. Until then, they are those that the
// kernel has from a former huskd. The caller doesn't modify it afterwards.
func (n *Network) SetNodes(nodes plan.Nodes) error {
	nodes.Sort()
	was := n.nodes.Load()
	if was.Equal(&nodes) {
		return nil
	}
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	if n.tornDown {
		return nil
	}
	// The rules follow the elements that they need.
	err := n.dp.SetNodes(was, &nodes)
	if err != nil && !datapath.BaseMissing(err) {
		return err
	}
	n.nodes.Store(&nodes)
	if err != nil {
		return n.remakeTable()
	}
	if was == nil || (len(was.Links) == 0) != (len(nodes.Links) == 0) {
		return n.dp.Ensure(n.basePlan())
	}
	return nil
}

// The MTUs that pods can have. The smaller one is the minimum of IPv6.
const minMTU, maxMTU = 1280, 65535

// mtu returns the MTU of pods.
func (n *Network) mtu(uplink datapath.Uplink) int {
	return cmp.Or(n.cfg.MTU, n.share.Load().MTU, uplink.MTU)
}

// SetMTU sets the MTU of pods, unless one is configured: of those that are attached from now on,
// and by Watch of those that run. It is in force until it is changed, also after a restart; 0 is
// the uplink's.
func (n *Network) SetMTU(mtu int) {
	if mtu != 0 {
		mtu = min(max(mtu, minMTU), maxMTU)
	}
	n.changing.Lock()
	defer n.changing.Unlock()
	next := *n.share.Load()
	if next.MTU == mtu {
		return
	}
	next.MTU = mtu
	n.share.Store(&next)
	n.changes.add(kernelwatch.Changes{Uplink: true})
	if len(n.base.Cluster) == 0 {
		return
	}
	if err := n.ledger.shares.PutUsingReserve(shareID, next); err != nil {
		n.log.Error("network: the MTU of pods isn't in the journal; pods that start soon after a restart may get another", "mtu", mtu, "error", err)
	}
}
