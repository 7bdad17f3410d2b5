// Package displaced finds the pods with addresses of blocks that are another node's now, so that
// two pods may have the same address. It marks them, reports them, and has them made anew with
// another address.
//
// A block goes to another node if its own can't prolong the claim to it for too long, or if a nodes
// file or an API server gives it away. The registry's view tells that, so a huskd that was
// restarted knows it again from its first view.
package displaced

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
)

// Pod is a pod that is attached to this node's network.
type Pod struct {
	Sandbox   string // ID
	Ref       pod.Ref
	Addresses []netip.Addr
	// External pods are those of another runtime, which only that can make anew.
	External bool
}

// Config of a Watcher.
type Config struct {
	Pods func() []Pod
	// Mark replaces the mark of a pod that isn't external. It doesn't wait. It returns false if that
	// must be tried again.
	Mark func(sandbox string, d pod.Displacement) bool
	// Report tells people of a pod: a reason of one word, and a message of one line.
	Report func(p Pod, warning bool, reason, message string)
	// Spare returns why no pod can get an address now, and nil if one can.
	Spare func() error
	// Replace says whether pods are made anew.
	Replace bool
	Log     *slog.Logger
}

// The reasons of reports.
const (
	Lost  = "AddressLost"
	Found = "AddressFound" // after Lost
)

const (
	// interval is the time between looks as long as blocks are lost.
	interval = time.Second
	// atOnce is how many pods are made anew in an interval.
	atOnce = 10
	// confirmTime is how long a block must be another node's before pods are made anew. After etcd was
	// restored from a backup, blocks may be those of a former holder. It gives them back once it has
	// asked etcd, which takes as long as its longest pause between attempts, 5 s.
	confirmTime = 10 * time.Second
	// spareTime is that time if no other address can be given to a pod. For a minute after etcd lost
	// its latest changes, nodes claim no blocks that they hadn't.
	spareTime = 90 * time.Second
)

// Watcher watches for displaced pods. It is nil, and its methods do nothing, on a node by itself.
type Watcher struct {
	cfg     Config
	changed chan struct{} // has an item when lost has changed

	// Invariant: only used by Run.
	since map[peer.Lost]time.Time
	busy  map[string]bool // sandboxes that couldn't be marked

	mu     sync.Mutex // Invariant: guards the fields below.
	known  bool       // Set was called
	lost   []peer.Lost
	marked map[string]pod.Displacement // by sandbox; nil before the first look
}

// New returns a Watcher. It does nothing before Run.
func New(cfg Config) *Watcher {
	return &Watcher{cfg: cfg, changed: make(chan struct{}, 1), since: map[peer.Lost]time.Time{}}
}

// Set says which blocks this node has lost while pods have addresses of them. The caller doesn't
// modify them afterwards.
func (w *Watcher) Set(lost []peer.Lost) {
	w.mu.Lock()
	same := w.known && slices.Equal(w.lost, lost)
	w.known, w.lost = true, lost
	w.mu.Unlock()
	if same {
		return
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Why returns why a pod is displaced, and "" if it isn't.
func (w *Watcher) Why(sandbox string) string {
	if w == nil {
		return ""
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.marked[sandbox].Message
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	if w == nil {
		return nil
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for more := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-w.changed:
		case <-tick.C:
			if !more {
				continue
			}
		}
		more = w.look(time.Now())
	}
}

// look compares the marks with what is lost. It returns whether it must be called again although
// nothing changes.
func (w *Watcher) look(now time.Time) bool {
	w.mu.Lock()
	lost, was := w.lost, w.marked
	w.mu.Unlock()
	since := make(map[peer.Lost]time.Time, len(lost))
	for _, l := range lost {
		since[l] = now
		if t, ok := w.since[l]; ok {
			since[l] = t
		}
	}
	w.since = since
	marked, busy, left := map[string]pod.Displacement{}, map[string]bool{}, atOnce
	for _, p := range w.cfg.Pods() {
		before := was[p.Sandbox]
		next := w.mark(p, lost)
		if l, ok := displacedBy(p, lost); ok && w.replaces(p, l) {
			switch {
			case before.Replace:
				next.Replace = true
			case left > 0 && w.due(now, since[l]):
				next.Replace = true
				left--
			}
		}
		if was == nil || next != before || w.busy[p.Sandbox] {
			if p.External || w.cfg.Mark(p.Sandbox, next) {
				w.report(p, before, next)
			} else {
				next, busy[p.Sandbox] = before, true
			}
		}
		if next != (pod.Displacement{}) {
			marked[p.Sandbox] = next
		}
	}
	w.busy = busy
	w.mu.Lock()
	w.marked = marked
	w.mu.Unlock()
	return len(busy)+len(lost) > 0
}

// displacedBy returns which of the lost blocks an address of a pod is in. One that another node has
// comes first.
func displacedBy(p Pod, lost []peer.Lost) (found peer.Lost, ok bool) {
	for _, l := range lost {
		if slices.ContainsFunc(p.Addresses, l.Block.Contains) && (!ok || found.Node == "") {
			found, ok = l, true
		}
	}
	return found, ok
}

// replaces reports whether a pod is to be made anew. If no other node has its address, it is only
// cut off from the others.
func (w *Watcher) replaces(p Pod, l peer.Lost) bool {
	return w.cfg.Replace && !p.External && l.Node != ""
}

func (w *Watcher) due(now, since time.Time) bool {
	lasted := now.Sub(since)
	return lasted >= spareTime || lasted >= confirmTime && w.cfg.Spare() == nil
}

// mark returns the mark of a pod that isn't made anew yet.
func (w *Watcher) mark(p Pod, lost []peer.Lost) pod.Displacement {
	l, ok := displacedBy(p, lost)
	if !ok {
		return pod.Displacement{}
	}
	address := p.Addresses[slices.IndexFunc(p.Addresses, l.Block.Contains)]
	text := fmt.Sprintf("its address %v is of block %v, which isn't this node's any more: other nodes don't reach it", address, l.Block)
	if l.Node != "" {
		text = fmt.Sprintf("its address %v is of block %v, which is node %s's now: other nodes don't reach it, and a pod there may have the same", address, l.Block, l.Node)
	}
	switch {
	case w.replaces(p, l):
		text += "; it will get a new sandbox with another address"
	case p.External:
		text += "; have its runtime create it again"
	default:
		text += "; remove it and run it again"
	}
	return pod.Displacement{Message: text}
}

func (w *Watcher) report(p Pod, before, next pod.Displacement) {
	switch {
	case next.Message == before.Message:
	case next.Message != "":
		w.cfg.Log.Warn("network: a pod has an address of a block that isn't this node's", "pod", p.Ref, "sandbox", pod.Short(p.Sandbox), "why", next.Message)
		w.cfg.Report(p, true, Lost, next.Message)
	default:
		w.cfg.Log.Info("network: the block of a pod's address is this node's again", "pod", p.Ref, "sandbox", pod.Short(p.Sandbox))
		w.cfg.Report(p, false, Found, "the block of its address is this node's again")
	}
}
