package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/version"
)

// build builds the program as it is released.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "husk-cni")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

func TestProgram(t *testing.T) {
	path := build(t)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if size := info.Size(); size > 8<<20 {
		t.Errorf("the program has %d bytes: a large dependency is linked in", size)
	}
	run := func(stdin string, env ...string) (stdout, stderr string, code int) {
		var out, errs bytes.Buffer
		cmd := exec.Command(path)
		cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = strings.NewReader(stdin), &out, &errs, append(env, "PATH=/bin")
		_ = cmd.Run()
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}

	out, errs, code := run("{}", "CNI_COMMAND=VERSION")
	v, err := (&version.PluginDecoder{}).Decode([]byte(out))
	if err != nil || code != 0 || errs != "" || len(v.SupportedVersions()) != 7 {
		t.Errorf("VERSION: %d %q %q, %v", code, out, errs, err)
	}

	if out, err := exec.Command(path, "--version").Output(); err != nil || string(out) != "husk-cni unknown\n" {
		t.Errorf("--version: %v, %q", err, out)
	}

	// Stdout has the answer, also for errors, and nothing else.
	for name, c := range map[string]struct {
		stdin, env string
		code       float64
	}{
		"garbage":     {"garbage", "CNI_COMMAND=STATUS", 6},
		"environment": {"{}", "CNI_COMMAND=ADD", 4},
		"daemon away": {`{"cniVersion":"1.1.0","name":"a","subnet":"10.0.0.0/8","daemon":"/nowhere"}`, "CNI_COMMAND=STATUS", 50},
	} {
		out, _, code := run(c.stdin, c.env)
		var e map[string]any
		if err := json.Unmarshal([]byte(out), &e); err != nil || code != 1 || e["code"] != c.code || e["cniVersion"] == nil || e["msg"] == "" {
			t.Errorf("%s: %d %s, %v", name, code, out, err)
		}
	}

	// Run by hand, it explains itself.
	out, errs, code = run("")
	if code != 1 || !strings.Contains(errs, "is run by a container runtime") || !strings.Contains(out, `"code": 4`) {
		t.Errorf("without a command: %d %q %q", code, out, errs)
	}
}
