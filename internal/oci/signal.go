package oci

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Real-time signals as the C library numbers them: it reserves the kernel's first two.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// ParseSignal parses the notations of an image's STOPSIGNAL and of users: "SIGTERM", "term", "15",
// "SIGRTMIN+3", "RTMAX-1".
func ParseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > lastRealTime {
			return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("signal %d: want 1 to %d", n, lastRealTime))
		}
		return syscall.Signal(n), nil
	}
	name := strings.TrimPrefix(strings.ToUpper(s), "SIG")
	if sig := unix.SignalNum("SIG" + name); sig != 0 {
		return sig, nil
	}
	if sig, ok := realTime(name); ok {
		return sig, nil
	}
	return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("unknown signal %q: want a name like SIGTERM or a number", s))
}

func realTime(name string) (syscall.Signal, bool) {
	base := firstRealTime
	var rest string
	switch {
	case strings.HasPrefix(name, "RTMIN"):
		rest = strings.TrimPrefix(name, "RTMIN")
	case strings.HasPrefix(name, "RTMAX"):
		base, rest = lastRealTime, strings.TrimPrefix(name, "RTMAX")
	default:
		return 0, false
	}
	if rest == "" {
		return syscall.Signal(base), true
	}
	offset, err := strconv.Atoi(rest)
	n := base + offset
	signed := rest[0] == '+' || rest[0] == '-'
	return syscall.Signal(n), err == nil && signed && n >= firstRealTime && n <= lastRealTime
}
