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

func exitCodes(b *bench) {
	for _, code := range []int{0, 1, 7, 255} {
		c := b.shell(fmt.Sprintf("exit %d", code)).run()
		c.ends(code)
		c.ends(code) // asked again
	}
}

func signals(b *bench) {
	for sig, want := range map[syscall.Signal]int{syscall.SIGTERM: 3, syscall.SIGUSR1: 4, 35: 5, syscall.SIGKILL: 137} {
		c := b.shell("trap 'exit 3' TERM; trap 'exit 4' USR1; trap 'exit 5' 35; echo ready; while :; do sleep 0.01; done").run()
		c.says("ready")
		b.must(c.Driver.Signal(b.ctx(), c.ID, sig))
		c.ends(want)
		if err := c.Driver.Signal(b.ctx(), c.ID, sig); !errdefs.IsNotFound(err) {
			b.Errorf("signal %d to a container that has ended: %v", sig, err)
		}
	}
}

// signalDefault has the host's PID namespace, where a signal has its default
// action.
func signalDefault(b *bench) {
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

func states(b *bench) {
	c := b.shell("echo started; sleep 1000")
	p := c.create()
	c.isIn(oci.Created)
	if out := c.output("stdout"); out != "" {
		b.Errorf("the program ran before it was started: %q", out)
	}
	b.must(c.Driver.Start(b.ctx(), c.ID))
	c.isIn(oci.Running)
	c.says("started")
	status := c.isIn(oci.Running)
	if status.Process != p || p.PID == 0 || p.Start == 0 {
		b.Errorf("process %+v, created as %+v", status.Process, p)
	}
	var refused *oci.StartError
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("started twice: %v", err)
	}
	ctx, cancel := context.WithTimeout(b.ctx(), 20*time.Millisecond)
	defer cancel()
	if _, err := c.Driver.Wait(ctx, c.ID); !errors.Is(err, context.DeadlineExceeded) {
		b.Errorf("waited for a running container: %v", err)
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))
	exit := c.ends(137)
	if status := c.isIn(oci.Exited); !status.Exit.At.Equal(exit.At) || status.Exit.Code != exit.Code {
		b.Errorf("status %+v, exit %+v", status, exit)
	}
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("started after its end: %v", err)
	}
	b.must(c.Driver.KillAll(b.ctx(), c.ID))

	// A container that is never started can be waited for all the same.
	c = b.shell("exit 0")
	c.create()
	b.must(c.Driver.Signal(b.ctx(), c.ID, syscall.SIGKILL))
	c.ends(137)
	if err := c.Driver.Start(b.ctx(), c.ID); !errors.As(err, &refused) {
		b.Errorf("started after init was killed: %v", err)
	}
}

func (c *container) isIn(want oci.State) oci.Status {
	c.Helper()
	status, err := c.Driver.Status(c.ctx(), c.ID)
	c.must(err)
	if status.State != want {
		c.Errorf("state %s, want %s", status.State, want)
	}
	return status
}

// leftovers: without a PID namespace of the container's own nothing but the
// driver ends what its first process leaves.
func leftovers(b *bench) {
	c := b.shell("setsid sh -c 'sleep 1000 & sleep 1000' & (sleep 1000 &); echo ready; exit 4")
	c.withoutNamespace(specs.PIDNamespace)
	c.run()
	c.ends(4)
	if pids, err := b.env.tree.PIDs(c.cgroup); err != nil || len(pids) > 0 {
		b.Errorf("still there when the container has ended: %v, %v", pids, err)
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

func outOfMemory(b *bench) {
	c := b.container("tail", "/dev/zero")
	c.limitMemory()
	c.run()
	if exit := c.ends(137); !exit.OOMKilled {
		b.Errorf("%+v isn't said to be for memory", exit)
	}
}

func outOfMemoryChild(b *bench) {
	c := b.shell("tail /dev/zero; echo survived; exit 6")
	c.limitMemory()
	c.run()
	if exit := c.ends(6); !exit.OOMKilled {
		b.Errorf("%+v isn't said to have lost a process for memory", exit)
	}
	c.says("survived")
	c = b.shell("sleep 1000 & kill -9 $!; wait; exit 137")
	c.limitMemory()
	c.run()
	if exit := c.ends(137); exit.OOMKilled {
		b.Errorf("%+v: no process was killed for memory", exit)
	}
}

func refusedCreations(b *bench) {
	for name, spoil := range map[string]func(*container){
		"no ID":                 func(c *container) { c.ID = "" },
		"an ID with a slash":    func(c *container) { c.ID = "../" + c.ID },
		"an ID of dots":         func(c *container) { c.ID = ".." },
		"a relative bundle":     func(c *container) { c.Bundle = "bundle" },
		"no bundle":             func(c *container) { c.Bundle = filepath.Join(c.Bundle, "missing") },
		"a relative log":        func(c *container) { c.Log = "log" },
		"a terminal, unasked":   func(c *container) { c.spec.Process.Terminal = true },
		"no cgroup":             func(c *container) { c.spec.Linux.CgroupsPath = "" },
		"a relative cgroup":     func(c *container) { c.spec.Linux.CgroupsPath = c.ID },
		"somebody else's":       func(c *container) { c.spec.Linux.CgroupsPath = "/" },
		"a cgroup that climbs":  func(c *container) { c.spec.Linux.CgroupsPath = c.env.parent + "/../" + c.ID },
		"no process":            func(c *container) { c.spec.Process = nil },
		"a root that isn't one": func(c *container) { c.spec.Root.Path = "/no/such/directory" },
		"a mount that fails": func(c *container) {
			c.spec.Mounts = append(c.spec.Mounts, specs.Mount{Destination: "/tmp/x", Type: "bind", Source: "/no/such/file", Options: []string{"bind"}})
		},
		"a log in no directory": func(c *container) { c.Log = "/no/such/directory/log" },
	} {
		c := b.container("true")
		id, bundle := c.ID, c.Bundle
		spoil(c)
		writeSpec(b, bundle, c.spec)
		_, err := c.Driver.Create(b.ctx(), c.Create)
		if err == nil || strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), "without an error message") {
			b.Errorf("%s: %q, want one clear line", name, err)
		}
		c.ID, c.Bundle = id, bundle
		c.leftNothing()
	}
	c := b.container("true")
	for _, spec := range []string{"", "{", "[]", "null", `{"process":3}`} {
		b.must(os.WriteFile(filepath.Join(c.Bundle, "config.json"), []byte(spec), 0o600))
		if _, err := c.Driver.Create(b.ctx(), c.Create); err == nil {
			b.Errorf("the spec %q was taken", spec)
		}
	}
	c = b.container("sleep", "1000").run()
	if _, err := c.Driver.Create(b.ctx(), c.Create); !errdefs.IsAlreadyExists(err) {
		b.Errorf("created twice: %v", err)
	}
	c.isIn(oci.Running)
}

