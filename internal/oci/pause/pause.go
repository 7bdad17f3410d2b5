// Package pause holds the first process of a pod whose containers share a PID namespace: a static
// ELF executable of a few hundred bytes that reaps orphans and exits on SIGTERM or SIGINT. It needs
// no libc, no image, no root file system, and one page of memory. With an argument it exits at
// once, which is how an OCI runtime is probed.
//
// Its source is amd64.asm and arm64.asm; code.go holds the bytes.
package pause

import (
	"runtime"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci/native"
)

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
