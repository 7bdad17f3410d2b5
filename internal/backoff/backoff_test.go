package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/huskd/husk/internal/backoff"
)

// TestWait: the waits grow, differ between nodes, and are never longer than the bound.
func TestWait(t *testing.T) {
	last := time.Duration(0)
	for failures := range 1000 {
		least, most := backoff.Wait(time.Second/4, failures+1, 0), backoff.Wait(time.Second/4, failures+1, math.Nextafter(1, 0))
		if least < last/2 || most < last || most > backoff.Most || least < most/2-1 || least >= most {
			t.Fatalf("after %d failures: from %v to %v, and up to %v before", failures+1, least, most, last)
		}
		last = most
	}
	if last < backoff.Most-time.Millisecond {
		t.Errorf("the longest wait is %v", last)
	}
	if w := backoff.Wait(time.Hour, 1, 0.5); w > backoff.Most {
		t.Errorf("the first wait is %v", w)
	}
}
