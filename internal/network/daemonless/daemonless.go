// Package daemonless is the pod network for callers that live for one call, such as a CNI plugin.
// Any number of processes work on one network at the same time, and keep nothing in memory between
// calls.
//
// The state is in a database below the network's directory, one per boot. After a reboot, no
// namespace, link or conntrack entry is left, so the state of an earlier boot is void. A call is
// one or two transactions, each O(log n) in the number of leases. The work in the kernel happens
// between them, without the database's lock.
//
// A lease is recorded before anything of it is created, and forgotten after everything of it is
// gone. If a process dies in between, the record lets Attach, Detach or Collect continue. Nothing
// waits for a disk: a transaction survives the death of the process, and no state needs to survive
// that of the node.
package daemonless

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Config of a network.
type Config struct {
	// Dir holds the state. The network's instance, and so the names of everything that it has in
	// the kernel, derive from it.
	Dir string
	// Netns is the path of the node's network namespace. Empty means the process's own.
	Netns string
	Mode  plan.Mode // empty is plan.PTP
	// Bridge is the bridge's name in mode bridge; empty is the instance's default.
	Bridge string
	// Ranges are the sets that an attachment gets one address of each: at most one set per family,
	// the primary first.
	Ranges     []ipam.Ranges
	Masquerade bool
	MTU        int                // 0 is the uplink's
	Routes     []plan.Destination // none means everything
	NoHairpin  bool
	// Quarantine is how long an address stays unused after release; 0 is ipam.DefaultQuarantine,
	// negative is none.
	Quarantine time.Duration
	// Close, if set, closes a call's sockets, possibly later. The kernel frees what a call has
	// deleted after an RCU grace period. Closing an nftables socket before that waits for it, 10 ms
	// or more, and so does everyone who changes a table meanwhile (nft_rcv_nl_event in
	// net/netfilter/nf_tables_api.c).
	Close func(io.Closer) error
	Log   *slog.Logger // nil is slog.Default()
	Boot  string       // empty is the kernel's boot ID
}

// Network is one network of the node. Its methods may be called concurrently.
type Network struct {
	cfg      Config
	instance pod.Instance
	tag      uint32
}

// New returns a network. It changes nothing on the node.
func New(cfg Config) (*Network, error) {
	if cfg.Boot == "" {
		var err error
		if cfg.Boot, err = host.BootID(); err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
	}
	if cfg.Mode == "" {
		cfg.Mode = plan.PTP
	}
	cfg.Quarantine = ipam.QuarantineOf(cfg.Quarantine)
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	n := &Network{cfg: cfg, instance: pod.InstanceOf(cfg.Dir)}
	var err error
	n.tag, err = plan.Tag(n.instance)
	return n, err
}

// bootTime returns the time since the node booted. Setting the clock doesn't affect it, so a
// quarantine is never longer or shorter than configured.
func bootTime() time.Time {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // never fails
	return time.Unix(t.Unix())
}

// Instance returns the instance that is part of all the network's names.
func (n *Network) Instance() pod.Instance { return n.instance }

// SandboxOf returns the sandbox ID of an interface of a container. Containers may have IDs of any
// form.
func SandboxOf(container, ifName string) string {
	sum := sha256.Sum256([]byte(container + "/" + ifName))
	return hex.EncodeToString(sum[:])
}

// subnets returns the configured subnets.
func (n *Network) subnets() (out []netip.Prefix) {
	for _, set := range n.cfg.Ranges {
		for _, r := range set {
			if !slices.Contains(out, r.Subnet) {
				out = append(out, r.Subnet)
			}
		}
	}
	return out
}

// withDatapath calls fn with a datapath that is open for this call only.
func (n *Network) withDatapath(fn func(*datapath.Datapath) error) error {
	dp, err := datapath.Open(n.cfg.Netns, n.instance, n.cfg.Bridge)
	if err != nil {
		return err
	}
	err = fn(dp)
	if n.cfg.Close == nil {
		return errors.Join(err, dp.Close())
	}
	return errors.Join(err, n.cfg.Close(dp))
}

// Status returns nil if a pod could be attached now. Of the error's kinds, resource exhausted means
// that no address is left, and failed precondition that attached pods may be affected too.
func (n *Network) Status(ctx context.Context) error {
	if len(n.cfg.Ranges) == 0 {
		return errdefs.ErrInvalidArgument.WithMessage("no subnet to allocate from")
	}
	made, err := n.exists()
	if err != nil || !made {
		return err
	}
	l, err := n.lock(ctx, networkShared)
	if err != nil {
		return err
	}
	defer l.release()
	var base plan.Base
	err = l.view(func(t *tx) error {
		base, made = t.recordedBase()
		return t.exhausted(n.cfg.Ranges, bootTime())
	})
	if err != nil || !made {
		return err
	}
	return n.withDatapath(func(dp *datapath.Datapath) error { return verifyBase(dp, base) })
}

// verifyBase returns an error of kind failed precondition if the base differs from the plan.
func verifyBase(dp *datapath.Datapath, base plan.Base) error {
	diffs, err := dp.VerifyBase(base)
	if err != nil {
		return err
	}
	if len(diffs) > 0 {
		return errdefs.ErrFailedPrecondition.WithMessage(describe(diffs))
	}
	return nil
}

func describe(diffs []datapath.Difference) string {
	var parts []string
	for _, d := range diffs {
		parts = append(parts, d.String())
	}
	return strings.Join(parts, "; ")
}

// Usage counts what is in use.
type Usage struct {
	Leases      int // including those of unfinished detachments
	Quarantined int // addresses
}

// Usage returns what is in use now.
func (n *Network) Usage(ctx context.Context) (u Usage, err error) {
	made, err := n.exists()
	if err != nil || !made {
		return u, err
	}
	l, err := n.lock(ctx, networkShared)
	if err != nil {
		return u, err
	}
	defer l.release()
	err = l.view(func(t *tx) error {
		u.Leases = t.leases.Stats().KeyN
		u.Quarantined = t.quarantined.Stats().KeyN
		return nil
	})
	return u, err
}
