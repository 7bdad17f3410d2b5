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
	// The conntrack table is read this often at most: for pods that had or
	// have hostPorts, whose clients wait; and for others, whose addresses
	// nobody has until their quarantine ends. To read it costs 2.5 µs an entry.
	flowsSoon, flowsLater = 250 * time.Millisecond, 10 * time.Second
	// Between attempts of what failed.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// maintainEvery is how often the table is looked for and quarantines end.
	maintainEvery = 5 * time.Second
	// stopTimeout is how long Close waits.
	stopTimeout = 10 * time.Second
)

// debt is a record that was cut off and whose link may still be there.
type debt struct {
	record *record
	since  time.Time
	err    error // of the last attempt
	tries  int   // that failed
	done   chan struct{}
}

// reaper does in the background what Detach leaves.
type reaper struct {
	n          *Network
	wake       chan struct{}
	quit       chan struct{}
	ended      chan struct{}
	lastForget time.Time // when flows were last; the goroutine's own

	mu        sync.Mutex // guards what follows
	pending   map[ipam.Owner]*debt
	flows     conntrack.Flows
	urgent    bool // clients of hostPorts wait for flows
	skipDelay bool // no lingering: somebody waits
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

// add takes over a record in state releasing. err says what has failed of
// cutting it off.
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

// has says whether the record was handed over.
func (r *reaper) has(rec *record) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[rec.owner()] != nil
}

// wait returns when nothing is left of the owner's former attachment.
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

// forget has UDP flows forgotten that bypass hostPorts which begin.
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

// stop ends the reaper after a last attempt at everything.
func (r *reaper) stop() error {
	close(r.quit)
	select {
	case <-r.ended:
	case <-time.After(stopTimeout):
		return fmt.Errorf("network: links are still being deleted after %v: the next start goes on", stopTimeout)
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

// collect lets more links come together. It says whether to quit.
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

// reap deletes the links that were cut off and ends their leases. It says
// whether something has to be tried again.
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

// recut cuts off again what couldn't be before.
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

// owe notes how an attempt went.
func (r *reaper) recordAttempt(d *debt, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d.err = err
	if err != nil {
		d.tries++
	}
}

// finish ends a lease whose link is gone.
func (r *reaper) finish(d *debt) {
	r.n.ledger.quarantineLease(d.record)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.flows.Pods = append(r.flows.Pods, d.record.addrs()...)
	r.urgent = r.urgent || len(plan.Mappings(d.record.Attachment)) > 0
	delete(r.pending, d.record.owner())
	close(d.done)
}

// debts returns what is still to be done.
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

// forgetFlows has the kernel forget what was collected. It returns how long
// that has to wait, 0 if there is nothing.
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
		r.n.log.Warn("network: conntrack may send packets of old connections astray", "error", err)
	}
	return 0
}

// keep does what has to be done from time to time.
func (r *reaper) maintain() {
	if _, err := r.n.repairBase(); err != nil {
		r.n.log.Error("network: hostPorts and masquerading don't work", "error", err)
	}
	r.n.ledger.expire()
}
