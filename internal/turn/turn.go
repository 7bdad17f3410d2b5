// Package turn has who may act and who still does: a mutex and a wait group for
// owners of what lives long. Unlike those of package sync, whoever waits for
// them is durably blocked in the sense of testing/synctest, so that simulated
// time goes on meanwhile.
package turn

import "sync"

// Lock is had by one at a time.
type Lock chan struct{}

// New returns a lock that nobody has.
func New() Lock { return make(Lock, 1) }

// Lock waits for the lock.
func (l Lock) Lock() { l <- struct{}{} }

// Unlock gives it to the next.
func (l Lock) Unlock() { <-l }

// Group counts goroutines. Others may begin while somebody waits: a call may
// come while its owner is being closed. The zero value is ready for use.
type Group struct {
	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when none is left; nil if nobody waits
}

// Go runs fn in a goroutine.
func (g *Group) Go(fn func()) {
	g.mu.Lock()
	g.running++
	g.mu.Unlock()
	go func() {
		defer g.done()
		fn()
	}()
}

func (g *Group) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait returns when none is left.
func (g *Group) Wait() {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	<-idle
}
