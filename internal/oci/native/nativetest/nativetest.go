// Package nativetest checks machine code against the source that it is written
// down beside.
package nativetest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// prefixes of the assemblers' names (binutils, binutils-aarch64-linux-gnu).
var prefixes = map[string]string{"amd64": "x86_64-linux-gnu-", "arm64": "aarch64-linux-gnu-"}

// IsTheSource checks that program has, for each architecture, what the file
// ARCH.asm in the current directory assembles to, where there is an assembler for it.
func IsTheSource(t *testing.T, program func(arch string) []byte) {
	t.Helper()
	for arch, prefix := range prefixes {
		t.Run(arch, func(t *testing.T) {
			object, binary := filepath.Join(t.TempDir(), "o"), filepath.Join(t.TempDir(), "bin")
			for _, args := range [][]string{
				{prefix + "as", "-o", object, arch + ".asm"},
				{prefix + "objcopy", "-O", "binary", "-j", ".text", object, binary},
			} {
				path, err := exec.LookPath(args[0])
				if err != nil {
					t.Skip(err)
				}
				if out, err := exec.Command(path, args[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v: %s", args[0], err, out)
				}
			}
			want, err := os.ReadFile(binary)
			if err != nil {
				t.Fatal(err)
			}
			if got := program(arch); !bytes.Equal(got, want) {
				t.Errorf("the code is\n% x\n%s.asm assembles to\n% x", got, arch, want)
			}
		})
	}
}
