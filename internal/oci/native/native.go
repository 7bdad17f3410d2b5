// Package native wraps a few hundred bytes of machine code into a static ELF executable. These are
// the programs that containers need beside huskd and that no image brings. They need no libc and
// one page of memory.
package native

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"

	"github.com/huskd/husk/internal/atomicfile"
)

const (
	// base is the address that a program is loaded at.
	base = 0x400000
	// align is the largest page size of any arm64 kernel, 64 KiB.
	align = 0x10000
)

// Executable returns an ELF file with code, which begins with the entry point. Its only segment is
// the file itself, readable and executable. Executable returns nil for nil code.
func Executable(code []byte, machine elf.Machine) []byte {
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
		_ = binary.Write(&out, binary.LittleEndian, part) // can't fail: fixed size, into memory
	}
	return out.Bytes()
}

// Write writes a program to path with mode 0755, atomically: a concurrent exec of path runs the old
// or the new program. A file that is already right is left alone.
func Write(path string, program []byte) error {
	if upToDate(path, program) {
		return nil
	}
	if err := atomicfile.Write(path, program, 0o755); err != nil {
		return fmt.Errorf("write program %s: %w", path, err)
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
