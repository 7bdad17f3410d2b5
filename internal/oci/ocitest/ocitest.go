// Package ocitest is the conformance suite of the OCI runtime drivers. It tests them with real
// containers. A driver's own tests call Suite.
package ocitest

import (
	"context"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci"
)

// Lifecycle are the methods for the life of a container.
type Lifecycle interface {
	Create(context.Context, oci.Create) (oci.Process, error)
	Start(ctx context.Context, id string) error
	Signal(ctx context.Context, id string, sig syscall.Signal) error
	Wait(ctx context.Context, id string) (oci.Exit, error)
	Status(ctx context.Context, id string) (oci.Status, error)
	Delete(ctx context.Context, id string) error
}

// Sessions are the methods for a running container.
type Sessions interface {
	Exec(context.Context, oci.Exec) (int, error)
	Attach(ctx context.Context, id string, s oci.Streams) error
	ReopenLog(ctx context.Context, id string) error
	KillAll(ctx context.Context, id string) error
}

// Driver is the interface that the suite tests.
type Driver interface {
	Lifecycle
	Sessions
}

// Subject is a driver with a state directory of its own.
type Subject struct {
	// StateDir is the driver's state directory.
	StateDir string
	// New returns another driver on the same state, as after a restart of the daemon, or with
	// another boot ID after a reboot of the host.
	New func(bootID string) Driver
	// Monitor returns the PID of the process that monitors a container. The suite kills it.
	Monitor func(id string) int
}

// patience is how long the suite waits for what should happen at once.
const patience = 30 * time.Second

// Suite runs all tests but those named in except, each on a new subject.
func Suite(t *testing.T, newSubject func(t *testing.T) Subject, except ...string) {
	hosttest.Root(t)
	env := newEnvironment(t)
	for _, test := range []struct {
		name string
		run  func(*subtest)
	}{
		{"exit codes", exitCodes},
		{"signals", signals},
		{"signal to a process that is not an init", signalDefault},
		{"states", states},
		{"processes left behind", leftovers},
		{"out of memory", outOfMemory},
		{"out of memory of a child", outOfMemoryChild},
		{"refused creations", refusedCreations},
		{"programs that can't be started", badPrograms},
		{"unknown containers", unknown},
		{"delete at any point", deletions},
		{"restart", restart},
		{"reboot", reboot},
		{"killed monitor", killedMonitor},
		{"log format", logFormat},
		{"reopen the log", reopenLog},
		{"reopen a log that can't be", reopenLogFails},
		{"attach", attach},
		{"attach to stdin", attachStdin},
		{"attach to stdin once", attachStdinOnce},
		{"attach to a terminal", attachTerminal},
		{"attach ends", attachEnds},
		{"exec", execs},
		{"exec fails", execFails},
		{"exec with stdin", execStdin},
		{"exec with a terminal", execTerminal},
		{"exec and its children", execChildren},
		{"exec times out", execTimeouts},
		{"long paths", longPaths},
	} {
		if slices.Contains(except, test.name) {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			subject := newSubject(t)
			test.run(&subtest{T: t, env: env, Subject: subject, Driver: subject.New(env.host.BootID)})
		})
	}
}

// environment is shared by all tests of a suite.
type environment struct {
	host   host.Facts
	rootfs string
	// parent is the parent cgroup of all containers.
	parent string
	tree   *cgroup.Tree
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	env := &environment{host: host.Probe("/"), rootfs: rootfs(t)}
	env.parent = "/husk-test-" + filepath.Base(t.TempDir()) + "-" + unique()
	tree, err := cgroup.New(env.host.Cgroup, env.parent)
	if err != nil {
		t.Fatal(err)
	}
	env.tree = tree
	t.Cleanup(func() {
		if left, _ := tree.List(); len(left) > 0 {
			t.Errorf("cgroups left behind: %v", left)
		}
		if err := tree.Remove(context.Background(), env.parent); err != nil {
			t.Error(err)
		}
	})
	return env
}

// subtest is a test with a driver of its own.
type subtest struct {
	*testing.T
	env *environment
	Subject
	Driver
}

// ctx returns a context that ends before the test binary times out, so that the test can report
// what hung.
func (b *subtest) ctx() context.Context {
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	b.Cleanup(cancel)
	return ctx
}

// must fails the test now if err isn't nil.
func (b *subtest) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// eventually waits until ok returns true.
func (b *subtest) eventually(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("timed out after %v: want that %s", patience, what)
		}
	}
}
