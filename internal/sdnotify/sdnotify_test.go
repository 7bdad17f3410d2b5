package sdnotify

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// manager is the socket of a service manager.
func manager(t *testing.T) *net.UnixConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	t.Setenv("NOTIFY_SOCKET", path)
	return conn
}

func receive(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	buf := make([]byte, 4096)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestStates(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_USEC", "1000")
	t.Setenv("WATCHDOG_PID", "1") // of another process
	n := Open(slog.Default())
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		if value, found := os.LookupEnv(name); found {
			t.Errorf("children would see %s=%s", name, value)
		}
	}
	if n.watchdog != 0 {
		t.Errorf("the watchdog of another process is ours: %v", n.watchdog)
	}
	n.Ready("serving")
	if got := receive(t, conn); got != "READY=1\nSTATUS=serving" {
		t.Errorf("%q", got)
	}
	n.Reloading()
	if got := receive(t, conn); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("%q", got)
	}
	n.Stopping("pods keep running")
	if got := receive(t, conn); got != "STOPPING=1\nSTATUS=pods keep running" {
		t.Errorf("%q", got)
	}
}

func TestWithoutManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	n := Open(slog.Default())
	n.Ready("")
	n.Stopping("")
	if err := n.Watch(t.Context(), func(context.Context) error { return nil }); n != nil || err != nil {
		t.Errorf("%v, %v", n, err)
	}
}

// TestWatchdog checks that a failing check sends no sign of life, and the next good one does.
func TestWatchdog(t *testing.T) {
	conn := manager(t)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n := Open(slog.Default())
	ctx, cancel := context.WithCancel(t.Context())
	checks, done := 0, make(chan error, 1)
	go func() {
		done <- n.Watch(ctx, func(context.Context) error {
			if checks++; checks < 3 {
				return errors.New("a lock is held")
			}
			n.Ready("after " + strconv.Itoa(checks))
			return nil
		})
	}()
	if got := receive(t, conn); got != "READY=1\nSTATUS=after 3" {
		t.Errorf("a sign of life though the checks failed: %q", got)
	}
	if got := receive(t, conn); got != "WATCHDOG=1" {
		t.Errorf("%q", got)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
