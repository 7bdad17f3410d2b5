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

// checkpointer is the runtime that is known to be able to: crun has to be built
// for it, which Debian's is not.
const checkpointer = "runc"

// Checkpoint has CRIU write what the container's processes are into the
// directory to, which must be empty. They are then kept from running while
// meanwhile looks at their files, and go on.
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
	// Connections go into it too: without that, one would make it fail.
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

// canCheckpoint says what is missing for it.
func (c *container) canCheckpoint(ctx context.Context) error {
	if c.Runtime.Name != checkpointer {
		return errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf("it runs with %s, and checkpoints are made with %s only: give its pod a runtime handler with that", c.Runtime.Name, checkpointer))
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
		return errdefs.ErrNotImplemented.WithMessage("criu check says that it can't be done on this host: " + lastLine(string(out)))
	}
	return nil
}

// withReason adds to an error the first complaint in CRIU's log: those behind it
// follow from it.
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

// criuOptions have a restored process wait for SIGCONT, as a new one does for
// Start; close its connections, which were to another address; and leave it in
// the cgroup that the runtime has made, instead of the one that it was in.
const criuOptions = "leave-stopped\ntcp-close\nmanage-cgroups=ignore\n"

// resume lets the processes of a restored container go on, which CRIU has left
// stopped.
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
