// Package daemonless is the pod network for callers that live for one call, such
// as a CNI plugin: any number of processes work on one network at the same time
// and keep nothing in memory between calls.
//
// What is known is in a database below the network's directory, one of each
// boot: what an earlier one knew is void, for no namespace, link or conntrack
// entry of then is left. A call is one or two transactions on it, each O(log n)
// of the leases, with the work in the kernel between them and outside the lock.
//
// A lease is recorded before anything of it is made, and forgotten after
// everything of it is gone, so that a process that dies in between leaves a
// record by which Attach, Detach or Collect goes on. Nothing waits for a disk:
// a transaction survives the death of the process, and nothing survives that of
// the node.
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
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Config of a network.
type Config struct {
	// Dir has what is known. It also makes the network's instance: the names of
	// everything that it has in the kernel.
	Dir string
	// Netns is the path of the node's network namespace. Empty is the one that
	// the process is in.
	Netns string
	Mode  plan.Mode // empty is plan.PTP
	// Bridge in mode bridge; empty is the instance's own.
	Bridge string
	// Ranges that an attachment gets an address of each: at most one of each
	// family, the primary first.
	Ranges     []ipam.Ranges
	Masquerade bool
	MTU        int                // 0 is the uplink's
	Routes     []plan.Destination // none means everything
	NoHairpin  bool
	// Quarantine is how long an address rests after use; 0 is
	// ipam.DefaultQuarantine, negative is none.
	Quarantine time.Duration
	// Close, if set, closes a call's sockets, and may do so later. As long as what
	// some call has deleted is still to be freed, after an RCU grace period,
	// closing a socket of nftables' waits for that, 10 ms and more, and so does
	// whoever changes a table meanwhile (nft_rcv_nl_event in the kernel's
	// net/netfilter/nf_tables_api.c).
	Close func(io.Closer) error
	Log   *slog.Logger // nil is slog.Default()
	Boot  string       // empty is the ID of the kernel's
}

// Network is one network of the node. Its methods may be called concurrently.
type Network struct {
	cfg      Config
	instance pod.Instance
	tag      uint32
}

// New returns a network. It touches nothing.
func New(cfg Config) (*Network, error) {
	if cfg.Boot == "" {
		boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return nil, fmt.Errorf("network: %w", err)
		}
		cfg.Boot = strings.TrimSpace(string(boot))
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

// now is the time since the node booted, so that no clock that is set makes a
// rest longer or shorter.
func bootTime() time.Time {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // never fails
	return time.Unix(t.Unix())
}

// Instance returns what the names of the network's objects are made of.
func (n *Network) Instance() pod.Instance { return n.instance }

// SandboxOf returns the ID under which a network knows an interface of a
// container, whatever that calls itself.
func SandboxOf(container, ifName string) string {
	sum := sha256.Sum256([]byte(container + "/" + ifName))
	return hex.EncodeToString(sum[:])
}

// subnets returns those of the configuration.
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

// kernel opens the datapath for a call.
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

// Status returns nil if a pod could be attached now. An error of kind resource
// exhausted says that no address is left; of kind failed precondition, that
// those which are attached may not reach others either.
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

// verifyBase returns an error of kind failed precondition if the node's own
// part isn't as planned.
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
	Leases      int // of attached pods, and of what isn't detached wholly
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
