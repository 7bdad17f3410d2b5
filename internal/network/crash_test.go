package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// crashEnv holds the script of a process that is killed while it runs the script.
const crashEnv = "HUSK_NETWORK_CRASH"

// crashScript is what that process does, in this order.
type crashScript struct {
	Config    Config
	Blocks    []netip.Prefix   // of a node of a cluster
	Reconcile []pod.Attachment // the live attachments
	Attach    pod.Attachment
	Detach    bool // detach it again
}

// crashed is that process's main function.
func crashed() int {
	var s crashScript
	err := json.Unmarshal([]byte(os.Getenv(crashEnv)), &s)
	if err == nil {
		err = s.run(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (s crashScript) run(ctx context.Context) error {
	n, err := Open(ctx, s.Config)
	if err != nil {
		return err
	}
	err = n.Reconcile(ctx, s.Reconcile)
	if err == nil && s.Blocks != nil {
		err = n.SetBlocks(ctx, s.Blocks)
	}
	if err == nil {
		_, err = n.Attach(ctx, s.Attach)
	}
	if err == nil && s.Detach {
		err = n.Detach(ctx, s.Attach)
	}
	return errors.Join(err, n.Close())
}

// crashable returns a test binary built with crashpoints.
func crashable(t *testing.T) string {
	t.Helper()
	if crashpoint.Enabled {
		return os.Args[0]
	}
	path := filepath.Join(t.TempDir(), "network.test")
	if out, err := exec.Command("go", "test", "-c", "-tags=crashpoint", "-o", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("build a binary that crashes: %v\n%s", err, out)
	}
	return path
}

// play runs a script, which dies at a crashpoint if one is given, and returns the crashpoints that
// it passed.
func play(t *testing.T, binary string, s crashScript, point string) []string {
	t.Helper()
	script, err := json.Marshal(s)
	must(t, err)
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(binary)
	cmd.Env = append(os.Environ(), crashEnv+"="+string(script), crashpoint.Env+"="+point, crashpoint.EnvTrace+"="+trace)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case point == "" && err != nil:
		t.Fatalf("%v\n%s", err, out)
	case point != "" && (!errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL):
		t.Fatalf("at %s: %v, want SIGKILL\n%s", point, err, out)
	}
	passed, err := os.ReadFile(trace)
	must(t, err)
	return strings.Fields(string(passed))
}

// TestCrashAnywhere kills the process between any two steps of attaching and detaching. After the
// next start, a live pod works and of any other pod nothing is left.
func TestCrashAnywhere(t *testing.T) {
	hosttest.Root(t)
	binary := crashable(t)
	for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := l.config()
			cfg.Mode = mode
			n := l.open(cfg)
			before := l.kernel(cfg.Instance)
			must(t, n.Close())
			port := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
			child := cfg
			child.Log = nil // a log isn't JSON
			script := func() crashScript { return crashScript{Config: child, Attach: l.attachment(port), Detach: true} }

			points := play(t, binary, script(), "")
			slices.Sort(points)
			points = slices.Compact(points)
			if len(points) < 12 {
				t.Errorf("only %d crashpoints: %v", len(points), points)
			}
			for _, point := range points {
				for _, wanted := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s wanted %v", point, wanted), func(t *testing.T) {
						l := &lab{t: t, dir: t.TempDir(), node: l.node, other: l.other}
						cfg := cfg
						cfg.Log = l.config().Log
						s := script()
						s.Attach = l.attachment(port)
						play(t, binary, s, point)
						n := l.open(cfg)
						var live []pod.Attachment
						leased := n.ledger.records[ownerOf(s.Attach)] != nil
						if wanted && leased {
							live = append(live, s.Attach)
						}
						must(t, n.Reconcile(t.Context(), live))
						if wanted {
							got, err := n.Attach(t.Context(), s.Attach)
							must(t, err)
							g := guest{s.Attach, got}
							l.serve(g.Netns, "tcp", "g", 80)
							for _, s := range stacks {
								l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8080, "g "+s.other)
							}
							if u := n.Usage(); u.Attached != 1 || u.Ranges[0].Used != 1 {
								t.Errorf("usage: %+v", u)
							}
						}
						must(t, n.Detach(t.Context(), s.Attach))
						reaped(t, n)
						l.pristine(n, before)
						must(t, n.Close())
					})
				}
			}
			// And during the Reconcile of the start itself.
			for _, point := range []string{"network.releasing", "network.cut", "network.reaped", "network.quarantined", "network.gone"} {
				left := script()
				left.Detach = false
				play(t, binary, left, "network.bound")
				s := script()
				play(t, binary, s, point)
				n := l.open(cfg)
				must(t, n.Reconcile(t.Context(), nil))
				l.pristine(n, before)
				must(t, n.Close())
			}
		})
	}
}

// TestCrashWhileBlocksChange kills the process between the record of other blocks and their use:
// the first ones of a node, and others while a pod is running. The next start has them.
func TestCrashWhileBlocksChange(t *testing.T) {
	hosttest.Root(t)
	binary := crashable(t)
	l := newLab(t)
	cfg := l.clusterConfig()
	child := cfg
	child.Log = nil
	play(t, binary, crashScript{Config: child, Blocks: blocks1, Attach: l.attachment()}, "network.share")
	n := l.open(cfg)
	must(t, n.Reconcile(t.Context(), nil))
	old := l.attach(n)
	must(t, n.Close())

	play(t, binary, crashScript{Config: child, Blocks: blocks2, Reconcile: []pod.Attachment{old.Attachment}, Attach: l.attachment()}, "network.share")
	n = l.open(cfg)
	must(t, n.Reconcile(t.Context(), []pod.Attachment{old.Attachment}))
	g := l.attach(n)
	if !blocks1[0].Contains(old.addr(4)) || !blocks2[0].Contains(g.addr(4)) {
		t.Errorf("attached %v and then %v", old.Addresses, g.Addresses)
	}
	l.serve(old.Netns, "tcp", "old", 7000)
	for _, s := range stacks {
		l.reaches("g", g.Netns, "tcp"+s.suffix, old.addr(s.family).String(), 7000, "old "+g.addr(s.family).String())
	}
	must(t, n.Detach(t.Context(), old.Attachment))
	reaped(t, n)
	must(t, n.remakeBase(nil))
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.2.0/24 0", "fd88:0:0:2::/64 0", "fd88::/48 1", "10.88.2.1/32", "fd88:0:0:2::1/128")
}
