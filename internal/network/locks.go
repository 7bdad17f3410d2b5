package network

import (
	"context"
	"sync"
)

// locks is one lock per key, made when somebody wants it.
type locks struct {
	mu   sync.Mutex
	held map[string]*keyLock
}

type keyLock struct {
	free  chan struct{} // has one token
	users int
}

// lock waits for the key's lock and returns the function that gives it back.
func (l *locks) lock(ctx context.Context, key string) (unlock func(), err error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*keyLock{}
	}
	k := l.held[key]
	if k == nil {
		k = &keyLock{free: make(chan struct{}, 1)}
		k.free <- struct{}{}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()
	select {
	case <-k.free:
		return func() {
			k.free <- struct{}{}
			l.leave(key, k)
		}, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, ctx.Err()
	}
}

func (l *locks) leave(key string, k *keyLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, key)
	}
}
