package keylock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestOneAtATime(t *testing.T) {
	var l Locks
	var all sync.WaitGroup
	inside := map[string]int{"a": 0, "b": 0}
	for name := range inside {
		count := 0 // guarded by the lock
		for range 100 {
			all.Go(func() {
				unlock, err := l.Lock(t.Context(), name)
				if err != nil {
					t.Error(err)
					return
				}
				defer unlock()
				if count++; count != 1 {
					t.Errorf("%d goroutines hold %s at once", count, name)
				}
				time.Sleep(10 * time.Microsecond)
				count--
			})
		}
	}
	all.Wait()
	if len(l.held) != 0 {
		t.Errorf("%d unused locks are kept", len(l.held))
	}
}

func TestLockGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l Locks
		unlock, err := l.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		other, err := l.Lock(t.Context(), "b")
		if err != nil {
			t.Fatal(err)
		}
		other()
		unlock()
		if unlock, err = l.Lock(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		unlock()
		if len(l.held) != 0 {
			t.Errorf("%d unused locks are kept", len(l.held))
		}
	})
}
