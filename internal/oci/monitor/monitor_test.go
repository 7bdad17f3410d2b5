package monitor

import (
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci/ocitest"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformanceRunc runs the suite with runc.
func TestConformanceRunc(t *testing.T) { ocitest.Suite(t, subjects(t, "runc")) }

// withoutUnified is set in a child process of TestConformanceCrun.
const withoutUnified = "HUSK_WITHOUT_UNIFIED"

// TestConformanceCrun runs the suite with crun. On a hybrid host crun works only without the v2
// hierarchy. There the suite runs in a child process, in a mount namespace without that.
func TestConformanceCrun(t *testing.T) {
	hosttest.Root(t)
	if host.Probe("/").Cgroup.Mode != host.CgroupHybrid {
		ocitest.Suite(t, subjects(t, "crun"))
		return
	}
	if os.Getenv(withoutUnified) != "" {
		t.Fatal("the v2 hierarchy is still mounted")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestConformanceCrun$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), withoutUnified+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("the child process failed: %v\n%s", err, out)
	}
}

func init() {
	if os.Getenv(withoutUnified) == "" {
		return
	}
	if unified, ok := host.Probe("/").Cgroup.Mounts[""]; ok {
		if err := syscall.Unmount(unified, syscall.MNT_DETACH); err != nil {
			panic(err)
		}
	}
}

// subjects returns a function that makes subjects of the named runtime.
func subjects(t *testing.T, name string) func(*testing.T) ocitest.Subject {
	cfg := config(t, name)
	runtime, rejected, err := Find(t.Context(), cfg)
	if err != nil {
		t.Fatal(err, rejected)
	}
	return func(t *testing.T) ocitest.Subject {
		cfg := config(t, name)
		var last *Driver
		return ocitest.Subject{
			StateDir: cfg.StateDir,
			New: func(boot string) ocitest.Driver {
				cfg := cfg
				cfg.Host.BootID = boot
				last = New(cfg, Only(runtime, nil))
				return last
			},
			Monitor: func(id string) int {
				c, err := last.load(id)
				if err != nil {
					t.Fatal(err)
				}
				return c.Monitor.PID
			},
		}
	}
}

func config(t testing.TB, runtimes ...string) Config {
	hosttest.Root(t)
	return Config{StateDir: t.TempDir(), Instance: pod.InstanceOf(t.TempDir()), Host: host.Probe("/"), Runtimes: runtimes}
}
