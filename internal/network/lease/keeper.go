package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// Config is what a Keeper needs.
type Config struct {
	claim.Config
	Store   Store
	Journal Journal
	Clock   Clock
	Log     *slog.Logger
}

// Keeper is the peer.Registry of a node whose blocks are claims in a Store. It claims nothing
// before the first Announce, as a record's addresses tell machines with one name apart. Used must
// be called after each update and whenever pods have come or gone.
type Keeper struct {
	cfg  Config
	wake chan struct{} // something has changed

	mu      sync.Mutex // Invariant: guards the fields below; not held while anything waits.
	state   *claim.State
	changed bool        // the view may have changed
	saved   claim.Saved // what is in the journal
}

var _ peer.Registry = (*Keeper)(nil)

// callTimeout is how long the Keeper waits for the store's answer. Stores have limits of their own,
// which know what they wait for: a connection, or one or several answers.
const callTimeout = time.Minute

// New returns a Keeper, which may give out addresses of the blocks in the journal before Run knows
// the store.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.Pool.Check(); err != nil {
		return nil, fmt.Errorf("blocks of pod addresses: %w", err)
	}
	saved, err := cfg.Journal.Load()
	if err != nil {
		return nil, fmt.Errorf("read this node's blocks from the journal: %w", err)
	}
	k := &Keeper{cfg: cfg, wake: make(chan struct{}, 1), state: claim.New(cfg.Config, saved, cfg.Clock.Now())}
	k.saved = saved
	return k, nil
}

// Announce implements peer.Registry.
func (k *Keeper) Announce(record peer.Node) {
	k.change(func(now claim.Instant) { k.state.Announce(record, now) })
}

// Used implements peer.Registry.
func (k *Keeper) Used(blocks []peer.Usage) {
	k.change(func(now claim.Instant) { k.state.Used(slices.Clone(blocks), now.Boot) })
}

// May implements peer.Registry.
func (k *Keeper) May(block netip.Prefix) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.state.May(block, k.cfg.Clock.Now().Boot); err != nil {
		return err
	}
	if !slices.Contains(k.saved.Blocks, block) {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("block %v isn't in the journal yet", block))
	}
	return nil
}

// Status returns nil if the store answered the last time it was asked, and otherwise why not.
func (k *Keeper) Status() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if why := k.state.Failure(); why != "" {
		return errdefs.ErrUnavailable.WithMessage(k.cfg.Config.Store + ": " + why)
	}
	return nil
}

// change changes the state and wakes Run.
func (k *Keeper) change(f func(now claim.Instant)) {
	k.mu.Lock()
	f(k.cfg.Clock.Now())
	k.changed = true
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run implements peer.Registry.
func (k *Keeper) Run(ctx context.Context, update func(peer.View)) error {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { k.follow(ctx) })
	defer wg.Wait()
	defer cancel()
	var last *peer.View
	for ctx.Err() == nil {
		k.save()
		last = k.publish(update, last)
		now := k.cfg.Clock.Now()
		k.mu.Lock()
		action := k.state.Next(now.Boot)
		k.mu.Unlock()
		if action.Do != claim.Wait {
			k.do(ctx, action)
			continue
		}
		k.sleep(ctx, action.At, now.Boot)
	}
	return nil
}

// sleep waits until a time since the boot, which is none if it is 0, or until something changes.
func (k *Keeper) sleep(ctx context.Context, at, now time.Duration) {
	var timer <-chan time.Time
	if at > 0 {
		t := time.NewTimer(max(at-now, time.Millisecond))
		defer t.Stop()
		timer = t.C
	}
	select {
	case <-k.wake:
	case <-timer:
	case <-ctx.Done():
	}
}

// follow hands the store's snapshots to the state.
func (k *Keeper) follow(ctx context.Context) {
	const first = 250 * time.Millisecond
	failures, logged := 0, ""
	for ctx.Err() == nil {
		err := k.cfg.Store.Follow(ctx, func(s claim.Snapshot) {
			failures, logged = 0, ""
			k.change(func(now claim.Instant) { k.state.Snapshot(s, now.Boot) })
		})
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("it ended the snapshots")
		}
		if text := err.Error(); text != logged {
			k.cfg.Log.Warn("network: can't follow the store of the nodes' blocks", "store", k.cfg.Config.Store, "error", err)
			logged = text
		}
		k.change(func(claim.Instant) { k.state.Lost(err) })
		failures++
		select {
		case <-time.After(backoff.Wait(first, failures, rand.Float64())):
		case <-ctx.Done():
		}
	}
}

