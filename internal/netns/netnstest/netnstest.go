// Package netnstest creates network namespaces for tests, and runs commands in them.
package netnstest

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
)

// Make pins a new network namespace at path, until the test ends. Forwarding is off as on a new
// host, even where the kernel inherits it.
func Make(t testing.TB, path string) {
	t.Helper()
	hosttest.Root(t)
	if err := netns.Create(netns.Pins{Net: path}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Remove(path); err != nil {
			t.Error(err)
		}
	})
	Set(t, path, "net/ipv4/ip_forward", "0")
}

// Set writes a sysctl of the namespace.
func Set(t testing.TB, path, sysctl, value string) {
	t.Helper()
	if err := netns.Do(path, func() error { return netns.SetSysctl(sysctl, value) }); err != nil {
		t.Fatal(err)
	}
}

// Try runs a command in the namespace and returns what it printed.
func Try(path string, args ...string) (string, error) {
	out, err := exec.Command("nsenter", append([]string{"--net=" + path}, args...)...).CombinedOutput()
	return string(out), err
}

// Run is Try of a command that must succeed.
func Run(t testing.TB, path string, args ...string) string {
	t.Helper()
	out, err := Try(path, args...)
	if err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
	return out
}

// IP runs ip(8) with the words of args in the namespace.
func IP(t testing.TB, path, args string) string {
	t.Helper()
	return Run(t, path, append([]string{"ip"}, strings.Fields(args)...)...)
}
