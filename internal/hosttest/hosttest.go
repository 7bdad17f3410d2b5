// Package hosttest serves tests that need a real host: root, namespaces,
// mounts, cgroups. It decides whether such a test can run and proves that it
// left nothing behind.
package hosttest

import (
	"os"
	"testing"
)

// Required is the environment variable by which `make test` says that host
// tests must run: a missing privilege then fails the test and doesn't skip it.
const Required = "HUSK_HOST_TESTS"

// Root skips t unless the process is root, which `make test` requires.
func Root(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv(Required) != "" {
		t.Fatal("host tests are required, but this is not root")
	}
	t.Skip("needs root: run by make test")
}
