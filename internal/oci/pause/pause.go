// Package pause is the first process of a pod whose containers share a PID
// namespace: a static ELF executable of a few hundred bytes that reaps orphans
// and ends on SIGTERM or SIGINT. It needs no libc, no image and no root file
// system beside itself, and one page of memory. With an argument it ends at
// once, which is how an OCI runtime is tried.
//
// Its source is amd64.asm and arm64.asm; the bytes are in code.go.
package pause

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/containerd/errdefs"
)

// base is where the program is loaded. Its alignment is the largest page size
// of any arm64 kernel, 64 KiB.
const (
	base  = 0x400000
	align = 0x10000
)

// Bytes returns the executable for this machine, nil if there is none for its
// architecture.
func Bytes() []byte { return executable(runtime.GOARCH) }

// Write puts the executable at path, mode 0755, in one step: whoever runs path
// meanwhile runs the old or the new one. A file that is already right is left
// alone.
func Write(path string) error {
	program := Bytes()
	if program == nil {
		return errdefs.ErrNotImplemented.WithMessage("no pause program for " + runtime.GOARCH + ": pods can't share a PID namespace here")
	}
	if upToDate(path, program) {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write pause program: %w", err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }() // fails after the rename
	_, err = tmp.Write(program)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	// Executing a file that is open for writing fails with ETXTBSY, so it is
	// closed before it gets its name.
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write pause program %s: %w", path, err)
	}
	return nil
}

func upToDate(path string, program []byte) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != 0o755 || info.Size() != int64(len(program)) {
		return false
	}
	got, err := os.ReadFile(path)
	return err == nil && bytes.Equal(got, program)
}

// executable wraps the code for arch into an ELF file with one segment, the
// file itself, readable and executable.
func executable(arch string) []byte {
	code, machine := program(arch)
	if code == nil {
		return nil
	}
	var header elf.Header64
	var segment elf.Prog64
	headers := binary.Size(header) + 2*binary.Size(segment)
	size := uint64(headers + len(code))

	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	header.Type = uint16(elf.ET_EXEC)
	header.Machine = uint16(machine)
	header.Version = uint32(elf.EV_CURRENT)
	header.Entry = base + uint64(headers)
	header.Phoff = uint64(binary.Size(header))
	header.Ehsize = uint16(binary.Size(header))
	header.Phentsize = uint16(binary.Size(segment))
	header.Phnum = 2

	load := elf.Prog64{Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: align}
	// Without this entry the kernel would make the stack executable.
	stack := elf.Prog64{Type: uint32(elf.PT_GNU_STACK), Flags: uint32(elf.PF_R | elf.PF_W), Align: 16}

	var out bytes.Buffer
	for _, part := range []any{header, load, stack, code} {
		_ = binary.Write(&out, binary.LittleEndian, part) // of fixed size into memory: can't fail
	}
	return out.Bytes()
}
