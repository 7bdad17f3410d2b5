package oci

import (
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
)

func TestParseSignal(t *testing.T) {
	for s, want := range map[string]syscall.Signal{
		"SIGTERM": syscall.SIGTERM, "TERM": syscall.SIGTERM, "term": syscall.SIGTERM, "sigKill": syscall.SIGKILL,
		"15": 15, "1": 1, "64": 64, "SIGRTMIN": 34, "SIGRTMIN+3": 37, "RTMAX-14": 50, "rtmax": 64, "RTMIN+30": 64,
	} {
		if got, err := ParseSignal(s); err != nil || got != want {
			t.Errorf("ParseSignal(%q) returns %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "0", "-9", "65", "99999999999999999999", "SIG", "SIGNOPE", "SIGSIGTERM", "TERM ",
		"RTMIN+31", "RTMIN-1", "RTMAX+1", "RTMAX-31", "RTMIN3", "RTMIN+", "RTMIN++3", "RTMAX-x"} {
		if got, err := ParseSignal(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("ParseSignal(%q) returns %d, %v; want an invalid argument", s, got, err)
		}
	}
}
