package infra

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/oci/spec"
)

// fixture is a driver with a request for a process in new namespaces.
type fixture struct {
	t *testing.T
	Driver
	Request
	tree *cgroup.Tree
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	hosttest.Root(t)
	dir := t.TempDir()
	facts := host.Probe(dir)
	pins := netns.Pins{Net: filepath.Join(dir, "net"), IPC: filepath.Join(dir, "ipc"), UTS: filepath.Join(dir, "uts"), Hostname: "pod"}
	if err := netns.Create(pins); err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("/husk-infra-%d-%d", os.Getpid(), time.Now().UnixNano())
	f := &fixture{t: t, Driver: Driver{Host: facts}, Request: Request{
		ID: "id", Dir: filepath.Join(dir, "infra"), Sandbox: &runtimeapi.PodSandboxConfig{},
		Namespaces: spec.Namespaces{Net: pins.Net, IPC: pins.IPC, UTS: pins.UTS},
		Cgroup:     top + "/id",
	}}
	var err error
	if f.tree, err = cgroup.New(facts.Cgroup, top); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.tree.Remove(t.Context(), top), netns.Remove(pins.Net, pins.IPC, pins.UTS)); err != nil {
			t.Error(err)
		}
	})
	return f
}

// start starts the process and waits until its signals have an effect.
func (f *fixture) start() oci.Process {
	f.t.Helper()
	p, err := f.Start(f.t.Context(), f.Request)
	if err != nil {
		f.t.Fatal(err)
	}
	eventually(f.t, "the process waits for a signal", func() bool {
		syscall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", p.PID))
		return strings.HasPrefix(string(syscall), fmt.Sprintf("%d ", unix.SYS_RT_SIGTIMEDWAIT))
	})
	return p
}

