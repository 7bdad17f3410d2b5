package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/ocitest"
	"github.com/huskd/husk/internal/oci/record"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// installed is a test with a driver for a runtime that works, and a bundle.
type installed struct {
	*testing.T
	*Driver
	id, bundle, cgroup string
}

func install(t *testing.T) *installed {
	cfg := config(t)
	runtime, _, err := Find(t.Context(), cfg)
	must(t, err)
	return &installed{T: t, Driver: New(cfg, Only(runtime, nil))}
}

// newBundle makes a new bundle for the pause program.
func (i *installed) newBundle() {
	i.id, i.bundle = pod.NewID(), i.TempDir()
	i.cgroup = "/" + i.id
	must(i, bundle.WriteProbe(i.bundle, i.cgroup, "", "/pause"))
}

func (i *installed) dir(id string) string { return i.newContainer(id).dir }

func (i *installed) ctx() context.Context {
	ctx, cancel := context.WithTimeout(i.Context(), 30*time.Second)
	i.Cleanup(cancel)
	return ctx
}

func (i *installed) createRequest() oci.Create { return oci.Create{ID: i.id, Bundle: i.bundle} }

// leftNothing checks that no trace of the container is left.
func (i *installed) leftNothing(when string) {
	i.Helper()
	for _, trace := range ocitest.Traces(i.cfg.Host.Cgroup, i.id, i.cgroup, i.cfg.StateDir, i.bundle) {
		i.Errorf("%s: left behind: %s", when, trace)
	}
}

// TestRuntimeKilled kills the runtime at many moments of a creation, as the OOM killer may.
func TestRuntimeKilled(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	failed := 0
	for after := time.Duration(0); after < 60*time.Millisecond; after += 3 * time.Millisecond {
		i.newBundle()
		// If the runtime is killed after its work is done, conmon waits for the container's init to
		// close stderr, until the context ends.
		ctx, cancel := context.WithTimeout(i.ctx(), 2*time.Second)
		done := make(chan error, 1)
		go func() {
			_, err := i.Create(ctx, i.createRequest())
			done <- err
		}()
		found := i.conmon()
		time.Sleep(after)
		for _, pid := range pidfd.Children(found.PID) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		err := <-done
		cancel()
		if err != nil {
			failed++
		}
		if err == nil {
			must(t, i.Delete(i.ctx(), i.id))
		}
		i.leftNothing(fmt.Sprintf("killed after %v (%v)", after, err))
	}
	if failed == 0 {
		t.Error("no creation failed: the runtime is killed too late")
	}
}

// TestStoppedInCreation stops the runtime and its children, or conmon, with SIGSTOP at many moments
// of a creation. The creation fails in time, or succeeds, and nothing is left after that.
func TestStoppedInCreation(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	failed := map[string]int{}
	stops := []time.Duration{0, 4 * time.Millisecond, 12 * time.Millisecond}
	for round := 0; round < len(stops) || len(failed) < 3 && round < 30; round++ { // a busy machine may stop the processes too late
		after := stops[round%len(stops)]
		for _, what := range []string{"conmon", "runtime", "all"} {
			i.newBundle()
			ctx, cancel := context.WithTimeout(i.ctx(), 500*time.Millisecond)
			done := make(chan error, 1)
			go func() {
				_, err := i.Create(ctx, i.createRequest())
				done <- err
			}()
			found := i.conmon()
			time.Sleep(after)
			if what != "runtime" {
				_ = syscall.Kill(found.PID, syscall.SIGSTOP)
			}
			if what != "conmon" {
				for _, pid := range pidfd.Children(found.PID) {
					for _, child := range pidfd.Children(pid) {
						_ = syscall.Kill(child, syscall.SIGSTOP)
					}
					_ = syscall.Kill(pid, syscall.SIGSTOP)
				}
			}
			err := <-done
			cancel()
			if err != nil {
				failed[what]++
			} else {
				must(t, i.Delete(i.ctx(), i.id))
			}
			i.leftNothing(fmt.Sprintf("%s stopped after %v (%v)", what, after, err))
		}
	}
	if len(failed) < 3 {
		t.Errorf("failed creations: %v: the processes are stopped too late", failed)
	}
}

