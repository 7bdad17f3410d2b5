// Package stdioholder holds a program with which conmon keeps the log of a container that isn't its
// child. conmon watches a child and logs what is written to the pipes that the child got as its
// stdio. The stdio holder is that child: it only keeps the pipes open, and a shim opens them by
// their names in /proc to write the container's output into them.
//
// The program is a static ELF executable of a few hundred bytes that conmon runs in place of an OCI
// runtime. It forks, writes the child's PID into the file that its first argument names, and exits.
// The child waits until it is killed.
//
// Its source is amd64.asm and arm64.asm; code.go holds the bytes.
package stdioholder

import (
	"fmt"
	"os"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/native"
)

// Open returns the executable as a file in memory, because /run is often mounted noexec. It can be
// run by its name in /proc for as long as it is open.
func Open() (*os.File, error) {
	program := executable(runtime.GOARCH)
	if program == nil {
		return nil, errdefs.ErrNotImplemented.WithMessage("no stdio holder for " + runtime.GOARCH + ": runtimes of type shim can't be used here")
	}
	fd, err := unix.MemfdCreate("husk-holder", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "husk-holder")
	if _, err := f.Write(program); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the stdio holder: %w", err)
	}
	return f, nil
}

// Stream returns the path of a pipe that the holder with the given PID keeps open: 0 for reading, 1
// and 2 for writing.
func Stream(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

func executable(arch string) []byte { return native.Executable(program(arch)) }
