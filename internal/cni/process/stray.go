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

// End kills every process in whose environment, with which it was started, the
// variable has a value that is marked, and returns when none is left. By it a
// huskd finds the plugins that another had running when it was killed, and what
// those had started.
func End(ctx context.Context, variable string, marked func(value string) bool) error {
	for {
		found, err := strays(variable, marked)
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

// strays returns those processes. A dead one has no environment any more.
func strays(variable string, marked func(value string) bool) ([]int, error) {
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
		_, value, ok := bytes.Cut(append([]byte{0}, env...), []byte("\x00"+variable+"="))
		value, _, _ = bytes.Cut(value, []byte{0})
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && ok && marked(string(value)) {
			found = append(found, pid)
		}
	}
	return found, nil
}