// TestStoppedMonitor kills a container whose conmon was stopped with SIGSTOP. Its exit is known
// afterwards, though not the exit code.
func TestStoppedMonitor(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	i.newBundle()
	_, err := i.Create(i.ctx(), i.createRequest())
	must(t, err)
	must(t, i.Start(i.ctx(), i.id))
	c, err := i.find(i.id)
	must(t, err)
	must(t, pidfd.Signal(c.Monitor, syscall.SIGSTOP))
	must(t, i.KillAll(i.ctx(), i.id))
	st, err := i.Status(i.ctx(), i.id)
	if err != nil || st.State != oci.Exited || !st.Exit.Lost {
		t.Errorf("after KillAll the container is %+v, %v", st, err)
	}
	must(t, i.Delete(i.ctx(), i.id))
	i.leftNothing("after a stopped conmon")
}

// TestTimedOutExecIsReaped: the program of an exec that timed out must be gone when Exec returns,
// as the container's processes see a zombie. So its parent must live until it has reaped it, also
// on a busy machine, for which conmon is stopped for a while.
func TestTimedOutExecIsReaped(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	i.newBundle()
	_, err := i.Create(i.ctx(), i.createRequest())
	must(t, err)
	must(t, i.Start(i.ctx(), i.id))
	done := make(chan error, 1)
	stdin, input := io.Pipe()
	defer stdin.Close()
	go func() {
		_, err := i.Exec(i.ctx(), oci.Exec{ID: i.id, Args: []string{"/pause"}, Timeout: 5 * time.Second, Streams: oci.Streams{Stdin: stdin}})
		done <- err
	}()
	parent, program := i.execution()
	// It is read once conmon has reported that the program runs. A conmon that was stopped before
	// that is killed at once.
	_, err = input.Write([]byte("\n"))
	must(t, err)
	must(t, pidfd.Signal(parent, syscall.SIGSTOP))
	open := func(p oci.Process) *os.File {
		f, err := pidfd.Open(p)
		must(t, err)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	must(t, pidfd.Wait(i.ctx(), open(program)))
	soon, cancel := context.WithTimeout(i.ctx(), 100*time.Millisecond)
	defer cancel()
	if pidfd.Wait(soon, open(parent)) == nil {
		t.Error("conmon was killed before it could reap the program")
	}
	must(t, pidfd.Signal(parent, syscall.SIGCONT))
	if err := <-done; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec: %v, want a timeout", err)
	}
	if comm(program.PID) == "pause" {
		t.Errorf("the program is left as a zombie, %d", program.PID)
	}
	must(t, i.KillAll(i.ctx(), i.id))
	must(t, i.Delete(i.ctx(), i.id))
	i.leftNothing("after an exec that timed out")
}

// execution waits until an exec of /pause runs. It returns the exec's conmon and the program.
func (i *installed) execution() (parent, program oci.Process) {
	i.Helper()
	for ctx := i.ctx(); ctx.Err() == nil; {
		for _, p := range pidfd.Find(func(args []string) bool { return slices.Contains(args, "--exec") && slices.Contains(args, i.id) }) {
			for _, child := range pidfd.Children(p.PID) {
				if found, err := pidfd.Identify(child); err == nil && comm(child) == "pause" {
					return p, found
				}
			}
		}
	}
	i.Fatal("no exec runs after 30 s")
	return oci.Process{}, oci.Process{}
}

// comm returns the name of a process, also of a zombie, or nothing.
func comm(pid int) string {
	name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	return strings.TrimSpace(string(name))
}

// conmon waits until the container's conmon has started its runtime.
func (i *installed) conmon() oci.Process {
	i.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if p, ok := conmon.Find(i.dir(i.id)); ok && len(pidfd.Children(p.PID)) > 0 {
			return p
		}
	}
	i.Fatal("no conmon found after 10 s")
	return oci.Process{}
}

// crashing is the environment variable with the state directory in the process that
// TestDaemonKilled kills.
const crashing = "HUSK_CRASHING"

