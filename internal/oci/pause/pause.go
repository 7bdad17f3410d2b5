// Package pause holds the first process of a pod whose containers share a PID namespace: a static
// ELF executable of a few hundred bytes that reaps orphans and exits on SIGTERM or SIGINT. It needs
// no libc, no image, no root file system, and one page of memory. Its number of arguments says what
// it does first: with one it exits at once, which is how an OCI runtime is probed; with two
// (Await) it confines itself once its parent tells it to run.
//
// Its source is amd64.asm and arm64.asm; code.go holds the bytes.
package pause

import (
	"runtime"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci/native"
)

// Await are the arguments, the program's name included, with which the program reads a byte from
// its standard input, closes that, and forbids itself all system calls that it doesn't need. At the
// end of the input it exits: its parent died before the process was recorded.
var Await = []string{"/pause", "await", "start"}

// Bytes returns the executable for this machine; nil if its architecture has none.
func Bytes() []byte { return executable(runtime.GOARCH) }

// Write writes the executable to path: see native.Write.
func Write(path string) error {
	program := Bytes()
	if program == nil {
		return errdefs.ErrNotImplemented.WithMessage("no pause program for " + runtime.GOARCH + ": pods can't share a PID namespace here")
	}
	return native.Write(path, program)
}

func executable(arch string) []byte { return native.Executable(program(arch)) }
