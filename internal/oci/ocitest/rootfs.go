package ocitest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/pod"
)

// unique returns a short random name.
func unique() string { return pod.Short(pod.NewID()) }

var applets = []string{"cat", "dd", "echo", "env", "false", "head", "id", "kill", "ls", "mkfifo", "printf", "ps",
	"pwd", "readlink", "seq", "setsid", "sh", "sleep", "stty", "tail", "touch", "tr", "true", "tty", "ulimit", "wc", "yes"}

// rootfs makes a root file system of the host's busybox and its libraries. All containers share it
// read-only.
func rootfs(t testing.TB) string {
	t.Helper()
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatalf("%v: apt-get install busybox", err)
	}
	dir := filepath.Join(t.TempDir(), "rootfs")
	for _, sub := range []string{"bin", "dev", "etc", "proc", "sys", "tmp", "work"} {
		mkdir(t, filepath.Join(dir, sub))
	}
	copyFile(t, busybox, filepath.Join(dir, "bin", "busybox"))
	// For a static busybox ldd fails and prints no path.
	libraries, _ := exec.Command("ldd", busybox).Output()
	for _, library := range regexp.MustCompile(`/\S+`).FindAllString(string(libraries), -1) {
		mkdir(t, filepath.Join(dir, filepath.Dir(library)))
		copyFile(t, library, filepath.Join(dir, library))
	}
	for _, name := range applets {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	for name, mode := range map[string]os.FileMode{"bin/notexecutable": 0o644, "bin/garbage": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("\x00garbage"), mode); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func mkdir(t testing.TB, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t testing.TB, from, to string) {
	t.Helper()
	raw, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, raw, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// newSpec returns the spec of a container with its own namespaces and the host's network.
func newSpec(rootfs, cgroup string, args ...string) *specs.Spec {
	spec := &specs.Spec{
		// crun 1.8 supports no later version.
		Version: "1.0.2",
		Process: &specs.Process{
			Args: args, Cwd: "/work",
			Env:          []string{"PATH=/bin", "HOME=/work", "GREETING=hello"},
			Capabilities: &specs.LinuxCapabilities{},
		},
		Root: &specs.Root{Path: rootfs, Readonly: true},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620"}},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=1777"}},
		},
		Linux: &specs.Linux{CgroupsPath: cgroup},
	}
	for _, typ := range []specs.LinuxNamespaceType{specs.PIDNamespace, specs.MountNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: typ})
	}
	return spec
}

func writeSpec(t testing.TB, bundle string, spec *specs.Spec) {
	t.Helper()
	raw, err := json.Marshal(spec)
	if err == nil {
		err = os.WriteFile(filepath.Join(bundle, "config.json"), raw, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
