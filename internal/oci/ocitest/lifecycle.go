package ocitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci"
)

func exitCodes(b *subtest) {
	for _, code := range []int{0, 1, 7, 255} {
		c := b.shell(fmt.Sprintf("exit %d", code)).run()
		c.ends(code)
		c.ends(code) // Wait can be repeated
	}
}

func signals(b *subtest) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 3, syscall.SIGUSR1: 4, 35: 5, syscall.SIGKILL: 137} {
		c := b.shell("trap 'exit 3' TERM; trap 'exit 4' USR1; trap 'exit 5' 35; echo ready; while :; do sleep 0.01; done").run()
		c.says("ready")
		b.must(c.Driver.Signal(b.ctx(), c.ID, sig))
		c.ends(want)
		if err := c.Driver.Signal(b.ctx(), c.ID, sig); !errdefs.IsNotFound(err) {
			b.Errorf("signal %d to an exited container: %v, want not found", sig, err)
		}
	}
}

// signalDefault signals a container in the host's PID namespace, where signals have their default
// action.
func signalDefault(b *subtest) {
	c := b.container("sleep", "1000")
	c.withoutNamespace(specs.PIDNamespace)
	c.run()
	b.must(c.Driver.Signal(b.ctx(), c.ID, syscall.SIGTERM))
	c.ends(128 + int(syscall.SIGTERM))
}

func (c *container) withoutNamespace(typ specs.LinuxNamespaceType) {
	var kept []specs.LinuxNamespace
	for _, ns := range c.spec.Linux.Namespaces {
		if ns.Type != typ {
			kept = append(kept, ns)
		}
	}
	c.spec.Linux.Namespaces = kept
}

func states(b *subtest) {
	c := b.shell("echo started; sleep 1000")
	p := c.create()
	c.isIn(oci.Created)
	if out := c.output("stdout"); out != "" {
		b.Errorf("the program wrote %q before it was started", out)
	}
	b.must(c.Driver.Start(b.ctx(), c.ID))
	c.isIn(oci.Running)
	c.says("started")
	status := c.isIn(oci.Running)
	if status.Process != p || p.PID == 0 || p.Start == 0 {
		b.Errorf("process is %+v, want %+v as from Create", status.Process, p)
	}
	var refused *oci.StartError
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("second Start: %v, want a StartError", err)
	}
	ctx, cancel := context.WithTimeout(b.ctx(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Driver.Wait(ctx, c.ID); !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("Wait for a running container: %v, want a timeout", err)
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))
	exit := c.ends(137)
	if status := c.isIn(oci.Exited); !status.Exit.At.Equal(exit.At) || status.Exit.Code != exit.Code {
		b.Errorf("status is %+v, want exit %+v", status, exit)
	}
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("Start after the exit: %v, want a StartError", err)
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))

	// Wait also works for a container that is never started.
	c = b.shell("exit 0")
	c.create()
	b.must(c.Driver.Signal(b.ctx(), c.ID, syscall.SIGKILL))
	c.ends(137)
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("Start after init was killed: %v, want a StartError", err)
	}
}

func (c *container) isIn(want oci.State) oci.Status {
	c.Helper()
	status, err := c.Driver.Status(c.ctx(), c.ID)
	c.must(err)
	if status.State != want {
		c.Errorf("state is %s, want %s", status.State, want)
	}
	return status
}

// leftovers runs a container without a PID namespace of its own. The driver must kill what its init
// process leaves.
func leftovers(b *subtest) {
	c := b.shell("setsid sh -c 'sleep 1000 & sleep 1000' & (sleep 1000 &); echo ready; exit 4")
	c.withoutNamespace(specs.PIDNamespace)
	c.run()
	c.ends(4)
	if pids, err := b.env.tree.PIDs(c.cgroup); err != nil || len(pids) > 0 {
		b.Errorf("processes left after the exit: %v, %v", pids, err)
	}
	c.says("ready")
}

const memoryLimit = 16 << 20

func (c *container) limitMemory() {
	limit := int64(memoryLimit)
	c.spec.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	if c.env.host.Cgroup.Swap {
		c.spec.Linux.Resources.Memory.Swap = &limit
	}
}

func outOfMemory(b *subtest) {
	c := b.container("tail", "/dev/zero")
	c.limitMemory()
	c.run()
	if exit := c.ends(137); !exit.OOMKilled {
		b.Errorf("exit is %+v, want OOMKilled", exit)
	}
}

func outOfMemoryChild(b *subtest) {
	c := b.shell("tail /dev/zero; echo survived; exit 6")
	c.limitMemory()
	c.run()
	if exit := c.ends(6); !exit.OOMKilled {
		b.Errorf("exit is %+v, want OOMKilled for the child", exit)
	}
	c.says("survived")
	c = b.shell("sleep 1000 & kill -9 $!; wait; exit 137")
	c.limitMemory()
	c.run()
	if exit := c.ends(137); exit.OOMKilled {
		b.Errorf("exit is %+v, want no OOM kill", exit)
	}
}

