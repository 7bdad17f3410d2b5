package image

import (
	"sync"
	"time"

	"github.com/huskd/husk/internal/image/database"
)

// resumeWindow is how long the data of an interrupted pull is kept for the next
// attempt.
const resumeWindow = 10 * time.Minute

// partials are the operations of interrupted pulls. They are kept open for a
// while, so that the next attempt can resume the downloads.
type partials struct {
	mu     sync.Mutex
	timers map[*database.Operation]*time.Timer
}

// add keeps an operation for the resumeWindow, then aborts it.
func (p *partials) add(op *database.Operation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.timers == nil {
		p.timers = map[*database.Operation]*time.Timer{}
	}
	p.timers[op] = time.AfterFunc(resumeWindow, func() { _ = p.abort(op) })
}

// abort aborts an operation that was added, unless that has been done.
func (p *partials) abort(op *database.Operation) error {
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

// abortAll aborts all operations.
func (p *partials) abortAll() error {
	p.mu.Lock()
	var all []*database.Operation
	for op := range p.timers {
		all = append(all, op)
	}
	p.mu.Unlock()
	for _, op := range all {
		if err := p.abort(op); err != nil {
			return err
		}
	}
	return nil
}

// stop forgets all operations. The next process aborts them.
func (p *partials) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for op, timer := range p.timers {
		timer.Stop()
		delete(p.timers, op)
	}
}
