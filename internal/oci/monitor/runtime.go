package monitor

import (
	"context"
	"errors"
	"os/exec"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
)

// runRuntime runs a command of the container's runtime. Its output is the error if it fails.
func (c *container) runRuntime(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.Runtime.Path, append(c.globalArgs(), args...)...)
	cmd.Env = []string{"PATH=" + conmon.Path}
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &failed):
		return oci.NewStartError(string(out))
	}
	return err
}

// globalArgs returns the runtime's global flags. With a log file, runtimes print errors to stderr
// as plain text, and keep warnings out of the container's log.
func (c *container) globalArgs() []string {
	args := []string{"--root=" + c.runtimeRoot(), "--log=" + c.path("runtime.log")}
	if c.Systemd {
		args = append(args, "--systemd-cgroup")
	}
	return args
}

// runtimeArgs returns the arguments by which conmon runs the runtime.
func (c *container) runtimeArgs() []string {
	args := []string{"--runtime", c.Runtime.Path}
	for _, arg := range c.globalArgs() {
		args = append(args, "--runtime-arg", arg)
	}
	return args
}