func refusedCreations(b *subtest) {
	for name, spoil := range map[string]func(*container){
		"no ID":                   func(c *container) { c.ID = "" },
		"an ID with a slash":      func(c *container) { c.ID = "../" + c.ID },
		"an ID of dots":           func(c *container) { c.ID = ".." },
		"a relative bundle":       func(c *container) { c.Bundle = "bundle" },
		"no bundle":               func(c *container) { c.Bundle = filepath.Join(c.Bundle, "missing") },
		"a relative log":          func(c *container) { c.Log = "log" },
		"an unrequested terminal": func(c *container) { c.spec.Process.Terminal = true },
		"no cgroup":               func(c *container) { c.spec.Linux.CgroupsPath = "" },
		"a relative cgroup":       func(c *container) { c.spec.Linux.CgroupsPath = c.ID },
		"another's cgroup":        func(c *container) { c.spec.Linux.CgroupsPath = "/" },
		"a cgroup with ..":        func(c *container) { c.spec.Linux.CgroupsPath = c.env.parent + "/../" + c.ID },
		"no process":              func(c *container) { c.spec.Process = nil },
		"a missing root":          func(c *container) { c.spec.Root.Path = "/no/such/directory" },
		"a mount that fails": func(c *container) {
			c.spec.Mounts = append(c.spec.Mounts, specs.Mount{Destination: "/tmp/x", Type: "bind", Source: "/no/such/file", Options: []string{"bind"}})
		},
		"a log without a directory": func(c *container) { c.Log = "/no/such/directory/log" },
	} {
		c := b.container("true")
		id, bundle := c.ID, c.Bundle
		spoil(c)
		writeSpec(b, bundle, c.spec)
		_, err := c.Driver.Create(b.ctx(), c.Create)
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "without an error message") {
			b.Errorf("Create with %s: %q, want a clear one-line error", name, err)
		}
		c.ID, c.Bundle = id, bundle
		c.leftNothing()
	}
	c := b.container("true")
	for _, spec := range []string{"", "{", "[]", "null", `{"process":3}`} {
		b.must(os.WriteFile(filepath.Join(c.Bundle, "config.json"), []byte(spec), 0o600))
		if _, err := c.Driver.Create(b.ctx(), c.Create); err == nil {
			b.Errorf("Create accepts the spec %q", spec)
		}
	}
	c = b.container("sleep", "1000").run()
	if _, err := c.Driver.Create(b.ctx(), c.Create); !errdefs.IsAlreadyExists(err) {
		b.Errorf("second Create: %v, want already exists", err)
	}
	c.isIn(oci.Running)
}

// badPrograms checks for the exit codes and messages that users know from other tools: 127 and "not
// found", 126 and "permission denied".
func badPrograms(b *subtest) {
	for _, test := range []struct {
		program string
		code    int
		words   string
	}{
		{"nosuchprogram", 127, "not found"},
		{"/bin/nosuchprogram", 127, "no such file"},
		{"/bin/notexecutable", 126, "permission denied"},
	} {
		c := b.container(test.program)
		writeSpec(b, c.Bundle, c.spec)
		_, err := c.Driver.Create(b.ctx(), c.Create)
		var refused *oci.StartError
		if !errors.As(err, &refused) {
			b.Errorf("Create of %s: %v, want a StartError", test.program, err)
			continue
		}
		if refused.Code != test.code || !strings.Contains(strings.ToLower(refused.Message), test.words) {
			b.Errorf("Create of %s: %+v, want code %d and %q", test.program, refused, test.code, test.words)
		}
		c.leftNothing()
	}
	// Only the kernel refuses this program, when it is executed after the start.
	c := b.container("/bin/garbage").run()
	if exit := c.wait(); exit.Code == 0 || exit.Lost {
		b.Errorf("exit of an invalid program is %+v", exit)
	}
	if out := strings.ToLower(c.output("stderr")); !strings.Contains(out, "exec format error") {
		b.Errorf("the log has %q, want an exec format error", out)
	}
}

