package pause

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci/native/nativetest"
)

func TestExecutableIsWellFormed(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		t.Run(arch, func(t *testing.T) {
			raw := executable(arch)
			if len(raw) > 512 {
				t.Errorf("the executable has %d bytes, want 512 at most", len(raw))
			}
			f, err := elf.NewFile(bytes.NewReader(raw))
			if err != nil {
				t.Fatal(err)
			}
			if f.Type != elf.ET_EXEC || len(f.Progs) != 2 {
				t.Fatalf("type %v with %d segments, want ET_EXEC with 2", f.Type, len(f.Progs))
			}
			load, stack := f.Progs[0], f.Progs[1]
			if load.Type != elf.PT_LOAD || load.Flags != elf.PF_R|elf.PF_X || load.Filesz != uint64(len(raw)) {
				t.Errorf("load segment %+v", load.ProgHeader)
			}
			if load.Vaddr%load.Align != load.Off%load.Align {
				t.Errorf("address and offset of the load segment are not congruent: %+v", load.ProgHeader)
			}
			if stack.Type != elf.PT_GNU_STACK || stack.Flags&elf.PF_X != 0 {
				t.Errorf("stack segment %+v", stack.ProgHeader)
			}
			code, _ := program(arch)
			if got := raw[f.Entry-load.Vaddr:]; !bytes.Equal(got, code) {
				t.Error("the entry point is not the start of the code")
			}
		})
	}
	if executable("mips") != nil {
		t.Error("got a program for mips, want none")
	}
}

func TestSource(t *testing.T) {
	nativetest.CheckSource(t, func(arch string) []byte {
		code, _ := program(arch)
		return code
	})
}

// TestARM64 runs the program for arm64 in an emulator (Debian package qemu-user-static).
func TestARM64(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("TestAsInit runs this program without an emulator")
	}
	qemu := hosttest.Program(t, "qemu-aarch64-static")
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, executable("arm64"), 0o755); err != nil {
		t.Fatal(err)
	}
	run(t, qemu, path, "now")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		exitsOn(t, exec.Command(qemu, path), func(cmd *exec.Cmd) bool {
			return waits(cmd.Process.Pid) && ignores(cmd.Process.Pid, syscall.SIGCHLD)
		}, sig)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pause")
	for _, before := range []func() error{
		func() error { return nil },
		func() error { return os.WriteFile(path, []byte("torn"), 0o600) },
		func() error { return os.Chmod(path, 0o644) },
		func() error { return os.WriteFile(path, bytes.Repeat([]byte{1}, len(Bytes())), 0o755) },
		func() error { return errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)) },
	} {
		if err := before(); err != nil {
			t.Fatal(err)
		}
		if err := Write(path); err != nil {
			t.Fatal(err)
		}
		info, err := os.Lstat(path)
		if err != nil || info.Mode() != 0o755 {
			t.Fatalf("file is %v, %v; want mode 0755", info, err)
		}
		if got, _ := os.ReadFile(path); !bytes.Equal(got, Bytes()) {
			t.Fatal("the file is not the program")
		}
	}
	old, _ := os.Stat(path)
	if err := Write(path); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.Stat(path); !os.SameFile(old, again) {
		t.Error("replaced a file that was up to date")
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
	if err := Write(filepath.Join(dir, "missing", "pause")); err == nil {
		t.Error("no error for a directory that doesn't exist")
	}
}

// TestAsInit runs the program as PID 1 of a PID namespace with orphans.
func TestAsInit(t *testing.T) {
	hosttest.Root(t)
	path := filepath.Join(t.TempDir(), "pause")
	if err := Write(path); err != nil {
		t.Fatal(err)
	}
	run(t, path, "now")
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd := exec.Command(path)
			cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
			exitsOn(t, cmd, func(cmd *exec.Cmd) bool {
				pid := cmd.Process.Pid
				if !waits(pid) || !ignores(pid, syscall.SIGCHLD) {
					return false
				}
				orphans(t, pid)
				// Other signals must not end it.
				_ = cmd.Process.Signal(syscall.SIGCHLD)
				_ = cmd.Process.Signal(syscall.SIGSTOP)
				_ = cmd.Process.Signal(syscall.SIGCONT)
				return waits(pid)
			}, sig)
		})
	}
}

// orphans starts processes in pid's namespace whose parents exit first, and waits until init has
// reaped all of them.
func orphans(t *testing.T, pid int) {
	t.Helper()
	run(t, "nsenter", "-t", fmt.Sprint(pid), "-p", "sh", "-c", "for i in 1 2 3 4 5; do (sleep 0.05 &) ; done")
	eventually(t, "all orphans are reaped", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		return err == nil && len(children) == 0
	})
}

// exitsOn starts cmd, waits until it is ready, signals it and expects exit code 0.
func exitsOn(t *testing.T, cmd *exec.Cmd, ready func(*exec.Cmd) bool, sig syscall.Signal) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	eventually(t, "the program waits for a signal", func() bool { return ready(cmd) })
	if err := cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("exited with %v after %v, want exit code 0", err, sig)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("still running 10 s after %v", sig)
	}
}

// waits reports whether pid is blocked in rt_sigtimedwait.
func waits(pid int) bool {
	syscall, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	return strings.HasPrefix(string(syscall), fmt.Sprintf("%d ", unix.SYS_RT_SIGTIMEDWAIT))
}

func ignores(pid int, sig syscall.Signal) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			var set uint64
			_, _ = fmt.Sscanf(rest, "%x", &set)
			return set&(1<<(sig-1)) != 0
		}
	}
	return false
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out after 10 s: want that %s", what)
		}
	}
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}
