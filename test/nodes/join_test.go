package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestJoin: nodes that ran by themselves join a network with a restart of huskd only. Pods keep
// their addresses, and answer other nodes if their block was free. For the others, huskd says what
// to do.
func TestJoin(t *testing.T) {
	t.Parallel()
	s := node.NewUnderlay(t).Segment(node.Media{})
	first, second, third := newMachine(t, s), newMachine(t, s), newMachine(t, s)
	store := startEtcd(t, third)
	nodes := []*machine{first, second, third}
	joined := map[*machine]node.Option{}
	for _, m := range nodes {
		m.Binary("husk-wireguard")
		m.flags = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/64", "--node-name", m.Uplink.Name())
		joined[m] = node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
			"--node-name", m.Uplink.Name())
	}
	third.flags = joined[third]
	start(t, nodes...)
	first.run("a")
	second.run("a")
	third.run("a")

	first.huskd.Stop()
	first.flags = joined[first]
	first.restart()
	Reach(t, 30*time.Second, first, third)
	first.run("b")
	Reach(t, 30*time.Second, first, third)

	second.huskd.Stop()
	second.flags = joined[second]
	second.restart()
	second.run("b")
	node.Eventually(t, 30*time.Second, func() string {
		if r := second.Husk("net", "nodes"); !strings.Contains(r.Stderr, "remove the pods and run them again") {
			return "a node whose pod's address is in another's block doesn't say so:\n" + r.Stdout + r.Stderr
		}
		return ""
	})
	Reach(t, 30*time.Second, second)
	second.MustHusk("rm", "-f", "a")
	second.pods, second.names = second.pods[1:], second.names[1:]
	second.run("a")
	Reach(t, 30*time.Second, nodes...)
	node.Eventually(t, 30*time.Second, func() string {
		if r := second.Husk("net", "nodes"); strings.Contains(r.Stderr, "remove the pods") {
			return r.Stderr
		}
		return ""
	})
	store.stop()
	remove(t, nodes...)
}
