// Package sdnotify tells the service manager what state huskd is in: sd_notify(3) and
// sd_watchdog_enabled(3). Without a service manager it does nothing.
package sdnotify

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Notifier sends states to the service manager. Its methods may be called at the same time. A nil
// Notifier, which is that of a process without a service manager, sends nothing.
type Notifier struct {
	address *net.UnixAddr
	// watchdog is how long the service manager waits for a sign of life; 0 for ever.
	watchdog time.Duration
	log      *slog.Logger
}

// Open returns the notifier of this process, and removes the variables of its environment that
// describe it. Children must not have them: conmon and runc would take them for the container's.
func Open(log *slog.Logger) *Notifier {
	path, usec, pid := take("NOTIFY_SOCKET"), take("WATCHDOG_USEC"), take("WATCHDOG_PID")
	if path == "" || path[0] != '/' && path[0] != '@' {
		return nil
	}
	n := &Notifier{address: &net.UnixAddr{Name: path, Net: "unixgram"}, log: log}
	if us, err := strconv.ParseInt(usec, 10, 64); err == nil && us > 0 && (pid == "" || pid == strconv.Itoa(os.Getpid())) {
		n.watchdog = time.Duration(us) * time.Microsecond
	}
	return n
}

func take(variable string) string {
	value := os.Getenv(variable)
	_ = os.Unsetenv(variable)
	return value
}

// Ready says that huskd serves, or has reloaded its configuration. Status is for systemctl status.
func (n *Notifier) Ready(status string) { n.send("READY=1", "STATUS="+status) }

// Reloading says that huskd reads its configuration again. Ready must follow.
func (n *Notifier) Reloading() {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	n.send("RELOADING=1", fmt.Sprintf("MONOTONIC_USEC=%d", now.Nano()/1000))
}

// Stopping says that huskd ends.
func (n *Notifier) Stopping(status string) { n.send("STOPPING=1", "STATUS="+status) }

// Watch sends a sign of life twice per interval of the watchdog while check succeeds, until
// ctx ends. A check may take until the next one is due.
func (n *Notifier) Watch(ctx context.Context, check func(context.Context) error) error {
	if n == nil || n.watchdog == 0 {
		return nil
	}
	interval := n.watchdog / 2
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		checking, cancel := context.WithTimeout(ctx, interval)
		err := check(checking)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			n.log.Warn("huskd doesn't answer itself: systemd restarts it if that doesn't pass", "error", err)
		default:
			n.send("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// sendTime is how long a state may take to be sent. The service manager's queue may be full.
const sendTime = 5 * time.Second

func (n *Notifier) send(lines ...string) {
	if n == nil {
		return
	}
	conn, err := net.DialUnix("unixgram", nil, n.address)
	if err == nil {
		defer conn.Close()
		_ = conn.SetWriteDeadline(time.Now().Add(sendTime))
		_, err = conn.Write([]byte(strings.Join(lines, "\n")))
	}
	if err != nil {
		n.log.Warn("the service manager can't be notified", "state", lines[0], "error", err)
	}
}
