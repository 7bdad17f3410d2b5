// Package nodes tests the pod network of several nodes with the real binaries, on nodes that are
// joined by a lab's segments and router.
package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) { node.Main(m) }

// image returns an archive of localhost/busybox:1.
var image = sync.OnceValues(func() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	built, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Busybox})
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	err = testimage.WriteArchive(&out, testimage.Named{Image: built, Names: []string{"localhost/busybox:1"}})
	return []byte(out.String()), err
})

// machine is a node with its huskd and its pods.
type machine struct {
	*node.Node
	t      testing.TB
	blocks []netip.Prefix
	flags  node.Option
	huskd  *node.Daemon
	pods   []*host
	names  []string // of the pods
	// daemons end the programs of a router.
	daemons []func()
}

// blocksOf returns the blocks of the node with a number: an IPv4 and an IPv6 subnet.
func blocksOf(number int) []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.201.%d.0/24", number)), netip.MustParsePrefix(fmt.Sprintf("fd68:7573:6b01:%x::/64", number))}
}

func newMachine(t testing.TB, s *node.Segment) *machine {
	t.Helper()
	m := &machine{Node: s.Node(), t: t}
	m.blocks = blocksOf(m.Uplink.Number)
	return m
}

func joined[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = v.String()
	}
	return strings.Join(out, ",")
}

// start starts huskd on nodes, each with its own flags, and loads the image of pods.
func start(t testing.TB, of ...*machine) {
	t.Helper()
	archive, err := image()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range of {
		m.huskd = m.Launch(m.flags)
	}
	for _, m := range of {
		m.serves()
		path := filepath.Join(m.Dir, "busybox.tar")
		if err := os.WriteFile(path, archive, 0o600); err != nil {
			t.Fatal(err)
		}
		m.MustHusk("image", "load", path)
	}
}

// serves waits until huskd serves.
func (m *machine) serves() {
	m.t.Helper()
	node.Eventually(m.t, time.Minute, func() string {
		if m.huskd.Wait(0) {
			m.t.Fatalf("huskd of %s exited:\n%s", m.Uplink.Name(), m.huskd.Log())
		}
		if m.Serves() {
			return ""
		}
		return "huskd of " + m.Uplink.Name() + " doesn't serve"
	})
}

// restart starts huskd again, after it was stopped or killed.
func (m *machine) restart() {
	m.t.Helper()
	m.huskd = m.Launch(m.flags)
	m.serves()
}

// run starts a pod, unless huskd has it already, that answers until the end of the test.
func (m *machine) run(name string) *host {
	m.t.Helper()
	path := filepath.Join(m.Dir, name+".yaml")
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: sleeper, image: localhost/busybox:1, command: [sleep, '100000']}]
`, name)
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.MustHusk("run", "--wait", path)
	var seen struct {
		IPs             []netip.Addr
		NetworkSettings struct{ SandboxKey string }
		Sandbox         struct{ MTU int }
	}
	if err := json.Unmarshal([]byte(m.MustHusk("inspect", name)), &seen); err != nil {
		m.t.Fatal(err)
	}
	p := &host{name: name + " of " + m.Uplink.Name(), netns: m.Path(seen.NetworkSettings.SandboxKey), addresses: seen.IPs, mtu: seen.Sandbox.MTU}
	p.serve(m.t)
	m.pods, m.names = append(m.pods, p), append(m.names, name)
	return p
}

// runAgain waits for the pods that huskd starts again after a reboot.
func (m *machine) runAgain() {
	m.t.Helper()
	names := m.names
	m.pods, m.names = nil, nil
	for _, name := range names {
		m.run(name)
	}
}

// remove removes all pods of nodes, stops their huskds and checks that nothing is left.
func remove(t testing.TB, of ...*machine) {
	t.Helper()
	for _, m := range of {
		m.MustHusk(append([]string{"rm", "-f"}, m.names...)...)
		m.pods, m.names = nil, nil
	}
	for _, m := range of {
		m.huskd.Stop()
	}
	for _, m := range of {
		m.NothingLeft()
	}
}
