// Package stdioholder is the process by which conmon keeps the log of a container
// that is another's child. conmon watches over a child of its own and writes
// what comes out of the pipes that it gives it. The holder is that child: it
// does nothing but hold the pipes, and whoever has the output opens them by
// their names in /proc.
//
// It is a static ELF executable of a few hundred bytes in the place of the OCI
// runtime that conmon runs: it forks, writes the number of the child into the
// file that its first argument names, and ends. The child waits to be killed.
//
// Its source is amd64.asm and arm64.asm; the bytes are in code.go.
package stdioholder

import (
	"fmt"
	"os"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/native"
)

// Open returns the executable as a file in memory: /run, where one of ours would
// be, is often mounted noexec. It is run by its name in /proc as long as it is
// open.
func Open() (*os.File, error) {
	program := executable(runtime.GOARCH)
	if program == nil {
		return nil, errdefs.ErrNotImplemented.WithMessage("no holder of logs for " + runtime.GOARCH + ": runtimes of type shim can't be used here")
	}
	fd, err := unix.MemfdCreate("husk-holder", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "husk-holder")
	if _, err := f.Write(program); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("write the holder of logs: %w", err)
	}
	return f, nil
}

// Stream returns the path of one of the pipes that the holder with number pid
// holds: 0 for reading, 1 and 2 for writing.
func Stream(pid, fd int) string { return fmt.Sprintf("/proc/%d/fd/%d", pid, fd) }

func executable(arch string) []byte { return native.Executable(program(arch)) }
