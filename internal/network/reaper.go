package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

const (
	// batchDelay is how long the reaper collects links before it deletes them.
	batchDelay = 50 * time.Millisecond
	// The conntrack table is read at most this often: sooner for pods with hostPorts, whose clients
	// wait, than for others, whose addresses are in quarantine. Reading costs 2.5 µs per entry.
	flowsSoon, flowsLater = 250 * time.Millisecond, 10 * time.Second
	// The pauses between retries grow from firstRetry to lastRetry.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// maintainEvery is how often the table is checked and quarantines expire.
	maintainEvery = 5 * time.Second
	// stopTimeout is how long Close waits.
	stopTimeout = 10 * time.Second
)

// debt is a record in state releasing whose link may still exist.
type debt struct {
	record *record
	since  time.Time
	err    error // of the last attempt
	tries  int   // failed attempts
	done   chan struct{}
}

// reaper does the second part of Detach in the background.
type reaper struct {
	n          *Network
	wake       chan struct{}
	quit       chan struct{}
	ended      chan struct{}
	lastForget time.Time // used by the goroutine only

	mu        sync.Mutex // Invariant: guards the fields below.
	pending   map[ipam.Owner]*debt
	flows     conntrack.Flows
	urgent    bool // clients of hostPorts wait for flows
	skipDelay bool // a caller waits: don't wait for more links
}

func startReaper(n *Network) *reaper {
	r := &reaper{
		n:       n,
		wake:    make(chan struct{}, 1),
		quit:    make(chan struct{}),
		ended:   make(chan struct{}),
		pending: map[ipam.Owner]*debt{},
	}
	go r.run()
	return r
}

