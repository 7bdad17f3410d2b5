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

// Kill kills every process whose initial environment has the variable with a value for
// which marked is true, and returns when none is left. After a crash, huskd uses it to
// kill the plugins of the previous huskd process, and what those have started.
func Kill(ctx context.Context, variable string, marked func(value string) bool) error {
	for {
		found, err := find(variable, marked)
		if err != nil || len(found) == 0 {
			return err
		}
		for _, pid := range found {
			p, err := pidfd.Identify(pid)
			if err == nil {
				err = pidfd.Signal(p, unix.SIGKILL)
			}
			if err != nil && !errors.Is(err, pidfd.ErrGone) {
				return fmt.Errorf("kill plugin process %d: %w", pid, err)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("kill plugin process %d: %w", found[0], ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// find returns those processes. Zombies are not among them: they have no environment.
func find(variable string, marked func(value string) bool) ([]int, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, dir := range dirs {
		env, err := os.ReadFile(dir + "/environ")
		if err != nil {
			continue // it has ended, or belongs to another user
		}
		_, value, ok := bytes.Cut(append([]byte{0}, env...), []byte("\x00"+variable+"="))
		value, _, _ = bytes.Cut(value, []byte{0})
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && ok && marked(string(value)) {
			found = append(found, pid)
		}
	}
	return found, nil
}
