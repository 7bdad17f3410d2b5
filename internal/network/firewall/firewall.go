// Package firewall owns network policy on the node: it follows a source of policies and pods, keeps
// the kernel's rules in agreement with them, and puts them in force for a new pod before the pod's
// link comes up.
//
// The rules are in the kernel, so they stay in force while huskd doesn't run. The kernel drops what
// is forwarded to and from a pod of the node that it doesn't know. So a pod without rules reaches
// nothing but its node, and only the node reaches it, for probes.
//
// The packages below decide (policy, compile) and act on the kernel (policytable).
package firewall

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/compile"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// Kernel holds the rules. EndFlows is called concurrently with the other methods.
type Kernel interface {
	// Exists reports whether there are rules, which a former huskd may have left.
	Exists() (bool, error)
	// Load makes the rules all of the ruleset's, in one transaction. It keeps the ruleset.
	Load(*ruleset.Ruleset) error
	// Apply makes an update of the rules in one transaction.
	Apply(*ruleset.Update) error
	// Read returns the rules that the kernel has.
	Read() (*ruleset.Ruleset, error)
	// EndFlows ends the connections of the node's pods that the rules don't allow, and returns how
	// many.
	EndFlows() (int, error)
	// Teardown removes the rules.
	Teardown() error
}

// Config of a Firewall.
type Config struct {
	Source policy.Source
	Kernel Kernel
	// IsNode reports whether an address is the node's own.
	IsNode func(netip.Addr) (bool, error)
	// Denied returns how many packets each profile has denied; nil if that isn't counted.
	Denied func() (map[ruleset.ProfileID]uint64, error)
	// Allowed returns how many connections each match of a profile let pass; nil if that isn't
	// counted.
	Allowed func() (map[ruleset.ProfileID]map[ruleset.Match]uint64, error)
	// Required makes pods wait for a source that permits nothing. Otherwise they run without policy
	// as long as it has never permitted anything.
	Required bool
	// File is where the last known policies are saved, and beside it the pods, for pods that start
	// while the source can't be reached. Empty means nowhere.
	File string
	// LocalChanged is called when the result of Local may have changed. It must not block, and is
	// nil if unused.
	LocalChanged func()
	Log          *slog.Logger
}

// Firewall is the owner. Its methods may be called concurrently.
type Firewall struct {
	cfg     Config
	changed chan struct{} // has a token if there is something to commit
	// takenAway has a token if connections may be open that aren't allowed any more.
	takenAway chan struct{}

	mu       sync.Mutex // Invariant: guards what follows.
	compiler *compile.Compiler
	world    world
	local    map[string]local // by the pod's key
	rules    *ruleset.Ruleset // what the compiler wants
	loaded   bool             // the kernel has rules, as far as updates succeeded
	checked  bool             // the rules of a former huskd were looked for
	failure  error            // of the last commit
	synced   bool             // the source has answered, or the saved world has to do
	fresh    bool             // the source has answered
	awaited  bool             // there are policies that the source can't bring yet
	restored bool             // the world was read from the file
	unread   error            // why it couldn't be
	written  bool             // a file that is not synced yet has policies
	unsaved  unsaved
	why      error         // what the source waits for
	progress chan struct{} // closed and replaced when there is news for a waiting Admit
}

// local is a pod of this node that is attached.
type local struct {
	owner     string // the attachment's
	addresses []netip.Addr
	labels    labels.Set // nil if only the source knows them
	since     time.Time
}

// New returns a Firewall. Run starts it.
func New(cfg Config) *Firewall {
	if cfg.LocalChanged == nil {
		cfg.LocalChanged = func() {}
	}
	f := &Firewall{
		cfg: cfg, changed: make(chan struct{}, 1), takenAway: make(chan struct{}, 1),
		compiler: compile.New(), world: newWorld(), local: map[string]local{}, rules: ruleset.New(),
		why: errors.New("its source has not answered yet"), progress: make(chan struct{}),
	}
	f.restore()
	return f
}

const (
	// quiet is how long changes are collected after a commit. The first one waits for nothing.
	quiet = 10 * time.Millisecond
	// endAfter is how long changes are collected before connections are ended.
	endAfter = 100 * time.Millisecond
	// retryAfter is the wait after the kernel has refused a change.
	retryAfter = time.Second
)

// Run follows the source until ctx ends. The rules stay in the kernel.
func (f *Firewall) Run(ctx context.Context) error {
	var running errgroup.Group
	running.Go(func() error { return f.cfg.Source.Run(ctx, f.update, f.waiting) })
	running.Go(func() error {
		f.keepCommitted(ctx)
		return nil
	})
	running.Go(func() error {
		f.keepEnded(ctx)
		return nil
	})
	f.keepSaved(ctx)
	return running.Wait()
}

