package oci

import (
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzSignal checks that ParseSignal returns valid signals, whose names parse to the same signal.
func FuzzSignal(f *testing.F) {
	for _, seed := range []string{"SIGTERM", "term", "15", "SIGRTMIN+3", "RTMAX-1", "", "SIG", "0", "65", "RTMIN+99", "rtmin", "SIGRTMIN-1", "-9", "+9"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		sig, err := ParseSignal(s)
		if err != nil {
			return
		}
		if sig < 1 || sig > lastRealTime {
			t.Fatalf("%q parses to the invalid signal %d", s, sig)
		}
		if name := unix.SignalName(sig); name != "" {
			if again, err := ParseSignal(name); err != nil || again != sig {
				t.Errorf("%q parses to %d, but its name %s to %d, %v", s, sig, name, again, err)
			}
		}
	})
}
