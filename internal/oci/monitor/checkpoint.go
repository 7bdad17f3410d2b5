package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pod"
)

// checkpointer is the only runtime that can checkpoint here. crun must be built with CRIU, which
// Debian's isn't.
const checkpointer = "runc"

// Checkpoint makes CRIU write the state of the container's processes into the directory to, which
// must be empty. The container is then paused while meanwhile runs, and resumed.
func (d *Driver) Checkpoint(ctx context.Context, id, to string, meanwhile func() error) error {
	fail := func(err error) error { return fmt.Errorf("checkpoint container %s: %w", pod.Short(id), err) }
	c, err := d.find(id)
	if err != nil {
		return err
	}
	if c.rebooted() {
		return fail(errdefs.ErrFailedPrecondition.WithMessage("it has ended"))
	}
	if err := c.canCheckpoint(ctx); err != nil {
		return fail(err)
	}
	// Without --tcp-established an open connection would fail the checkpoint.
	err = c.runRuntime(ctx, "checkpoint", "--leave-running", "--file-locks", "--tcp-established", "--image-path", to, "--work-path", c.dir, id)
	if err != nil {
		return fail(withReason(err, filepath.Join(c.dir, "dump.log")))
	}
	if err := c.runRuntime(ctx, "pause", id); err != nil {
		return fail(err)
	}
	err = meanwhile()
	return errors.Join(err, c.runRuntime(context.WithoutCancel(ctx), "resume", id))
}

// canCheckpoint returns an error that says what a checkpoint lacks, or nil.
func (c *container) canCheckpoint(ctx context.Context) error {
	if c.Runtime.Name != checkpointer {
		return errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf("it runs with %s, but only %s can checkpoint: use a runtime handler with %[2]s for its pod", c.Runtime.Name, checkpointer))
	}
	path := ""
	for _, dir := range filepath.SplitList(conmon.Path) {
		if info, err := os.Stat(filepath.Join(dir, "criu")); err == nil && info.Mode()&0o111 != 0 {
			path = filepath.Join(dir, "criu")
		}
	}
	if path == "" {
		return errdefs.ErrNotImplemented.WithMessage("criu is not installed: install it, apt-get install criu")
	}
	cmd := exec.CommandContext(ctx, path, "check")
	cmd.Env = []string{"PATH=" + conmon.Path}
	if out, err := cmd.CombinedOutput(); err != nil {
		return errdefs.ErrNotImplemented.WithMessage("criu check fails on this host: " + lastLine(string(out)))
	}
	return nil
}

// withReason adds the first error in CRIU's log to err. Later ones are consequences of it.
func withReason(err error, log string) error {
	content, _ := os.ReadFile(log)
	reason := ""
	for line := range strings.Lines(string(content)) {
		if reason == "" && strings.Contains(line, "Error (") {
			reason = strings.TrimSpace(line)
		}
	}
	if reason == "" {
		return err
	}
	return fmt.Errorf("%w: %s", err, reason)
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return oci.OneLine(lines[len(lines)-1])
}

// criuOptions make a restored process wait for SIGCONT, as a new one waits for Start; close its
// connections, which were to another address; and keep it in the cgroup that the runtime created,
// instead of the one that it was in.
const criuOptions = "leave-stopped\ntcp-close\nmanage-cgroups=ignore\n"

// resumeRestored continues the processes of a restored container, which CRIU has left stopped.
func (c *container) resumeRestored() error {
	tree, err := c.tree()
	if err != nil {
		return err
	}
	pids, err := tree.PIDs(c.Cgroup)
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGCONT); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return nil
}
