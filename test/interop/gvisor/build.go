// Command gvisor builds gVisor's runsc and its shim from their module into the given directory,
// with a configuration that works on a host like the build machine.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// module is gVisor's module, which has no tagged releases. This version is from the branch that Go
// can build.
const module = "gvisor.dev/gvisor@v0.0.0-20260905035102-160fafc42237"

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("usage: gvisor DIRECTORY")
	}
	if err := build(os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func build(to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	// The module contains what Bazel generates. It is built as the main module, because its packages
	// of programs can't be imported.
	source, err := os.MkdirTemp("", "husk-gvisor-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(source)
	if err := fetch(source); err != nil {
		return err
	}
	if err := tolerate(filepath.Join(source, "pkg", "shim", "v1", "manager.go")); err != nil {
		return err
	}
	for program, pkg := range map[string]string{"runsc": "./runsc", "containerd-shim-runsc-v1": "./shim"} {
		cmd := exec.Command("go", "build", "-mod=mod", "-trimpath", "-o", filepath.Join(to, program), pkg)
		cmd.Dir = source
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("build %s: %w", program, err)
		}
	}
	config := fmt.Sprintf("binary_name = %q\n[runsc_config]\nplatform = \"systrap\"\nignore-cgroups = \"true\"\n", filepath.Join(to, "runsc"))
	return os.WriteFile(filepath.Join(to, "runsc.toml"), []byte(config), 0o644)
}

// fetch copies the module out of Go's module cache, which is read-only.
func fetch(to string) error {
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Dir = os.TempDir() // outside any module
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("download %s: %w", module, err)
	}
	var downloaded struct{ Dir string }
	if err := json.Unmarshal(out, &downloaded); err != nil {
		return err
	}
	return os.CopyFS(to, os.DirFS(downloaded.Dir))
}

// tolerate lets the shim start without CAP_SYS_RESOURCE, although it then can't lower its
// oom_score_adj as it wants to.
func tolerate(file string) error {
	raw, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const insists = "if err := sys.SetOOMScore(cmd.Process.Pid, oomScoreMax); err != nil {"
	if !bytes.Contains(raw, []byte(insists)) {
		return fmt.Errorf("%s is not as expected: look for SetOOMScore", file)
	}
	patched := strings.Replace(string(raw), insists, strings.Replace(insists, "err != nil {", "err != nil && !os.IsPermission(err) {", 1), 1)
	return os.WriteFile(file, []byte(patched), 0o644)
}
