package turn

import (
	"sync/atomic"
	"testing"
)

// TestGroup has goroutines begin while others are waited for, which
// sync.WaitGroup takes for a mistake.
func TestGroup(t *testing.T) {
	var b Group
	b.Wait()
	for range 1000 {
		var ended atomic.Bool
		begun := make(chan struct{})
		b.Go(func() {
			b.Go(func() { ended.Store(true) })
			close(begun)
		})
		go b.Go(func() {})
		<-begun
		b.Wait()
		if !ended.Load() {
			t.Fatal("one that was begun before the wait has not ended")
		}
	}
	b.Wait()
}

func TestLockIsHadByOne(t *testing.T) {
	turn := New()
	n := 0
	var b Group
	for range 100 {
		b.Go(func() {
			turn.Lock()
			defer turn.Unlock()
			n++
		})
	}
	b.Wait()
	if n != 100 {
		t.Errorf("%d have had it", n)
	}
}
