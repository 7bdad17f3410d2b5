package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestBehindNAT: a node that others can't begin connections to is reached by WireGuard, as its
// probes keep the way to it open. With backend auto, these also find that VXLAN doesn't reach it.
func TestBehindNAT(t *testing.T) {
	for _, backend := range []string{"wireguard", "auto"} {
		t.Run(backend, func(t *testing.T) {
			u := node.NewUnderlay(t)
			open, behind := u.Segment(node.Media{}), u.Segment(node.Media{NAT: true})
			nodes := []*machine{newMachine(t, open), newMachine(t, behind)}
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
			Reach(t, time.Minute, nodes...)
			for _, m := range nodes {
				if list := m.MustHusk("net", "nodes"); !strings.Contains(list, "wireguard") {
					t.Errorf("%s has\n%s", m.Uplink.Name(), list)
				}
			}
			if backend == "wireguard" {
				st := nodes[0].pods[0].streamTo(t, nodes[1].pods[0].address(false), 2*time.Millisecond)
				st.after(t, 100)
				for _, m := range nodes {
					rotate(t, m, nodes, func(string) {})
				}
				if sent, lost, gap := st.end(); lost > 0 {
					t.Errorf("%d of %d packets lost while keys were changed, the longest gap was %v", lost, sent, gap)
				}
			}
			store.stop()
			remove(t, nodes...)
		})
	}
}