// keepEnded ends the connections that policies no longer allow, until ctx ends. It reads all
// connections of the node each time, so it collects changes first.
func (f *Firewall) keepEnded(ctx context.Context) {
	for {
		select {
		case <-f.takenAway:
		case <-ctx.Done():
			return
		}
		select {
		case <-time.After(endAfter):
		case <-ctx.Done():
			return
		}
		if _, err := f.cfg.Kernel.EndFlows(); err != nil {
			f.cfg.Log.Warn("network policy: connections that are not allowed any more can't be ended; trying again", "error", err)
			notify(f.takenAway)
		}
	}
}

// keepCommitted gives the kernel what has changed until ctx ends.
func (f *Firewall) keepCommitted(ctx context.Context) {
	for {
		select {
		case <-f.changed:
		case <-ctx.Done():
			return
		}
		wait := quiet
		if f.commit() != nil {
			wait = retryAfter
			notify(f.changed)
		}
		syncPolicies(f)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

// update is called by the source.
func (f *Firewall) update(c policy.Changes) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fresh {
		f.world.complete(&c)
	}
	f.unsaved.add(c)
	f.world.change(c)
	for key := range c.Pods {
		if _, ok := f.local[key]; ok {
			c.Pods[key] = f.known(key)
			f.cfg.LocalChanged()
		}
	}
	f.compiler.Change(c)
	f.synced, f.fresh, f.awaited, f.why = true, true, c.Incomplete, nil
	f.news()
	notify(f.changed)
}

// Local returns the pods of this node as far as they are known.
func (f *Firewall) Local() (out []*policy.Pod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for key := range f.local {
		if p := f.known(key); p != nil {
			out = append(out, p)
		}
	}
	return out
}

// waiting is called by the source.
func (f *Firewall) waiting(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.why = why
	f.news()
}

// notify puts a token into a channel, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// news wakes the waiting calls of Admit. The caller holds mu.
func (f *Firewall) news() {
	close(f.progress)
	f.progress = make(chan struct{})
}

// known returns what is known of a pod, or nil. Of a local one, the addresses are those that it was
// attached with, which the source learns later. So are its labels until the source has its object.
// The caller holds mu.
func (f *Firewall) known(key string) *policy.Pod {
	object := f.world.pods[key]
	l, isLocal := f.local[key]
	switch {
	case !isLocal:
		return object
	case object != nil:
		own := *object
		own.Addresses, own.Started = l.addresses, l.since
		return &own
	case l.labels == nil:
		return nil
	}
	namespace, name, _ := strings.Cut(key, "/")
	return &policy.Pod{Namespace: namespace, Name: name, Labels: l.labels, Addresses: l.addresses, Started: l.since}
}

// commit gives the kernel what has changed.
func (f *Firewall) commit() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commitLocked()
}

func (f *Firewall) commitLocked() error {
	if !f.synced {
		return nil
	}
	f.savePolicies()
	err := f.program()
	if err != nil {
		f.loaded = false
		if f.failure == nil {
			f.cfg.Log.Error("network policy: the kernel refused a change; trying again", "error", err)
		}
	}
	f.failure = err
	return err
}

// program commits the compiler's changes. After a failure it replaces all rules.
func (f *Firewall) program() error {
	if !f.checked && len(f.world.policies) > 0 {
		if former, err := f.cfg.Kernel.Read(); err != nil {
			f.cfg.Log.Warn("network policy: the rules of a former huskd can't be read; all of them are replaced", "error", err)
		} else if former != nil {
			f.compiler.KeepNumbers(former)
		}
	}
	updates := f.compiler.Commit()
	for _, u := range updates {
		f.rules.Apply(u)
	}
	switch {
	case len(f.world.policies) == 0:
		return f.clear()
	case !f.loaded:
		whole := ruleset.New() // the Kernel keeps it
		whole.Apply(f.rules.All())
		if err := f.cfg.Kernel.Load(whole); err != nil {
			return err
		}
		f.loaded, f.checked = true, true
		notify(f.takenAway)
		return nil
	}
	for _, u := range updates {
		if err := f.cfg.Kernel.Apply(u); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(updates, takesAway) {
		notify(f.takenAway)
	}
	return nil
}

// clear removes the rules: without any policy, packets don't meet any.
func (f *Firewall) clear() error {
	if !f.loaded && f.checked {
		return nil
	}
	if err := f.cfg.Kernel.Teardown(); err != nil {
		return err
	}
	f.loaded, f.checked = false, true
	return nil
}

// takesAway reports whether connections that were allowed before the update may not be any more.
func takesAway(u *ruleset.Update) bool {
	return len(u.Disallow)+len(u.Identities)+len(u.RemoveRanges)+len(u.AddRanges)+len(u.SetPods) > 0
}
