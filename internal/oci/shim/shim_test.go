package shim

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

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

// debianShim is containerd 1.6's.
const debianShim = "/usr/bin/containerd-shim-runc-v2"

// TestConformance runs the suite with the newest of containerd's shims of runc, and with Debian's,
// which speaks the older protocol versions.
func TestConformance(t *testing.T) {
	hosttest.Root(t)
	t.Run("v3", func(t *testing.T) { t.Parallel(); conform(t, runcShim(t)) })
	t.Run("v2", func(t *testing.T) {
		t.Parallel()
		conform(t, Handler{Path: debianShim, Old: true, Conmon: conmon.Locate("conmon")})
	})
}

func conform(t *testing.T, h Handler, except ...string) {
	ocitest.Suite(t, func(t *testing.T) ocitest.Subject {
		cfg := config(t)
		var last *Driver
		return ocitest.Subject{
			StateDir: cfg.StateDir,
			New: func(boot string) ocitest.Driver {
				cfg := cfg
				cfg.Host.BootID = boot
				last = New(cfg, Only(h))
				return last
			},
			Monitor: func(id string) int {
				c, err := last.load(id)
				if err != nil {
					t.Fatal(err)
				}
				return c.Shim.PID
			},
		}
	}, except...)
}

func config(t testing.TB) Config {
	hosttest.Root(t)
	return Config{StateDir: t.TempDir(), Instance: pod.InstanceOf(t.TempDir()), Host: host.Probe("/")}
}

// runcShim returns a handler with containerd's shim of runc.
func runcShim(t testing.TB) Handler {
	path, err := buildShim()
	if err != nil {
		t.Fatal(err)
	}
	return Handler{Path: path, Conmon: conmon.Locate("conmon")}
}

// shimModule is the shim's module. Debian has no package of this version.
const shimModule = "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2@v2.4.2"

// buildShim builds the shim, which Go's build cache makes fast after the first time.
var buildShim = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), "husk-shims-"+path.Base(shimModule))
	cmd := exec.Command("go", "install", shimModule)
	cmd.Dir = os.TempDir()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return filepath.Join(dir, "containerd-shim-runc-v2"), nil
})

// TestConformanceSandboxed runs the suite with the shim in HUSK_TEST_SHIM, gVisor's, without the
// tests that can't pass with a kernel of its own.
func TestConformanceSandboxed(t *testing.T) {
	hosttest.Root(t)
	path := os.Getenv("HUSK_TEST_SHIM")
	if path == "" {
		t.Skip("needs a shim in HUSK_TEST_SHIM: run make test-gvisor")
	}
	// runsc keeps an empty network namespace mounted.
	t.Cleanup(func() {
		_ = exec.Command("umount", "--all-targets", "/run/containerd/runsc/"+namespace+"/null-netns").Run()
	})
	conform(t, Handler{Path: path, Config: os.Getenv("HUSK_TEST_SHIM_CONFIG"), Conmon: conmon.Locate("conmon")},
		// It loads the program at the start, not at the creation.
		"programs that can't be started",
		// It has no signals above 31.
		"signals",
		// make test-gvisor runs it without cgroups, so memory has no limit.
		"out of memory", "out of memory of a child",
		// Its processes are invisible to the host, so those of an exec can't be found.
		"exec times out", "processes left behind",
		// Its terminals have no names.
		"attach to a terminal", "exec with a terminal", "long paths",
		// The exit code is lost with the sandbox if its only container exits at once.
		"log format", "restart", "exit codes", "attach to stdin once",
	)
}

// installed returns a driver with a running container.
func installed(t *testing.T) (*Driver, *container) {
	d := New(config(t), Only(runcShim(t)))
	id, dir := pod.NewID(), t.TempDir()
	t.Cleanup(func() {
		if err := d.Delete(context.Background(), id); err != nil {
			t.Error(err)
		}
		for _, trace := range ocitest.Traces(d.cfg.Host.Cgroup, id, "/"+id, d.cfg.StateDir, dir) {
			t.Errorf("left behind: %s", trace)
		}
	})
	must(t, bundle.WriteProbe(dir, "/"+id, "", "/pause"))
	_, err := d.Create(t.Context(), oci.Create{ID: id, Bundle: dir})
	must(t, err)
	must(t, d.Start(t.Context(), id))
	c, err := d.find(id)
	must(t, err)
	return d, c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLogLost checks that a container is killed if conmon or the stdio holder dies.
func TestLogLost(t *testing.T) {
	for name, of := range map[string]func(*container) oci.Process{
		"conmon": func(c *container) oci.Process { return c.Monitor },
		"holder": func(c *container) oci.Process { return c.Holder },
	} {
		d, c := installed(t)
		must(t, pidfd.Signal(of(c), syscall.SIGKILL))
		if exit, err := d.Wait(t.Context(), c.ID); err != nil || !exit.Lost || exit.Code != oci.LostExit().Code {
			t.Errorf("exit after %s was killed: %+v, %v; want it lost", name, exit, err)
		}
	}
}

// TestUnreadableRecord checks that a container with an unreadable record can be deleted.
func TestUnreadableRecord(t *testing.T) {
	for _, content := range []string{"", "{", "null", `{"id":"other"}`} {
		d, c := installed(t)
		must(t, os.WriteFile(c.path(record.File), []byte(content), 0o600))
		restarted := New(d.cfg, d.handlers)
		if _, err := restarted.Wait(t.Context(), c.ID); err == nil {
			t.Errorf("Wait accepts the record %q", content)
		}
		must(t, restarted.Delete(t.Context(), c.ID))
		must(t, d.dropWatch(t.Context(), c.ID))
		conmon.RemoveFiles(c.Bundle) // the record that named the bundle is lost
	}
}

// TestFind checks that shims are probed and the reasons of those that fail.
func TestFind(t *testing.T) {
	cfg := config(t)
	broken := filepath.Join(t.TempDir(), "containerd-shim-broken-v2")
	must(t, os.WriteFile(broken, []byte("#!/bin/sh\necho first >&2; echo second >&2; exit 1\n"), 0o755))
	settings := map[string]Setting{
		"new": {Path: runcShim(t).Path}, "old": {Path: debianShim}, "broken": {Path: broken}, "gone": {Path: "/opt/containerd-shim-gone-v2"},
		"misnamed": {Path: "/usr/sbin/runc"}, "nowhere": {},
	}
	h := Find(t.Context(), cfg, settings)
	for name, want := range map[string]string{
		"new": "", "old": "", "broken": "can't be used: first; second", "gone": "no such file", "misnamed": "not named containerd-shim-NAME-VERSION",
		"nowhere": "install it or set its path", "unknown": "is not a shim",
	} {
		err := h.Check(name, false)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n")) {
			t.Errorf("Check of %s: %v, want %q", name, err, want)
		}
	}
	if err := h.Check("new", true); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Check with a user namespace: %v, want a failed precondition", err)
	}
	if old, _ := h.Get("old"); !old.Old {
		t.Error("the old shim is not recognized as old")
	}
	if list := h.List(); len(list) != len(settings) || list[1].Name != "gone" || list[3].Runtime != "runc" || !strings.HasPrefix(list[3].Version, "2.4.2") {
		t.Errorf("handlers are %+v", list)
	}
	again := Find(t.Context(), cfg, map[string]Setting{"new": settings["new"], "old": settings["old"]})
	if again.Check("new", false) != nil || again.Check("old", false) != nil {
		t.Error("the handlers are missing after a second Find")
	}
}
