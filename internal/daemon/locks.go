package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/dirmodes"
)

// locks are the lock files that keep a second huskd out of this one's directories.
type locks []*os.File

// lockDirs makes huskd's directories, locks them, and closes them to other users. On error the
// caller releases the locks returned so far.
func lockDirs(cfg config.Config) (held locks, err error) {
	for _, dir := range []struct{ path, flag string }{{cfg.Root, "--root"}, {cfg.State, "--state"}} {
		if err := os.MkdirAll(dir.path, dirmodes.Passable); err != nil {
			return held, fmt.Errorf("%s: %w", dir.flag, err)
		}
		f, err := os.OpenFile(filepath.Join(dir.path, "huskd.lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return held, fmt.Errorf("%s: %w", dir.flag, err)
		}
		held = append(held, f)
		if owner, ok := acquire(f); !ok {
			return held, fmt.Errorf("another huskd (pid %s) uses %s: stop it, or give this one another %s", owner, dir.path, dir.flag)
		}
	}
	if err := dirmodes.Close(cfg.Root, cfg.State); err != nil || cfg.NetworkOnly { // logs are the other runtime's
		return held, err
	}
	logs := podLogs(cfg)
	return held, dirmodes.CloseLogs(logs.Pods, logs.Links)
}

const (
	// stoppingMark follows the owner's PID in a lock file once the owner is stopping.
	stoppingMark = " ends"
	// stopTime is how long acquire waits for an owner that is stopping.
	stopTime = answerTime + 2*closeTime + time.Second
)

// acquire locks f. It waits for an owner that is stopping or was killed, and returns the PID of
// any other.
func acquire(f *os.File) (owner string, ok bool) {
	for deadline := time.Now().Add(stopTime); ; time.Sleep(10 * time.Millisecond) {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			_ = f.Truncate(0)
			_, _ = fmt.Fprintln(f, os.Getpid())
			return "", true
		}
		content := make([]byte, 32)
		n, _ := f.ReadAt(content, 0)
		owner, stopping := strings.CutSuffix(strings.TrimSpace(string(content[:n])), stoppingMark)
		if !stopping && !dead(owner) || time.Now().After(deadline) {
			return owner, false
		}
	}
}

// dead reports whether the process owner doesn't exist. Its lock can outlive it for a moment: a
// child that a killed huskd had just forked holds its files until it executes.
func dead(owner string) bool {
	pid, err := strconv.Atoi(owner)
	return err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// markStopping tells the next huskd to wait for this one.
func (l locks) markStopping() {
	for _, f := range l {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%d%s\n", os.Getpid(), stoppingMark), 0)
	}
}

func (l locks) release() {
	for _, f := range l {
		_ = f.Close()
	}
}