func unknown(b *subtest) {
	ctx, id := b.ctx(), "ocitest-"+unique()
	_, waitErr := b.Driver.Wait(ctx, id)
	_, statusErr := b.Driver.Status(ctx, id)
	_, execErr := b.Driver.Exec(ctx, oci.Exec{ID: id, Args: []string{"true"}})
	for op, err := range map[string]error{
		"start": b.Driver.Start(ctx, id), "signal": b.Driver.Signal(ctx, id, syscall.SIGTERM), "wait": waitErr,
		"status": statusErr, "exec": execErr, "attach": b.Driver.Attach(ctx, id, oci.Streams{}),
		"reopen": b.Driver.ReopenLog(ctx, id), "kill": b.Driver.KillAll(ctx, id),
	} {
		if !errdefs.IsNotFound(err) {
			b.Errorf("%s of an unknown container: %v, want not found", op, err)
		}
	}
	b.must(b.Driver.Delete(ctx, id))
	if err := b.Driver.Delete(ctx, "../../etc"); !errdefs.IsInvalidArgument(err) {
		b.Errorf("delete of ../../etc: %v, want an invalid argument", err)
	}
}

func deletions(b *subtest) {
	forking := "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & echo ready; wait"
	points := map[string]func(*container){
		"never created": func(*container) {},
		"created":       func(c *container) { c.create() },
		"running":       func(c *container) { c.run(); c.says("ready") },
		"exited":        func(c *container) { c.run(); b.must(c.Driver.KillAll(b.ctx(), c.ID)); c.ends(137) },
		"exited unseen": func(c *container) { c.run(); b.must(c.Driver.Signal(b.ctx(), c.ID, syscall.SIGKILL)) },
		"no bundle":     func(c *container) { c.run(); b.must(os.RemoveAll(c.Bundle)) },
		"no monitor":    func(c *container) { c.run(); b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGKILL)) },
		"stuck monitor": func(c *container) { c.create(); b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGSTOP)) },
		"waited for": func(c *container) {
			c.run()
			go func() { _, _ = c.Driver.Wait(context.Background(), c.ID) }()
		},
		"of an earlier driver": func(c *container) { c.run(); c.Driver = c.New(b.env.host.BootID) },
	}
	for name, prepare := range points {
		c := b.shell(forking)
		prepare(c)
		for range 2 { // Delete can be repeated
			if err := c.Driver.Delete(b.ctx(), c.ID); err != nil {
				b.Errorf("Delete of a container %s: %v", name, err)
			}
		}
		c.leftNothing()
		if b.Failed() {
			b.Fatalf("failed for a container: %s", name)
		}
	}
}

func restart(b *subtest) {
	running := b.shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done").run()
	ended := b.shell("exit 9").run()
	created := b.shell("exit 8")
	created.create()
	running.says("ready")
	ended.ends(9)
	b.Driver = b.New(b.env.host.BootID)
	running.isIn(oci.Running)
	ended.isIn(oci.Exited)
	ended.ends(9)
	created.isIn(oci.Created)
	b.must(b.Driver.Start(b.ctx(), created.ID))
	created.ends(8)
	code, err := b.Driver.Exec(b.ctx(), oci.Exec{ID: running.ID, Args: []string{"false"}})
	if code != 1 || err != nil {
		b.Errorf("exec after a restart: %d, %v; want 1", code, err)
	}
	b.must(b.Driver.Signal(b.ctx(), running.ID, syscall.SIGTERM))
	running.ends(5)
	running.ends(5)
}

// reboot checks that no PID from before a reboot is used.
func reboot(b *subtest) {
	c := b.container("sleep", "1000").run()
	rebooted := b.New("another-boot")
	status, err := rebooted.Status(b.ctx(), c.ID)
	b.must(err)
	exit, err := rebooted.Wait(b.ctx(), c.ID)
	b.must(err)
	if status.State != oci.Exited || !exit.Lost || exit.Code != 255 {
		b.Errorf("after a reboot the status is %+v and the exit %+v, want it lost", status, exit)
	}
	if err := rebooted.Signal(b.ctx(), c.ID, syscall.SIGTERM); !errdefs.IsNotFound(err) {
		b.Errorf("signal after a reboot: %v, want not found", err)
	}
	if _, err := rebooted.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"true"}}); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("exec after a reboot: %v, want a failed precondition", err)
	}
	c.isIn(oci.Running) // the process wasn't touched
}

func killedMonitor(b *subtest) {
	for _, restarted := range []bool{false, true} {
		c := b.shell("(setsid sleep 1000 &); sleep 1000 & echo ready; sleep 1000").run()
		c.says("ready")
		b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGKILL))
		if restarted {
			c.Driver = c.New(b.env.host.BootID)
		}
		exit := c.wait()
		if !exit.Lost || exit.Code != 255 || exit.OOMKilled {
			b.Errorf("exit is %+v, want it lost with code 255", exit)
		}
		if pids, err := b.env.tree.PIDs(c.cgroup); err != nil || len(pids) > 0 {
			b.Errorf("processes left: %v, %v", pids, err)
		}
		if again := c.wait(); !again.At.Equal(exit.At) {
			b.Errorf("exited at %v by the first Wait and at %v by the second", exit.At, again.At)
		}
		c.isIn(oci.Exited)
	}
}
