// Package keylock has mutexes by name, which are waited for under a context.
package keylock

import (
	"context"
	"sync"
)

// Locks has a mutex for every name, kept while somebody has it or waits for it.
// The zero value is ready for use.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	taken chan struct{} // has an element while the lock is held
	users int           // who hold it or wait for it
}

// Lock waits for the mutex of that name and returns what gives it back, or else
// the context's error.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[name]
	if k == nil {
		k = &lock{taken: make(chan struct{}, 1)}
		l.held[name] = k
	}
	k.users++
	l.mu.Unlock()
	leave := func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if k.users--; k.users == 0 {
			delete(l.held, name)
		}
	}
	select {
	case k.taken <- struct{}{}:
		return func() {
			<-k.taken
			leave()
		}, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
