// Package nativetest compares the machine code in a package's code.go with the assembly source
// beside it.
package nativetest

import (
	"bytes"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
)

// toolchain is the binutils of an architecture.
type toolchain struct {
	prefix  string // of the programs' names
	comment string // begins a comment in its assembly language
}

var toolchains = map[string]toolchain{
	"amd64": {"x86_64-linux-gnu-", "#"},   // Debian package binutils
	"arm64": {"aarch64-linux-gnu-", "//"}, // binutils-aarch64-linux-gnu
}

// CheckSource checks the machine code of the package in the current directory for each
// architecture: code returns what ARCH.asm assembles to, and each line of codeARCH in code.go holds
// the bytes of one instruction, which its comment quotes from ARCH.asm.
func CheckSource(t *testing.T, code func(arch string) []byte) {
	t.Helper()
	for arch, tools := range toolchains {
		t.Run(arch, func(t *testing.T) {
			source := arch + ".asm"
			object, binary := filepath.Join(t.TempDir(), "o"), filepath.Join(t.TempDir(), "bin")
			tools.run(t, "as", "-o", object, source)
			tools.run(t, "objcopy", "-O", "binary", "-j", ".text", object, binary)
			want, err := os.ReadFile(binary)
			if err != nil {
				t.Fatal(err)
			}
			if got := code(arch); !bytes.Equal(got, want) {
				t.Errorf("the code is\n% x\n%s assembles to\n% x", got, source, want)
			}
			written := readCode(t, "code"+strings.ToUpper(arch))
			assembled := tools.instructions(t, source, object)
			if !slices.EqualFunc(written, assembled, instruction.equal) {
				t.Errorf("code.go has\n%v\n%s has\n%v", written, source, assembled)
			}
		})
	}
}

func (c toolchain) run(t *testing.T, tool string, args ...string) string {
	t.Helper()
	out, err := exec.Command(hosttest.Program(t, c.prefix+tool), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s%s: %v: %s", c.prefix, tool, err, out)
	}
	return string(out)
}

// instruction is the machine code of one instruction and its assembly, "LABEL: " included.
type instruction struct {
	code []byte
	text string
}

func (i instruction) equal(o instruction) bool {
	return bytes.Equal(i.code, o.code) && i.text == o.text
}

func (i instruction) String() string { return hex.EncodeToString(i.code) + " " + i.text + "\n" }

// instructions returns the instructions of a source file with the code that they were assembled to.
func (c toolchain) instructions(t *testing.T, source, object string) []instruction {
	t.Helper()
	raw, err := os.ReadFile(source)
	if err != nil {
		t.Fatal(err)
	}
	var all []instruction
	label := ""
	for line := range strings.Lines(string(raw)) {
		line, _, _ = strings.Cut(line, c.comment)
		line = strings.Join(strings.Fields(line), " ")
		switch {
		case line == "", line == "_start:", strings.HasPrefix(line, "."):
		case strings.HasSuffix(line, ":"):
			label = line + " "
		default:
			all = append(all, instruction{text: label + line})
			label = ""
		}
	}
	// Lines such as "   2:	77 43                	ja     47 <out>", with data after the code.
	n := 0
	for line := range strings.Lines(c.run(t, "objdump", "--wide", "--disassemble", "--section=.text", object)) {
		if fields := strings.Split(line, "\t"); len(fields) > 2 && n < len(all) {
			all[n].code = parseDump(t, fields[1])
			n++
		}
	}
	return all
}

// parseDump reads the hexadecimal column of a disassembly: bytes, or little-endian words.
func parseDump(t *testing.T, column string) (code []byte) {
	t.Helper()
	for field := range strings.FieldsSeq(column) {
		word, err := hex.DecodeString(field)
		if err != nil {
			t.Fatal(err)
		}
		slices.Reverse(word)
		code = append(code, word...)
	}
	return code
}

// readCode reads a variable of code.go, whose lines are "0x77, 0x43, // ja out". Lines without a
// comment are padding.
func readCode(t *testing.T, variable string) (all []instruction) {
	t.Helper()
	raw, err := os.ReadFile("code.go")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(raw), "\nvar "+variable+" = []byte{\n")
	body, _, closed := strings.Cut(rest, "\n}\n")
	if !found || !closed {
		t.Fatalf("code.go has no variable %s", variable)
	}
	for line := range strings.Lines(body) {
		code, text, ok := strings.Cut(line, "//")
		if !ok {
			continue
		}
		b, err := hex.DecodeString(strings.NewReplacer("0x", "", ",", "", " ", "", "\t", "").Replace(code))
		if err != nil {
			t.Fatalf("code.go: %q: %v", line, err)
		}
		all = append(all, instruction{b, strings.TrimSpace(text)})
	}
	return all
}
