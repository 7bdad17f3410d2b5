package nodes

import (
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/test/node"
)

// TestAddressChanges gives a node of a cluster in etcd other addresses, as DHCP may: the old ones
// vanish at once. Its connection to etcd goes with them.
func TestAddressChanges(t *testing.T) {
	for _, backend := range []string{"auto", "vxlan"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
			nodes := []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}
			store := startEtcd(t, nodes[0])
			for _, m := range nodes {
				m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
					"--node-name", m.Uplink.Name(), "--network-backend", backend)
			}
			// etcd's connections to a node's former address outlive etcd, and keep the namespace.
			netnstest.Set(t, nodes[0].Uplink.Net, "net/ipv4/tcp_orphan_retries", "1")
			start(t, nodes...)
			for _, m := range nodes {
				m.run("a")
			}
			Reach(t, 30*time.Second, nodes...)
			moved := nodes[2]
			for range 2 {
				st := nodes[1].pods[0].streamTo(t, moved.pods[0].address(false), 10*time.Millisecond)
				st.after(t, 50)
				began := time.Now()
				moved.Uplink.Renumber(nil)
				Reach(t, 30*time.Second, nodes...)
				all := time.Since(began)
				st.after(t, 50)
				sent, lost, gap := st.end()
				t.Logf("%d of %d packets lost, the longest gap was %v; all pods reach each other after %v", lost, sent, gap, all)
				if gap > 3*time.Second { // 0.1 s unless the machine is busy
					t.Errorf("a gap of %v", gap)
				}
			}
			store.stop()
			remove(t, nodes...)
		})
	}
}
