package shim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

// shutdownGrace is how long a shim without containers has to exit.
const shutdownGrace = 5 * time.Second

// ownShim is the shim of a container that has one of its own, and not that of its sandbox.
type ownShim struct {
	id       string // of the container
	bundle   string // directory
	handler  Handler
	endpoint endpoint
	process  oci.Process // may be unknown after a crash
}

func (c *container) ownShim() ownShim {
	return ownShim{id: c.ID, bundle: c.bundleCopy, handler: c.Handler, endpoint: c.Endpoint, process: c.Shim}
}

// identify returns the process of the container's own shim. Kata's shim in Rust doesn't answer
// before the first container exists, but its start command has left exactly that process.
func (s ownShim) identify(ctx context.Context, t *task) (oci.Process, error) {
	pid, err := t.shim(ctx, s.id)
	if err == nil {
		return pidfd.Identify(pid)
	}
	if shims := shimsOf(s.id); len(shims) == 1 {
		return shims[0], nil
	}
	return oci.Process{}, err
}

// end ends a shim that has no container left, and what it has started.
func (s ownShim) end(ctx context.Context) error {
	s.shutDown(ctx)
	if err := s.kill(ctx); err != nil {
		return err
	}
	if err := s.killStarted(ctx); err != nil {
		return err
	}
	path, ok := strings.CutPrefix(s.endpoint.Address, unixScheme)
	if !ok {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// shutDown makes the shim exit, if it answers.
func (s ownShim) shutDown(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, shutdownGrace)
	defer cancel()
	t, err := connect(limited, s.endpoint)
	if err != nil {
		return
	}
	_ = t.shutdown(limited, s.id)
	t.close()
	if f, err := pidfd.Open(s.process); err == nil {
		_ = pidfd.Wait(limited, f)
		_ = f.Close()
	}
}

// killStarted kills what the container's own shim has started and left: a virtual machine, if the
// shim was killed or if the sandbox was never started. The shim's program deletes the rest that
// belongs to it, such as mounts.
func (s ownShim) killStarted(ctx context.Context) error {
	started := pidfd.FindByEnv(ownerVariable + s.id)
	if len(started) == 0 {
		return nil
	}
	if s.handler.Path != "" {
		_ = s.handler.deleteLeftovers(ctx, s.bundle, s.id) // what it leaves is killed
	}
	for started = pidfd.FindByEnv(ownerVariable + s.id); len(started) > 0; started = pidfd.FindByEnv(ownerVariable + s.id) {
		for _, p := range started {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// kill kills the container's own shim, even one that wasn't recorded. Every process of the
// shim's program has the container's ID in a flag, also the daemon that it forks.
func (s ownShim) kill(ctx context.Context) error {
	if err := pidfd.End(ctx, s.process); err != nil {
		return err
	}
	for {
		shims := shimsOf(s.id)
		if len(shims) == 0 {
			return nil
		}
		for _, p := range shims {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
	}
}

// shimsOf returns the shim processes of a container.
func shimsOf(id string) []oci.Process {
	return pidfd.Find(func(args []string) bool {
		i := slices.Index(args, "-id")
		return i > 0 && i+1 < len(args) && args[i+1] == id && strings.HasPrefix(filepath.Base(args[0]), shimPrefix)
	})
}

// withArgument returns the processes whose first argument is arg.
func withArgument(arg string) []oci.Process {
	return pidfd.Find(func(args []string) bool { return len(args) > 1 && args[1] == arg })
}
