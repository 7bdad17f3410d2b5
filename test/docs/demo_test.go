package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// demo prepares the program of make demo to run on the node, in the repository's top directory.
func demo(t *testing.T, n *node.Node) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	bin := filepath.Join(n.Dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"huskd", "husk"} {
		if err := os.Symlink(n.Binary(name), filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.Command("go", "build", "-o", bin, "github.com/huskd/husk/test/demo")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the demo: %v\n%s", err, out)
	}
	dir, err := filepath.Abs(top)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := n.Command(ctx, "sh", "-c", fmt.Sprintf("cd %s && TMPDIR=%s exec %s/demo", dir, n.Dir, bin))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

func TestDemo(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	cmd, out := demo(t, n)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{"from the manifest to this answer: ", `"SandboxKey": "/run/netns/husk-`, "inet 10.202.0.2/32", "huskd is exiting"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it doesn't show %q:\n%s", want, out)
		}
	}
	n.NothingLeft()
	if left, _ := filepath.Glob(filepath.Join(n.Dir, "husk-demo-*")); left != nil {
		t.Errorf("it leaves %v", left)
	}
}

// TestDemoInterrupted interrupts the demo at several moments.
func TestDemoInterrupted(t *testing.T) {
	t.Parallel()
	for _, after := range []string{"20ms", "100ms", "200ms", "300ms", "400ms"} {
		t.Run(after, func(t *testing.T) {
			n := node.New(t)
			cmd, out := demo(t, n)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			moment, _ := time.ParseDuration(after)
			time.Sleep(moment) // the moment of the interruption
			children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid))
			if err != nil {
				t.Fatal(err)
			}
			pid := cmd.Process.Pid
			_, _ = fmt.Sscan(string(children), &pid)
			_ = syscall.Kill(pid, syscall.SIGINT)
			if err := cmd.Wait(); err != nil && !strings.Contains(out.String(), "interrupted") && out.Len() > 0 {
				t.Errorf("%v\n%s", err, out)
			}
			n.NothingLeft()
			if left, _ := filepath.Glob(filepath.Join(n.Dir, "husk-demo-*")); left != nil {
				t.Errorf("it leaves %v:\n%s", left, out)
			}
		})
	}
}
