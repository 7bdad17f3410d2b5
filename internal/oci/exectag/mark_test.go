package exectag

import (
	"os"
	"testing"
)

func TestMark(t *testing.T) {
	seen := map[Mark]bool{}
	for range 100 {
		m := New()
		if m < 2 || seen[m] || m > 1<<62 {
			t.Fatalf("mark %d", m)
		}
		seen[m] = true
		if m.on(os.Getpid()) {
			t.Errorf("this process has the mark %d", m)
		}
	}
	if Mark(1).on(1<<30) || Mark(0).on(os.Getpid()) {
		t.Error("marked")
	}
}
