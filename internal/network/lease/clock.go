package lease

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/lease/claim"
)

// SystemClock is the kernel's clock. It goes on while the node is suspended, and nobody can set it.
type SystemClock struct{}

// Now returns the time since the boot, and the wall clock's time if that is synchronized. After a
// reboot, a wall clock that isn't may be behind by any time.
func (SystemClock) Now() claim.Instant {
	var boot unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) // never fails
	now := claim.Instant{Boot: time.Duration(boot.Nano())}
	var state unix.Timex
	if _, err := unix.Adjtimex(&state); err == nil && state.Status&unix.STA_UNSYNC == 0 {
		now.Wall = time.Now().Round(0)
	}
	return now
}
