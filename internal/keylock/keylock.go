// Package keylock provides mutexes by name that can be waited for with a context.
package keylock

import (
	"context"
	"sync"
)

// Locks are mutexes by name. The zero value is ready for use.
type Locks struct {
	mu sync.Mutex
	// Invariant: held has exactly the locks with users.
	held map[string]*lock
}

type lock struct {
	taken chan struct{} // has an element while the lock is held
	users int           // goroutines that hold the lock or wait for it; guarded by Locks.mu
}

// Lock locks the mutex of that name. It returns ctx's error if that ends first.
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