func TestNativeIsConfined(t *testing.T) {
	f := newFixture(t)
	p := f.start()
	defer func() {
		if err := f.Remove(t.Context(), f.ID, f.Dir, p); err != nil {
			t.Error(err)
		}
	}()
	proc := fmt.Sprintf("/proc/%d/", p.PID)
	read := func(name string) string {
		t.Helper()
		raw, err := os.ReadFile(proc + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	status := read("status")
	for _, line := range []string{
		"Uid:\t65535\t65535\t65535\t65535", "Gid:\t65535\t65535\t65535\t65535", "Groups:\t ", "NoNewPrivs:\t1", "Seccomp:\t2",
		"CapInh:\t0000000000000000", "CapPrm:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "CapAmb:\t0000000000000000",
		fmt.Sprintf("NSpid:\t%d\t1", p.PID), fmt.Sprintf("NSsid:\t%d\t1", p.PID),
	} {
		if !strings.Contains(status, line+"\n") {
			t.Errorf("no %q in the status\n%s", line, status)
		}
	}
	mounts := strings.Split(strings.TrimSpace(read("mountinfo")), "\n")
	if len(mounts) != 1 || !strings.Contains(mounts[0], " / ro,nosuid,nodev") {
		t.Errorf("its mounts are\n%s", strings.Join(mounts, "\n"))
	}
	if files, err := os.ReadDir(proc + "root"); err != nil || len(files) != 1 || files[0].Name() != "pause" {
		t.Errorf("its root has %v, %v", files, err)
	}
	if files, err := os.ReadDir(proc + "fd"); err != nil || len(files) != 0 {
		t.Errorf("its open files are %v, %v", files, err)
	}
	if got := read("environ"); got != "" {
		t.Errorf("its environment is %q", got)
	}
	if want := fmt.Sprintln(max(spec.InfraOOMScore, f.Host.OOMScoreFloor)); read("oom_score_adj") != want {
		t.Errorf("its OOM score is %s, want %s", read("oom_score_adj"), want)
	}
	for kind, path := range map[string]string{"net": f.Namespaces.Net, "ipc": f.Namespaces.IPC, "uts": f.Namespaces.UTS} {
		var own, want unix.Stat_t
		if err := errors.Join(unix.Stat(proc+"ns/"+kind, &own), unix.Stat(path, &want)); err != nil || own.Ino != want.Ino {
			t.Errorf("%s namespace %d, want %d; %v", kind, own.Ino, want.Ino, err)
		}
	}
	for line := range strings.Lines(read("cgroup")) {
		if !strings.HasSuffix(line, f.Cgroup+"\n") && !strings.Contains(line, ":cpuset:") {
			t.Errorf("it is in the cgroup %s", line)
		}
	}
	if pids, err := f.tree.PIDs(f.Cgroup); err != nil || len(pids) != 1 || pids[0] != p.PID {
		t.Errorf("the cgroup has the processes %v, %v; want %d", pids, err, p.PID)
	}
}

// TestNativeLife starts processes that end in different ways. Remove leaves nothing of any.
func TestNativeLife(t *testing.T) {
	for name, end := range map[string]func(*fixture, oci.Process) oci.Process{
		"running":      func(_ *fixture, p oci.Process) oci.Process { return p },
		"not recorded": func(*fixture, oci.Process) oci.Process { return oci.Process{} },
		"killed": func(f *fixture, p oci.Process) oci.Process {
			_ = unix.Kill(p.PID, unix.SIGKILL)
			if _, err := f.Wait(f.t.Context(), f.ID, f.Dir, p); err != nil {
				f.t.Error(err)
			}
			return p
		},
		"terminated, with orphans": func(f *fixture, p oci.Process) oci.Process {
			out, err := exec.Command("nsenter", "-t", fmt.Sprint(p.PID), "-p", "sh", "-c", "(sleep 1000 &) >/dev/null 2>&1; (sleep 0.01 &) >/dev/null 2>&1").CombinedOutput()
			if err != nil {
				f.t.Errorf("%v: %s", err, out)
			}
			_ = unix.Kill(p.PID, unix.SIGTERM)
			if _, err := f.Wait(f.t.Context(), f.ID, f.Dir, p); err != nil {
				f.t.Error(err)
			}
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			p := f.start()
			recorded := end(f, p)
			for range 2 {
				if err := f.Remove(t.Context(), f.ID, f.Dir, recorded); err != nil {
					t.Fatal(err)
				}
			}
			if f.tree.Exists(f.Cgroup) {
				t.Error("the cgroup is left")
			}
			eventually(t, "the process is gone", func() bool {
				_, err := os.Stat(fmt.Sprintf("/proc/%d/ns/pid", p.PID))
				return errors.Is(err, fs.ErrNotExist) || zombie(p.PID)
			})
			if recorded == p {
				if _, err := os.Stat(fmt.Sprintf("/proc/%d", p.PID)); err == nil {
					t.Error("the process was not reaped")
				}
			} else {
				_, _ = unix.Wait4(p.PID, nil, 0, nil) // init does so for the next huskd
			}
		})
	}
}

// TestNativeEndsWithParent checks that a process that was never told to run exits with its parent,
// here with the pipe to it.
func TestNativeEndsWithParent(t *testing.T) {
	f := newFixture(t)
	if err := errors.Join(os.MkdirAll(f.rootfs(), 0o755), pause.Write(filepath.Join(f.rootfs(), program)), f.tree.Create(f.Cgroup, cgroup.Limits{})); err != nil {
		t.Fatal(err)
	}
	into, err := f.tree.Open(f.Cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer into.Close()
	stdin, start, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	var process *os.Process
	err = netns.OnThread(func() (err error) {
		process, err = f.fork(f.Request, stdin, into)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = errors.Join(stdin.Close(), start.Close())
	if state, err := process.Wait(); err != nil || !state.Success() {
		t.Errorf("it ended with %v, %v", state, err)
	}
}

// TestNativeFails checks that a failed start leaves no process.
func TestNativeFails(t *testing.T) {
	f := newFixture(t)
	f.Namespaces.UTS = filepath.Join(t.TempDir(), "missing")
	if _, err := f.Start(t.Context(), f.Request); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v, want that a namespace is missing", err)
	}
	if pids, err := f.tree.PIDs(f.Cgroup); err != nil || len(pids) > 0 {
		t.Errorf("the cgroup has the processes %v, %v", pids, err)
	}
	if err := f.Remove(t.Context(), f.ID, f.Dir, oci.Process{}); err != nil || f.tree.Exists(f.Cgroup) {
		t.Errorf("the cgroup is left: %v", err)
	}
}

func TestNative(t *testing.T) {
	plain := Request{Cgroup: "/husk-1/pod-2/3"}
	for _, c := range []struct {
		change func(*Request, *host.Facts)
		want   bool
	}{
		{func(*Request, *host.Facts) {}, true},
		{func(r *Request, _ *host.Facts) { r.RuntimeSandbox = true }, false},
		{func(r *Request, _ *host.Facts) { r.Namespaces.User = "/s/user" }, false},
		{func(r *Request, _ *host.Facts) { r.Cgroup = "/a.slice/a-b.slice/cri-husk-3.scope" }, false},
		{func(r *Request, _ *host.Facts) { r.Labels = spec.Labels{Process: "u:r:t:s0"} }, false},
		{func(_ *Request, f *host.Facts) { f.Seccomp = false }, false},
	} {
		r, facts := plain, host.Facts{Seccomp: true}
		c.change(&r, &facts)
		if got := (Driver{Host: facts}).native(r); got != c.want {
			t.Errorf("%+v on %+v: native is %v", r, facts, got)
		}
	}
}

func zombie(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return strings.Contains(string(status), "State:\tZ")
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after 10 s: want that %s", what)
		}
	}
}
