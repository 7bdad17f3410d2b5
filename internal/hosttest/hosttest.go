// Package hosttest decides whether a test can run that needs something of the host: root or an
// installed program. Where `make test` requires host tests, what is missing fails the test.
package hosttest

import (
	"os"
	"os/exec"
	"testing"
)

// Required is the environment variable by which `make test` requires host tests: what a test needs
// and the host doesn't have then fails the test instead of skipping it.
const Required = "HUSK_HOST_TESTS"

// Root skips t unless the process is root, or fails it if host tests are required. It also skips t
// under -short, as in `make unit`.
func Root(t testing.TB) {
	t.Helper()
	short(t)
	if os.Geteuid() != 0 {
		missing(t, "needs root: run make test")
	}
}

// Program returns the path of an installed program. Without it, t is skipped, or fails if host
// tests are required.
func Program(t testing.TB, name string) string {
	t.Helper()
	short(t)
	path, err := exec.LookPath(name)
	if err != nil {
		missing(t, name+" is not installed: run make deps")
	}
	return path
}

func short(t testing.TB) {
	t.Helper()
	if testing.Short() && os.Getenv(Required) == "" {
		t.Skip("needs a host: run make test")
	}
}

func missing(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(Required) != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}
