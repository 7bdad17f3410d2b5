package stdioholder

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/oci/native/nativetest"
)

func TestExecutableIsWellFormed(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		f, err := elf.NewFile(bytes.NewReader(executable(arch)))
		if err != nil || f.Type != elf.ET_EXEC || len(f.Progs) != 2 {
			t.Errorf("%s: %+v, %v", arch, f, err)
		}
	}
	if executable("mips") != nil {
		t.Error("there is no program for mips")
	}
}

func TestCodeIsTheSource(t *testing.T) {
	nativetest.IsTheSource(t, func(arch string) []byte {
		code, _ := program(arch)
		return code
	})
}

// TestHolds: whoever knows the holder's number can write into its pipes, as
// long as it lives.
func TestHolds(t *testing.T) {
	file, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	holds(t, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()))
}

// TestHoldsEmulated does so with the program of the other architecture where an
// emulator for it is installed (qemu-user-static).
func TestHoldsEmulated(t *testing.T) {
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil || runtime.GOARCH == "arm64" {
		t.Skip("no emulator of arm64")
	}
	path := filepath.Join(t.TempDir(), "holder")
	if err := os.WriteFile(path, executable("arm64"), 0o755); err != nil {
		t.Fatal(err)
	}
	holds(t, qemu, path)
}

func holds(t *testing.T, command ...string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(command[0], append(command[1:], file, "create", "--whatever")...)
	cmd.Stdout = w
	if err := cmd.Run(); err != nil { // it doesn't wait for the child
		t.Fatal(err)
	}
	_ = w.Close()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL) }()
	stream, err := os.OpenFile(Stream(pid, 1), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.WriteString("said"); err != nil {
		t.Error(err)
	}
	_ = stream.Close()
	if got, err := io.ReadAll(io.LimitReader(r, 4)); err != nil || string(got) != "said" {
		t.Errorf("%q, %v", got, err)
	}
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("the pipe is closed while it is held: %d, %v", n, err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("after its end: %v", err)
	}
}

func TestFails(t *testing.T) {
	file, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	program := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd())
	for _, args := range [][]string{nil, {filepath.Join(t.TempDir(), "missing", "pid")}} {
		if err := exec.Command(program, args...).Run(); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
}
