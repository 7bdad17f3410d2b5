// Package chansync provides a mutex and a wait group made of channels. Unlike a
// goroutine that waits for a sync.Mutex, one that waits for these is durably
// blocked in the sense of testing/synctest, so simulated time can advance.
package chansync

import "sync"

// Mutex is a mutual exclusion lock. Make one with NewMutex.
type Mutex chan struct{}

// NewMutex returns an unlocked mutex.
func NewMutex() Mutex { return make(Mutex, 1) }

// Lock locks m. It blocks while another goroutine holds m.
func (m Mutex) Lock() { m <- struct{}{} }

// TryLock locks m and returns true, unless another goroutine holds it.
func (m Mutex) TryLock() bool {
	select {
	case m <- struct{}{}:
		return true
	default:
		return false
	}
}

// Unlock unlocks m. Any goroutine may call it.
func (m Mutex) Unlock() { <-m }

// WaitGroup waits for goroutines to finish. Unlike with sync.WaitGroup, Go may be
// called while Wait blocks and the count is zero: an owner that closes still
// accepts calls. The zero value is ready for use.
type WaitGroup struct {
	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when running drops to zero; nil if nothing waits
}

// Go runs fn in a new goroutine.
func (g *WaitGroup) Go(fn func()) {
	g.mu.Lock()
	g.running++
	g.mu.Unlock()
	go func() {
		defer g.done()
		fn()
	}()
}

func (g *WaitGroup) done() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait blocks until no goroutine that Go started is running.
func (g *WaitGroup) Wait() {
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