// do carries out an action and tells the state what came of it.
func (k *Keeper) do(ctx context.Context, a claim.Action) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var apply func(now time.Duration)
	switch a.Do {
	case claim.Keep:
		sent := k.cfg.Clock.Now()
		kept, err := k.cfg.Store.Keep(ctx, a.Session, a.Blocks)
		if errors.Is(err, claim.ErrLost) {
			k.cfg.Log.Warn("network: this node's claims to its blocks have ended; it claims them again", "store", k.cfg.Config.Store, "blocks", a.Blocks)
		}
		apply = func(now time.Duration) { k.state.Kept(sent, now, kept, err) }
	case claim.Write:
		revision, err := k.cfg.Store.Write(ctx, a.Session, a.Record, a.Revision)
		apply = func(now time.Duration) { k.state.Wrote(a, revision, now, err) }
	case claim.Look:
		ago, err := k.cfg.Store.Prolonged(ctx, a.Session)
		now := k.cfg.Clock.Now()
		apply = func(time.Duration) { k.state.Looked(ago, now, err) }
	case claim.Move:
		revision, err := k.cfg.Store.Move(ctx, a.Session, a.Record, a.Revision, a.From)
		if err == nil {
			k.cfg.Log.Info("network: this node has another name, and took over its blocks", "former", a.From.Node, "blocks", a.From.Blocks)
		}
		apply = func(now time.Duration) { k.state.Moved(a, revision, now, err) }
	case claim.Bind:
		err := k.cfg.Store.Bind(ctx, claim.Claim{Block: a.Block, Node: k.cfg.Node, Session: a.Session}, a.Again)
		if err == nil {
			k.cfg.Log.Info("network: claimed a block of pod addresses", "block", a.Block, "again", a.Again)
		}
		apply = func(now time.Duration) { k.state.Bound(a, now, err) }
	case claim.Free:
		err := k.cfg.Store.Free(ctx, a.Session, a.Block)
		if err == nil {
			k.cfg.Log.Info("network: gave a block of pod addresses back", "block", a.Block)
		}
		apply = func(now time.Duration) { k.state.Freed(a, now, err) }
	case claim.Restore:
		err := k.restore(ctx, a)
		apply = func(now time.Duration) { k.state.Restored(a, now, err) }
	default:
		apply = func(time.Duration) { k.state.Retired(a.Block) }
	}
	if ctx.Err() == context.Canceled {
		return // Run ends; what the call did will be in the next snapshot
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	apply(k.cfg.Clock.Now().Boot)
	k.changed = true
}

// restore writes the record and the blocks of another node into the store, bound to the session
// that the node knows as its own.
func (k *Keeper) restore(ctx context.Context, a claim.Action) error {
	if err := k.cfg.Store.Revive(ctx, a.Session); err != nil {
		return err
	}
	if a.Revision == 0 {
		if _, err := k.cfg.Store.Write(ctx, a.Session, a.Record, 0); err != nil {
			return err
		}
	}
	for _, b := range a.Blocks {
		if err := k.cfg.Store.Bind(ctx, claim.Claim{Block: b, Node: a.Record.Name, Session: a.Session}, true); err != nil {
			return err
		}
	}
	k.cfg.Log.Info("network: wrote what another node has into the store again, which had lost it", "node", a.Record.Name, "blocks", a.Blocks)
	return nil
}

// save writes the state to the journal if it has changed.
func (k *Keeper) save() {
	k.mu.Lock()
	saved := k.state.Saved()
	same := reflect.DeepEqual(saved, k.saved)
	// A block may be used only while it is in the journal.
	k.saved.Blocks = slices.DeleteFunc(slices.Clone(k.saved.Blocks), func(b netip.Prefix) bool { return !slices.Contains(saved.Blocks, b) })
	k.mu.Unlock()
	if same || saved.Session == "" && len(saved.Blocks)+len(saved.Unbound) == 0 {
		return
	}
	if err := k.cfg.Journal.Save(saved); err != nil {
		k.cfg.Log.Error("network: can't save this node's blocks; new ones stay unused", "error", err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.saved = saved
}

// publish calls update with the view if it isn't like the last one, and returns it.
func (k *Keeper) publish(update func(peer.View), last *peer.View) *peer.View {
	k.mu.Lock()
	changed := k.changed
	k.changed = false
	state := k.state.Copy() // May doesn't wait for the view
	k.mu.Unlock()
	if !changed {
		return last
	}
	var peers []*peer.Node
	if last != nil {
		peers = last.Peers
	}
	view, known := state.View(peers)
	if !known || last != nil && view.Equal(*last) {
		return last
	}
	update(view)
	return &view
}

// Leave gives all of the node's blocks back and removes its record. Run has returned, and no pod
// has an address of the blocks. If it fails, it can be repeated.
func (k *Keeper) Leave(ctx context.Context) error {
	k.mu.Lock()
	had := k.state.Saved()
	k.mu.Unlock()
	if had.Node != k.cfg.Node && had.Node != "" {
		return fmt.Errorf("this node's blocks in %s are still those of node %s: set node-name to that to leave", k.cfg.Config.Store, had.Node)
	}
	// The node forgets its blocks before others may have them, but not yet the session.
	if err := k.forget(claim.Saved{Node: had.Node, Boot: had.Boot, Session: had.Session}); err != nil {
		return err
	}
	if had.Session != "" {
		if err := k.cfg.Store.End(ctx, had.Session); err != nil {
			return fmt.Errorf("give this node's blocks %v back to %s: %w", slices.Concat(had.Blocks, had.Unbound), k.cfg.Config.Store, err)
		}
	}
	return k.forget(claim.Saved{})
}

// forget replaces the state by one in which the node has no blocks.
func (k *Keeper) forget(left claim.Saved) error {
	k.mu.Lock()
	k.saved, k.state = left, claim.New(k.cfg.Config, left, k.cfg.Clock.Now())
	k.mu.Unlock()
	if err := k.cfg.Journal.Save(left); err != nil {
		return fmt.Errorf("forget this node's blocks: %w", err)
	}
	return nil
}
