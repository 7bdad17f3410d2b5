package image

import (
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/huskd/husk/internal/image/database"
)

// resumeWindow is how long what an interrupted pull fetched is kept for the
// next attempt.
const resumeWindow = 10 * time.Minute

// settleDelay is how long layers are left to the kernel, which may well have
// written them by then. It keeps the disk free for the container that an image
// is usually pulled for, and makes one sync of many pulls.
const settleDelay = 3 * time.Second

// settler makes sure that layers are on disk. They are written without waiting
// for that, because it can take as long as the pull; should the power fail in
// between, they are unpacked again from the blobs, which were waited for.
type settler struct {
	db  *database.DB
	log *slog.Logger

	mu      sync.Mutex
	ids     []string // of images that have yet to be settled
	running bool
	stopped bool
	end     chan struct{} // closed by stop
}

func newSettler(db *database.DB, log *slog.Logger) *settler {
	return &settler{db: db, log: log, end: make(chan struct{})}
}

// settle waits, in the background, until the layers of images are on disk, and
// records that.
func (t *settler) settle(ids ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ids = append(t.ids, ids...)
	if len(t.ids) > 0 && !t.running {
		t.running = true
		go t.run()
	}
}

func (t *settler) run() {
	for {
		select {
		case <-time.After(settleDelay):
		case <-t.end:
		}
		ids := t.take()
		if len(ids) == 0 {
			return
		}
		// What a pull took of memory, decompressing, is not needed again soon.
		debug.FreeOSMemory()
		err := t.db.Sync()
		if err == nil {
			err = t.record(ids)
		}
		if err != nil && !t.isStopped() {
			t.log.Warn("image layers may not be on disk; they would be unpacked again after a power failure", "error", err)
		}
	}
}

// take returns what is to be settled now. The last to be told that it is
// nothing, ends.
func (t *settler) take() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	ids := t.ids
	t.ids = nil
	if t.stopped {
		ids = nil
	}
	t.running = len(ids) > 0
	return ids
}

func (t *settler) record(ids []string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return nil // the next process does it
	}
	return t.db.Settle(ids...)
}

func (t *settler) isStopped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stopped
}

// stop keeps the settler away from the database from now on. It doesn't wait
// for what the kernel is writing.
func (t *settler) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.stopped {
		t.stopped = true
		close(t.end)
	}
}

// partial is what interrupted pulls leave for a while, so that the next attempt
// need not begin at nothing.
type partial struct {
	mu     sync.Mutex
	timers map[*database.Operation]*time.Timer
}

// add keeps what an operation has made for the resumeWindow, then aborts it.
func (p *partial) add(op *database.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timers == nil {
		p.timers = map[*database.Operation]*time.Timer{}
	}
	p.timers[op] = time.AfterFunc(resumeWindow, func() { _ = p.drop(op) })
}

// drop aborts an operation that was added, unless somebody else has.
func (p *partial) drop(op *database.Operation) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	timer := p.timers[op]
	if timer == nil {
		return nil
	}
	timer.Stop()
	delete(p.timers, op)
	return op.Abort()
}

// dropAll aborts all operations.
func (p *partial) dropAll() error {
	p.mu.Lock()
	var all []*database.Operation
	for op := range p.timers {
		all = append(all, op)
	}
	p.mu.Unlock()
	for _, op := range all {
		if err := p.drop(op); err != nil {
			return err
		}
	}
	return nil
}

// stop leaves it to the next process to delete what was kept.
func (p *partial) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for op, timer := range p.timers {
		timer.Stop()
		delete(p.timers, op)
	}
}
