package nodes

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/node"
)

// etcd is a server on a node. It keeps its data over a stop.
type etcd struct {
	t   testing.TB
	on  *machine
	dir string
	cmd *exec.Cmd
}

func startEtcd(t testing.TB, on *machine) *etcd {
	t.Helper()
	hosttest.Program(t, "etcd")
	e := &etcd{t: t, on: on, dir: t.TempDir()}
	e.start()
	t.Cleanup(e.stop)
	return e
}

func (e *etcd) url() string { return "http://" + e.on.Uplink.Addresses[0].Addr().String() + ":2379" }

func (e *etcd) start() {
	e.t.Helper()
	e.cmd = e.on.Command(e.t.Context(), "etcd", "--data-dir", e.dir, "--listen-client-urls", e.url(), "--advertise-client-urls", e.url(),
		"--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error")
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
}

func (e *etcd) stop() {
	if e.cmd != nil {
		_ = e.cmd.Cancel()
		_ = e.cmd.Wait()
		e.cmd = nil
	}
}

// TestEtcd runs three nodes on two segments that know nothing but etcd's address.
func TestEtcd(t *testing.T) {
	for backend, want := range map[string]string{"auto": "direct vxlan", "wireguard": "wireguard wireguard"} {
		t.Run(backend, func(t *testing.T) {
			u := node.NewUnderlay(t)
			near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
			nodes := []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}
			store := startEtcd(t, nodes[0])
			for _, m := range nodes {
				m.Binary("husk-wireguard")
				m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
					"--node-name", m.Uplink.Name(), "--network-backend", backend)
			}
			start(t, nodes...)
			for _, m := range nodes {
				m.run("a")
			}
			Reach(t, 30*time.Second, nodes...)
			a := nodes[0]
			var ways []string
			for _, line := range strings.Split(strings.TrimSpace(a.MustHusk("net", "nodes")), "\n")[2:] {
				ways = append(ways, strings.Fields(line)[3])
			}
			if got := strings.Join(ways, " "); got != want {
				t.Errorf("the other nodes are reached by %s, want %s", got, want)
			}

			// Neither a huskd that is killed nor a store that is away loses a packet, and pods still start.
			st := a.pods[0].streamTo(t, nodes[2].pods[0].address(false), 2*time.Millisecond)
			st.after(t, 100)
			store.stop()
			a.huskd.Kill()
			a.restart()
			a.run("b")
			Reach(t, 30*time.Second, nodes...)
			if sent, lost, gap := st.end(); lost > 0 || sent == 0 {
				t.Errorf("%d of %d packets lost while huskd and etcd were away, the longest gap was %v", lost, sent, gap)
			}
			store.start()
			nodes[1].run("b")
			Reach(t, 30*time.Second, nodes...)
			store.stop()
			remove(t, nodes...)
		})
	}
}