// badPrograms has what users of the other runtimes know: 127 and "not found",
// 126 and "permission denied".
func badPrograms(b *bench) {
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
			b.Errorf("%s: %v", test.program, err)
			continue
		}
		if refused.Code != test.code || !strings.Contains(strings.ToLower(refused.Message), test.words) {
			b.Errorf("%s: %+v, want code %d and %q", test.program, refused, test.code, test.words)
		}
		c.leftNothing()
	}
	// The kernel refuses this one when it is executed, after the start.
	c := b.container("/bin/garbage").run()
	if exit := c.wait(); exit.Code == 0 || exit.Lost {
		b.Errorf("garbage ended with %+v", exit)
	}
	if out := strings.ToLower(c.output("stderr")); !strings.Contains(out, "exec format error") {
		b.Errorf("the log says %q", out)
	}
}

func unknown(b *bench) {
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
			b.Errorf("%s: %v, want not found", op, err)
		}
	}
	b.must(b.Driver.Delete(ctx, id))
	if err := b.Driver.Delete(ctx, "../../etc"); !errdefs.IsInvalidArgument(err) {
		b.Errorf("delete ../../etc: %v", err)
	}
}

func deletions(b *bench) {
	forking := "trap '' TERM; (setsid sleep 1000 &); sleep 1000 & echo ready; wait"
	points := map[string]func(*container){
		"never created": func(*container) {},
		"created":       func(c *container) { c.create() },
		"running":       func(c *container) { c.run(); c.says("ready") },
		"ended":         func(c *container) { c.run(); b.must(c.Driver.KillAll(b.ctx(), c.ID)); c.ends(137) },
		"ended unseen":  func(c *container) { c.run(); b.must(c.Driver.Signal(b.ctx(), c.ID, syscall.SIGKILL)) },
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
		for range 2 { // again is fine
			if err := c.Driver.Delete(b.ctx(), c.ID); err != nil {
				b.Errorf("%s: %v", name, err)
			}
		}
		c.leftNothing()
		if b.Failed() {
			b.Fatalf("deleting a container: %s", name)
		}
	}
}

func restart(b *bench) {
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
		b.Errorf("exec: %d, %v", code, err)
	}
	b.must(b.Driver.Signal(b.ctx(), running.ID, syscall.SIGTERM))
	running.ends(5)
	running.ends(5)
}

// reboot: every process is gone, whatever has its number now.
func reboot(b *bench) {
	c := b.container("sleep", "1000").run()
	rebooted := b.New("another-boot")
	status, err := rebooted.Status(b.ctx(), c.ID)
	b.must(err)
	exit, err := rebooted.Wait(b.ctx(), c.ID)
	b.must(err)
	if status.State != oci.Exited || !exit.Lost || exit.Code != 255 {
		b.Errorf("%+v, %+v", status, exit)
	}
	if err := rebooted.Signal(b.ctx(), c.ID, syscall.SIGTERM); !errdefs.IsNotFound(err) {
		b.Errorf("signalled: %v", err)
	}
	if _, err := rebooted.Exec(b.ctx(), oci.Exec{ID: c.ID, Args: []string{"true"}}); !errdefs.IsFailedPrecondition(err) {
		b.Errorf("exec: %v", err)
	}
	c.isIn(oci.Running) // nobody touched it
}

func killedMonitor(b *bench) {
	for _, restarted := range []bool{false, true} {
		c := b.shell("(setsid sleep 1000 &); sleep 1000 & echo ready; sleep 1000").run()
		c.says("ready")
		b.must(syscall.Kill(c.Monitor(c.ID), syscall.SIGKILL))
		if restarted {
			c.Driver = c.New(b.env.host.BootID)
		}
		exit := c.wait()
		if !exit.Lost || exit.Code != 255 || exit.OOMKilled {
			b.Errorf("%+v, want it lost with code 255", exit)
		}
		if pids, err := b.env.tree.PIDs(c.cgroup); err != nil || len(pids) > 0 {
			b.Errorf("still running: %v, %v", pids, err)
		}
		if again := c.wait(); !again.At.Equal(exit.At) {
			b.Errorf("ended at %v, and then at %v", exit.At, again.At)
		}
		c.isIn(oci.Exited)
	}
}
