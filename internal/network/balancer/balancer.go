// Package balancer owns Services on the node: it follows a source of Services and endpoints, keeps
// the kernel's rules in agreement with them, and answers health checks of load balancers.
//
// The rules are in the kernel, so connections are led while huskd doesn't run. Until the source has
// answered, those of a former huskd stay.
package balancer

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
)

// Kernel leads connections. End may be called while Apply is.
type Kernel interface {
	// Apply makes an update in one transaction. The first update is everything that there is.
	Apply(*compile.Update) error
	// Repair makes the kernel agree with what was applied.
	Repair() error
	// End ends what leads to endpoints that are gone, and returns how much. Those of before the first
	// update are included in its first call.
	End([]compile.Ended) (int, error)
	// Maintain puts back what others change in the kernel, until ctx ends.
	Maintain(ctx context.Context, log *slog.Logger)
}

// Config of a Balancer.
type Config struct {
	Source service.Source
	Kernel Kernel
	Log    *slog.Logger
	// NodePorts are where the node's addresses with node ports are; empty for the primary ones.
	NodePorts []netip.Prefix
}

// Balancer is the owner. Its methods may be called concurrently.
type Balancer struct {
	cfg     Config
	changed chan struct{} // has a token if there is something to commit
	ending  chan struct{} // has a token if something has ended
	checks  healthChecks

	mu       sync.Mutex // Invariant: guards what follows.
	compiler *compile.Compiler
	ended    []compile.Ended
	why      error // what the source waits for
	failure  error // of the last commit
}

// New returns a Balancer. Run starts it.
func New(cfg Config) *Balancer {
	return &Balancer{
		cfg: cfg, changed: make(chan struct{}, 1), ending: make(chan struct{}, 1), compiler: compile.New(cfg.NodePorts...),
		checks: newHealthChecks(cfg.Log), why: errors.New("services: the source has not answered yet"),
	}
}

const (
	// retryAfter is the wait after the kernel has refused a change.
	retryAfter = time.Second
	// manyFronts is how many make so much garbage, by reading and writing them, that the system should
	// have it back at once: 10,000 Services make 150 MB.
	manyFronts = 1000
	// endAfter is how long changes are collected before the node's connections are read.
	endAfter = 100 * time.Millisecond
)

// Run follows the source until ctx ends. The rules stay in the kernel.
func (b *Balancer) Run(ctx context.Context) error {
	defer b.checks.close()
	var running errgroup.Group
	running.Go(func() error { return b.cfg.Source.Run(ctx, b.update, b.waiting) })
	running.Go(func() error {
		b.keepEnded(ctx)
		return nil
	})
	running.Go(func() error {
		b.cfg.Kernel.Maintain(ctx, b.cfg.Log)
		return nil
	})
	b.keepCommitted(ctx)
	return running.Wait()
}

func (b *Balancer) update(c service.Changes) {
	b.mu.Lock()
	b.compiler.Change(c)
	b.mu.Unlock()
	b.checks.change(c)
	notify(b.changed)
}

func notify(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (b *Balancer) waiting(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		b.cfg.Log.Warn(err.Error())
	}
	b.why = err
}

// Problem says why Services are not, or not as they should be, in force; it is nil if they are.
func (b *Balancer) Problem() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.why, b.failure)
}

// World returns what the source has said.
func (b *Balancer) World() service.World {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.compiler.World()
}

// keepCommitted brings changes to the kernel until ctx ends. After a failure it repairs the kernel.
func (b *Balancer) keepCommitted(ctx context.Context) {
	var again <-chan time.Time
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case <-b.changed:
			err = b.commit()
		case <-again:
			err = b.cfg.Kernel.Repair()
		}
		again = nil
		if err != nil {
			b.cfg.Log.Error("services: the kernel refuses the rules", "error", err)
			again = time.After(retryAfter)
		} else {
			notify(b.ending)
		}
		b.mu.Lock()
		b.failure = err
		b.mu.Unlock()
	}
}

func (b *Balancer) commit() error {
	b.mu.Lock()
	u := b.compiler.Commit()
	b.ended = append(b.ended, u.Ended...)
	b.mu.Unlock()
	err := b.cfg.Kernel.Apply(u)
	if len(u.Fronts) >= manyFronts {
		debug.FreeOSMemory()
	}
	return err
}

// keepEnded ends what leads to endpoints that are gone, until ctx ends.
func (b *Balancer) keepEnded(ctx context.Context) {
	for {
		select {
		case <-b.ending:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(endAfter):
		case <-ctx.Done():
			return
		}
		b.mu.Lock()
		ended := b.ended
		b.ended = nil
		b.mu.Unlock()
		n, err := b.cfg.Kernel.End(ended)
		switch {
		case err != nil:
			b.cfg.Log.Error("services: connections to endpoints that are gone stay open", "error", err)
		case n > 0:
			b.cfg.Log.Debug("services: ended connections to endpoints that are gone", "count", n)
		}
	}
}
