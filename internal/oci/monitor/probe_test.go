package monitor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// counted returns a runtime that runs runc and counts creations.
func counted(t *testing.T) (path string, count func() int) {
	t.Helper()
	runc := locate("runc")
	if runc.Path == "" {
		t.Fatal("runc is not installed: apt-get install runc")
	}
	dir := t.TempDir()
	path, log := filepath.Join(dir, "counting-runc"), filepath.Join(dir, "log")
	script := "#!/bin/sh\ncase \"$*\" in *create*) echo >>" + log + ";; esac\nexec " + runc.Path + " \"$@\"\n"
	must(t, os.WriteFile(path, []byte(script), 0o755))
	return path, func() int {
		raw, _ := os.ReadFile(log)
		return strings.Count(string(raw), "\n")
	}
}

func TestFindCaches(t *testing.T) {
	hosttest.Root(t)
	path, count := counted(t)
	cfg := config(t, "no-such-runtime", "/bin/true", path)
	cfg.Host.IDMap = false // or each runtime would be probed twice
	find := func(want int) {
		t.Helper()
		runtime, rejected, err := Find(t.Context(), cfg)
		must(t, err)
		if runtime.Name != "runc" || runtime.Path != path || runtime.Version == "" || runtime.Conmon == "" {
			t.Errorf("Find returns %+v, want runc at %s", runtime, path)
		}
		if len(rejected) != 2 || rejected[0].Why != "not installed" || !strings.Contains(rejected[1].Why, "not an OCI runtime") {
			t.Errorf("rejected are %+v", rejected)
		}
		if got := count(); got != want {
			t.Errorf("%d probes, want %d", got, want)
		}
	}
	find(1)
	find(1)
	// Replace the program.
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, append(raw, '\n'), 0o755))
	find(2)
	find(2)
	// Replace a program that doesn't exist.
	cfg.Runtimes[0] = "/bin/false"
	if _, rejected, err := Find(t.Context(), cfg); err != nil || !strings.Contains(rejected[0].Why, "exit status 1") {
		t.Errorf("Find with /bin/false: %v, rejected are %+v", err, rejected)
	}
	if got := count(); got != 3 {
		t.Errorf("%d probes, want 3", got)
	}
	cfg.Runtimes[0] = "no-such-runtime"
	find(4)
	// Boot the host.
	cfg.Host.BootID = "another"
	find(5)
	must(t, os.WriteFile(filepath.Join(cfg.StateDir, "runtime.json"), []byte("{truncated"), 0o600))
	find(6)
	// Upgrade huskd.
	raw, err = os.ReadFile(filepath.Join(cfg.StateDir, "runtime.json"))
	must(t, err)
	var cached probeResult
	must(t, json.Unmarshal(raw, &cached))
	own := slices.IndexFunc(cached.Programs, func(p program) bool { return p.Path == "/proc/self/exe" })
	if own < 0 {
		t.Fatalf("the cache is for %+v: huskd's own program is missing", cached.Programs)
	}
	cached.Programs[own].Size++
	raw, err = json.Marshal(cached)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(cfg.StateDir, "runtime.json"), raw, 0o600))
	find(7)
	if left, _ := filepath.Glob(filepath.Join(cfg.StateDir, "probe-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	for _, mount := range cfg.Host.Cgroup.Mounts {
		if left, _ := filepath.Glob(filepath.Join(mount, "husk-"+string(cfg.Instance)+"-probe*")); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	}
}

func TestFindFails(t *testing.T) {
	hosttest.Root(t)
	broken := filepath.Join(t.TempDir(), "broken")
	must(t, os.WriteFile(broken, []byte("#!/bin/sh\n[ \"$1\" = --version ] && echo runc version 9 && exit\necho 'broken' >&2; exit 1\n"), 0o755))
	plain := filepath.Join(t.TempDir(), "plain")
	must(t, os.WriteFile(plain, nil, 0o644))
	for name, test := range map[string]struct {
		cfg   Config
		words []string
	}{
		"conmon missing":   {Config{Conmon: "no-such-conmon"}, []string{"no-such-conmon is not installed", remedy}},
		"runtimes missing": {Config{Runtimes: []string{"no-such-runtime"}}, []string{"no-such-runtime: not installed", remedy}},
		"runtime broken":   {Config{Runtimes: []string{broken}}, []string{"broken", remedy}},
		"conmon broken":    {Config{Conmon: "/bin/false", Runtimes: []string{"runc"}}, []string{"runc: create container", remedy}},
		"not a program":    {Config{Runtimes: []string{plain}}, []string{plain + ": not installed", remedy}},
		"a directory":      {Config{Runtimes: []string{"/etc"}}, []string{"/etc: not installed", remedy}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			cfg.Conmon, cfg.Runtimes = test.cfg.Conmon, test.cfg.Runtimes
			runtime, _, err := Find(t.Context(), cfg)
			if !errdefs.IsUnavailable(err) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("Find returns %v, %v; want a one-line error", runtime, err)
			}
			for _, want := range test.words {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
			// The daemon runs all the same, and each Create fails with this error.
			d := New(cfg, Only(runtime, err))
			_, createErr := d.Create(t.Context(), oci.Create{ID: pod.NewID(), Bundle: t.TempDir()})
			if !errdefs.IsUnavailable(createErr) || !strings.Contains(createErr.Error(), remedy) {
				t.Errorf("Create: %v, want the error of Find", createErr)
			}
			must(t, d.Delete(t.Context(), pod.NewID()))
		})
	}
}

// TestFindOnNoexec has the state directory on a tmpfs mounted noexec, as /run is on Debian.
func TestFindOnNoexec(t *testing.T) {
	hosttest.Root(t)
	cfg := config(t)
	must(t, syscall.Mount("tmpfs", cfg.StateDir, "tmpfs", syscall.MS_NOEXEC|syscall.MS_NOSUID|syscall.MS_NODEV, ""))
	defer func() { must(t, syscall.Unmount(cfg.StateDir, syscall.MNT_DETACH)) }()
	_, _, err := Find(t.Context(), cfg)
	must(t, err)
}

// TestRuntimeIsUninstalled checks that containers can be deleted without a runtime.
func TestRuntimeIsUninstalled(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	i.newBundle()
	_, err := i.Create(i.ctx(), i.createRequest())
	must(t, err)
	must(t, i.Start(i.ctx(), i.id))
	i.Driver = New(i.cfg, Only(Runtime{}, errdefs.ErrUnavailable))
	must(t, i.Delete(i.ctx(), i.id))
	i.leftNothing("uninstalled")
}

// TestHooks checks a container with hooks, which the runtime has to start and delete.
func TestHooks(t *testing.T) {
	hosttest.Root(t)
	i := install(t)
	i.newBundle()
	spec(t, i.bundle, i.id, true)
	_, err := i.Create(i.ctx(), i.createRequest())
	must(t, err)
	must(t, i.Start(i.ctx(), i.id))
	status, err := i.Status(i.ctx(), i.id)
	if err != nil || status.State != oci.Running {
		t.Errorf("status is %+v, %v; want running", status, err)
	}
	must(t, i.Delete(i.ctx(), i.id))
	i.leftNothing("with hooks")
}
