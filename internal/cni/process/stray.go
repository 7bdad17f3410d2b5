package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/pidfd"
)

// End kills every process that has the variable, "NAME=value", in the
// environment with which it was started, and returns when none is left. By it
// a huskd that was killed finds the plugins that it had running, and what those
// had started.
func End(ctx context.Context, variables ...string) error {
	for {
		found, err := strays(variables)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, pid := range found {
			p, err := pidfd.Identify(pid)
			if err == nil {
				err = pidfd.Signal(p, unix.SIGKILL)
			}
			if err != nil && !errors.Is(err, pidfd.ErrGone) {
				return fmt.Errorf("end plugin %d: %w", pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("end plugin %d: %w", found[0], ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// strays returns the processes with one of the variables. A dead one has no
// environment any more.
func strays(variables []string) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // it has ended, or is none of ours
		}
		env = append([]byte{0}, env...)
		for _, v := range variables {
			if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && bytes.Contains(env, []byte("\x00"+v+"\x00")) {
				found = append(found, pid)
				break
			}
		}
	}
	return found, nil
}
