package e2e

import (
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestServiceManager checks what huskd tells a service manager, that a reload applies the log level
// and refuses a bad file, and that containers don't see the manager's socket.
func TestServiceManager(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	path := filepath.Join(n.Dir, "notify")
	example, err := filepath.Abs("../../examples/web.yaml")
	if err != nil {
		t.Fatal(err)
	}
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	messages := make(chan string, 1000)
	go func() {
		defer close(messages)
		for buf := make([]byte, 4096); ; {
			size, err := manager.Read(buf)
			if err != nil {
				return
			}
			messages <- string(buf[:size])
		}
	}()
	// next returns the next message that begins with a state.
	next := func(state string) string {
		t.Helper()
		for late := time.After(time.Minute); ; {
			select {
			case got := <-messages:
				if strings.HasPrefix(got, state) {
					return got
				}
			case <-late:
				t.Fatalf("huskd doesn't send %s", state)
			}
		}
	}
	config := write(t, n, "huskd.toml", "log-level = \"info\"\n")
	d := startHuskd(t, n, node.Env("NOTIFY_SOCKET", path), node.Env("WATCHDOG_USEC", "200000"), node.Flags("--config", config))
	next("READY=1")
	next("WATCHDOG=1")
	for line := range strings.Lines(d.Log()) {
		if strings.Contains(line, "WARN") && !strings.Contains(line, "nearly full") { // such as that there is no systemd-logind
			t.Errorf("huskd warns: %s", line)
		}
	}
	n.MustHusk("run", "--wait", example)
	if env := n.MustHusk("exec", "web", "-c", "server", "--", "env"); strings.Contains(env, "NOTIFY") || strings.Contains(env, "WATCHDOG") {
		t.Errorf("a container's environment is %s", env)
	}

	for _, step := range []struct{ content, logged string }{
		{"log-level = \"debug\"\npids-limit = 7\n", "keys=pids-limit"},
		{"log-level = \n", "the configuration is not reloaded"},
	} {
		write(t, n, "huskd.toml", step.content)
		d.Signal(syscall.SIGHUP)
		next("RELOADING=1\nMONOTONIC_USEC=")
		next("READY=1")
		if log := d.Log(); !strings.Contains(log, step.logged) {
			t.Errorf("after a reload of %q, huskd's log has no %q:\n%s", step.content, step.logged, log)
		}
	}

	next("WATCHDOG=1")
	n.MustHusk("rm", "-f", "web")
	n.MustHusk("shutdown")
	if got := next("STOPPING=1"); !strings.Contains(got, "all pods are stopped") {
		t.Errorf("after husk shutdown: %q", got)
	}
	if !d.Wait(30 * time.Second) {
		t.Fatal("huskd is still running after husk shutdown")
	}
	if code := d.Code(); code != 0 {
		t.Errorf("huskd exits with %d after husk shutdown: systemd would start it again", code)
	}
}