// add takes over a record in state releasing. err is that of cutting off its traffic.
func (r *reaper) add(rec *record, err error) {
	if err == nil {
		r.n.ledger.freePorts(rec)
	}
	d := &debt{record: rec, since: time.Now(), done: make(chan struct{})}
	r.recordAttempt(d, err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pending[rec.owner()] = d
	r.signal()
}

func (r *reaper) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// has reports whether the reaper has taken over the record.
func (r *reaper) has(rec *record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[rec.owner()] != nil
}

// wait returns when the owners' former attachments are gone.
func (r *reaper) wait(ctx context.Context, owners ...ipam.Owner) error {
	for _, o := range owners {
		r.mu.Lock()
		d := r.pending[o]
		if d != nil {
			r.skipDelay = true
			r.signal()
		}
		r.mu.Unlock()
		if d == nil {
			continue
		}
		select {
		case <-d.done:
		case <-r.ended:
			return errors.New("the network is closed")
		case <-ctx.Done():
			r.mu.Lock()
			defer r.mu.Unlock()
			return errors.Join(ctx.Err(), d.err)
		}
	}
	return nil
}

// forgetUDP makes the kernel forget UDP flows that bypass new hostPorts.
func (r *reaper) forgetUDP(ports []uint16) {
	if len(ports) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows.Ports = append(r.flows.Ports, ports...)
	r.urgent = true
	r.signal()
}

// stop stops the reaper after one last attempt at everything.
func (r *reaper) stop() error {
	close(r.quit)
	select {
	case <-r.ended:
	case <-time.After(stopTimeout):
		return fmt.Errorf("network: links are still being deleted after %v: the next start continues", stopTimeout)
	}
	return nil
}

func (r *reaper) run() {
	defer close(r.ended)
	keep := time.NewTicker(maintainEvery)
	defer keep.Stop()
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	pause := firstRetry
	for quitting := false; !quitting; {
		select {
		case <-r.quit:
			quitting = true
		case <-r.wake:
			quitting = r.collect()
		case <-again.C:
		case <-keep.C:
			r.maintain()
		}
		failed := r.reap()
		if wait := r.forgetFlows(quitting); wait > 0 {
			again.Reset(wait)
		}
		if !failed {
			pause = firstRetry
			continue
		}
		again.Reset(pause)
		pause = min(2*pause, lastRetry)
	}
}

// collect waits for more links to delete together. It reports whether to quit.
func (r *reaper) collect() (quit bool) {
	end := time.NewTimer(batchDelay)
	defer end.Stop()
	for {
		r.mu.Lock()
		now := r.skipDelay || len(r.pending) == 0
		r.skipDelay = false
		r.mu.Unlock()
		if now {
			return false
		}
		select {
		case <-end.C:
			return false
		case <-r.wake:
		case <-r.quit:
			return true
		}
	}
}

// reap deletes the links that were cut off and ends their leases. It reports whether anything has
// to be retried.
func (r *reaper) reap() (failed bool) {
	n := r.n
	r.mu.Lock()
	batch := slices.Collect(maps.Values(r.pending))
	r.mu.Unlock()
	if len(batch) == 0 {
		return false
	}
	var cut []*debt
	for _, d := range batch {
		if r.retryCut(d) {
			cut = append(cut, d)
		}
	}
	err := n.dp.Reap()
	crashpoint.Hit("network.reaped")
	for _, d := range cut {
		if err == nil {
			r.finish(d)
		} else {
			r.recordAttempt(d, err)
		}
	}
	return err != nil || len(cut) < len(batch)
}

// retryCut cuts off a record if that failed before.
func (r *reaper) retryCut(d *debt) bool {
	n := r.n
	r.mu.Lock()
	err := d.err
	r.mu.Unlock()
	if err == nil {
		return true
	}
	n.kernelMu.RLock()
	err = n.dp.Cut(n.plan(d.record))
	n.kernelMu.RUnlock()
	r.recordAttempt(d, err)
	if err != nil {
		return false
	}
	n.ledger.freePorts(d.record)
	return true
}

// recordAttempt records the result of an attempt.
func (r *reaper) recordAttempt(d *debt, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.err = err
	if err != nil {
		d.tries++
	}
}

// finish ends the lease of a deleted link.
func (r *reaper) finish(d *debt) {
	r.n.ledger.quarantineLease(d.record)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows.Pods = append(r.flows.Pods, d.record.addrs()...)
	r.urgent = r.urgent || len(plan.Mappings(d.record.Attachment)) > 0
	delete(r.pending, d.record.owner())
	close(d.done)
}

// debts returns the unfinished detachments, oldest first.
func (r *reaper) debts() (out []pod.Debt) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, d := range r.pending {
		debt := pod.Debt{Attachment: d.record.Attachment, Network: Name, Since: d.since, Tries: d.tries}
		if d.err != nil {
			debt.Error = d.err.Error()
		}
		out = append(out, debt)
	}
	slices.SortFunc(out, func(a, b pod.Debt) int { return a.Since.Compare(b.Since) })
	return out
}

// forgetFlows makes the kernel forget the collected flows. It returns how long that has to wait, 0
// if there are none.
func (r *reaper) forgetFlows(quitting bool) time.Duration {
	r.mu.Lock()
	flows, pause := r.flows, min(flowsLater, r.n.cfg.Quarantine/4)
	if r.urgent {
		pause = min(pause, flowsSoon)
	}
	wait := pause - time.Since(r.lastForget)
	later := wait > 0 && !quitting
	if !flows.Empty() && !later {
		r.flows, r.urgent = conntrack.Flows{}, false
	}
	r.mu.Unlock()
	switch {
	case flows.Empty():
		return 0
	case later:
		return wait
	}
	r.lastForget = time.Now()
	if err := r.n.dp.Forget(flows); err != nil {
		r.n.log.Warn("network: conntrack may misdirect packets of old connections", "error", err)
	}
	return 0
}

// maintain does the periodic work.
func (r *reaper) maintain() {
	if _, err := r.n.repairBase(); err != nil {
		r.n.log.Error("network: hostPorts and masquerading don't work", "error", err)
	}
	r.n.ledger.expire()
	if err := r.n.remakeBase(nil); err != nil {
		r.n.log.Error("network: routes of former pod subnets are left", "error", err)
	}
}
