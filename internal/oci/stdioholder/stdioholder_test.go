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

	"github.com/huskd/husk/internal/hosttest"
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
		t.Error("got a program for mips, want none")
	}
}

func TestSource(t *testing.T) {
	nativetest.CheckSource(t, func(arch string) []byte {
		code, _ := program(arch)
		return code
	})
}

// TestHolds checks that the holder's pipes can be opened by its PID, and that they are closed when
// it is killed.
func TestHolds(t *testing.T) {
	file, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	testHolds(t, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()))
}

// TestHoldsARM64 runs the program for arm64 in an emulator (Debian package qemu-user-static).
func TestHoldsARM64(t *testing.T) {
	if runtime.GOARCH == "arm64" {
		t.Skip("TestHolds runs this program without an emulator")
	}
	qemu := hosttest.Program(t, "qemu-aarch64-static")
	path := filepath.Join(t.TempDir(), "holder")
	if err := os.WriteFile(path, executable("arm64"), 0o755); err != nil {
		t.Fatal(err)
	}
	testHolds(t, qemu, path)
}

func testHolds(t *testing.T, command ...string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	file := filepath.Join(t.TempDir(), "pid")
	cmd := exec.Command(command[0], append(command[1:], file, "create", "--whatever")...)
	cmd.Stdout = w
	if err := cmd.Run(); err != nil { // returns while the child runs
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
	if _, err := stream.WriteString("text"); err != nil {
		t.Error(err)
	}
	_ = stream.Close()
	if got, err := io.ReadAll(io.LimitReader(r, 4)); err != nil || string(got) != "text" {
		t.Errorf("read %q, %v from the pipe, want what was written", got, err)
	}
	_ = r.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := r.Read(make([]byte, 1)); err == nil || err == io.EOF {
		t.Errorf("read %d bytes, %v while the holder runs; want the pipe open and empty", n, err)
	}
	_ = syscall.Kill(pid, syscall.SIGKILL)
	_ = r.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := r.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read error %v after the holder was killed, want EOF", err)
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
			t.Errorf("the program succeeded with arguments %q", args)
		}
	}
}