// TestDaemonKilled kills a process at many moments while it creates a container. A new driver then
// cleans up.
func TestDaemonKilled(t *testing.T) {
	hosttest.Root(t)
	if dir := os.Getenv(crashing); dir != "" {
		createForever(t, dir)
		return
	}
	i := install(t)
	interrupted, created := 0, 0
	for after := time.Duration(0); created < 3 && after < 5*time.Second; after += 4 * time.Millisecond {
		i.newBundle()
		cmd := exec.Command(os.Args[0], "-test.run=^TestDaemonKilled$")
		cmd.Env = append(os.Environ(), crashing+"="+i.cfg.StateDir, "HUSK_ID="+i.id, "HUSK_BUNDLE="+i.bundle)
		must(t, cmd.Start())
		for !exists(i.dir(i.id)) {
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(after)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		restarted := New(i.cfg, i.handlers)
		if ids, err := restarted.List(); err != nil || len(ids) != 1 || ids[0] != i.id {
			t.Fatalf("containers after the crash: %v, %v; want %s", ids, err, i.id)
		}
		if _, err := restarted.Status(i.ctx(), i.id); err == nil {
			created++
		} else {
			interrupted++
		}
		must(t, restarted.Delete(i.ctx(), i.id))
		i.leftNothing(fmt.Sprintf("killed after %v", after))
	}
	if interrupted == 0 || created == 0 {
		t.Errorf("%d interrupted and %d created containers, want some of each: the process is killed at the wrong moments", interrupted, created)
	}
}

func createForever(t *testing.T, state string) {
	cfg := Config{StateDir: state, Host: host.Probe("/")} // not config, whose temporary directory nothing would remove
	runtime, _, err := Find(t.Context(), cfg)             // cached by the parent
	must(t, err)
	_, err = New(cfg, Only(runtime, nil)).Create(t.Context(), oci.Create{ID: os.Getenv("HUSK_ID"), Bundle: os.Getenv("HUSK_BUNDLE")})
	must(t, err)
	time.Sleep(time.Minute)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TestBadRuntimes uses runtimes that claim to be runc and fail.
func TestBadRuntimes(t *testing.T) {
	hosttest.Root(t)
	for name, script := range map[string]string{
		"hangs":          "exec sleep 1000",
		"fails silently": "exit 1",
		"fails":          "echo 'first line' >&2; echo 'second line' >&2; exit 1",
		"is killed":      "kill -9 $$",
		"does nothing":   "exit 0",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			i := install(t)
			i.newBundle()
			i.handlers.Default.Path = filepath.Join(t.TempDir(), "runtime")
			must(t, os.WriteFile(i.handlers.Default.Path, []byte("#!/bin/sh\n"+script+"\n"), 0o755))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := i.Create(ctx, i.createRequest())
			if err == nil || strings.Contains(err.Error(), "\n") {
				t.Errorf("Create: %v, want a one-line error", err)
			}
			i.leftNothing(name)
		})
	}
}

// TestMountLeftByRuntime deletes a container with a mount that a killed runc left.
func TestMountLeftByRuntime(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	i.newBundle()
	_, err := i.Create(i.ctx(), i.createRequest())
	must(t, err)
	c, err := i.find(i.id)
	must(t, err)
	file := filepath.Join(c.runtimeState(), "runc.XXXXXX")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, syscall.Mount("/bin/true", file, "", syscall.MS_BIND, ""))
	must(t, i.Delete(i.ctx(), i.id))
	i.leftNothing("with a mount")
}

// TestUnreadableRecord checks that a container with an unreadable record can be deleted.
func TestUnreadableRecord(t *testing.T) {
	hosttest.Root(t)
	for _, content := range []string{"", "{", "null", `{"id":"other"}`} {
		i := install(t)
		i.newBundle()
		_, err := i.Create(i.ctx(), i.createRequest())
		must(t, err)
		must(t, os.WriteFile(filepath.Join(i.dir(i.id), record.File), []byte(content), 0o600))
		restarted := New(i.cfg, i.handlers)
		if _, err := restarted.Wait(i.ctx(), i.id); err == nil {
			t.Errorf("Wait accepts the record %q", content)
		}
		must(t, restarted.Delete(i.ctx(), i.id))
		i.dropWatch(i.id)
		i.bundle = i.cfg.StateDir // the record that named the bundle is lost
		i.leftNothing("record " + content)
	}
}
