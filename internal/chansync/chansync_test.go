package chansync

import (
	"sync/atomic"
	"testing"
)

// TestWaitGroup starts goroutines while another goroutine waits, which
// sync.WaitGroup reports as misuse.
func TestWaitGroup(t *testing.T) {
	var g WaitGroup
	g.Wait()
	for range 1000 {
		var ended atomic.Bool
		begun := make(chan struct{})
		g.Go(func() {
			g.Go(func() { ended.Store(true) })
			close(begun)
		})
		go g.Go(func() {})
		<-begun
		g.Wait()
		if !ended.Load() {
			t.Fatal("Wait returned before a goroutine that was started earlier had ended")
		}
	}
	g.Wait()
}

func TestMutex(t *testing.T) {
	mu := NewMutex()
	n := 0
	var g WaitGroup
	for range 100 {
		g.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			n++
		})
	}
	g.Wait()
	if n != 100 {
		t.Errorf("got %d increments, want 100", n)
	}
}
