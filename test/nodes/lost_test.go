package nodes

import (
	"context"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/test/node"
)

// endSession does to a node's claims what etcd does when their time is up.
func (e *etcd) endSession(name string) {
	e.t.Helper()
	client := e.client()
	defer client.Close()
	ctx, cancel := context.WithTimeout(e.t.Context(), 30*time.Second)
	defer cancel()
	answer, err := client.Get(ctx, "/husk/default/nodes/"+name)
	if err == nil && len(answer.Kvs) == 0 {
		e.t.Fatalf("node %s has no record", name)
	}
	if err == nil {
		_, err = client.Revoke(ctx, clientv3.LeaseID(answer.Kvs[0].Lease))
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// TestBlockLostAndFound: a node that was cut off from etcd for too long finds its only block of
// IPv4 with another node, while no other one is free. Its pod is marked. Once the other node has
// left, the block is this node's again, and the pod as it was. The second time, a third node
// leaves: then the pod gets an address of that one's block, and packets arrive at the right pods
// only.
func TestBlockLostAndFound(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{})
	loser, peer, server := newMachine(t, s), newMachine(t, s), newMachine(t, s)
	// Two others, as addresses that a node had before are in quarantine.
	taker, second := newMachine(t, s), newMachine(t, s)
	store := startEtcd(t, server)
	for _, m := range []*machine{loser, peer, taker, second} {
		m.Binary("husk-wireguard")
		// There are two blocks of IPv4, and many of IPv6.
		m.flags = node.Flags("--pod-subnets", "10.201.0.0/23,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure", "--node-name", m.Uplink.Name())
	}
	start(t, loser, peer)
	pod := loser.run("a")
	peer.run("a")
	Reach(t, 30*time.Second, loser, peer)

	// lose has another node take the block, and returns once the loser knows.
	lose := func(taker *machine) {
		t.Helper()
		u.Filter(loser.Node, server.Node, "tcp dport 2379", "tcp sport 2379")
		store.endSession(loser.Uplink.Name())
		start(t, taker)
		if got := taker.run("a").address(false); got != pod.address(false) {
			t.Fatalf("the other node's pod has address %v, want that of the pod, %v", got, pod.address(false))
		}
		u.Heal(loser.Node, server.Node)
		node.Eventually(t, 30*time.Second, func() string {
			if got := loser.MustHusk("ps"); !strings.Contains(got, "AddressLost") {
				return "the pod isn't marked:\n" + got + loser.MustHusk("net", "nodes")
			}
			return ""
		})
		why := "its address " + pod.address(false).String() + " is of block "
		for _, command := range [][]string{{"events", "a"}, {"describe", "a"}, {"inspect", "a"}} {
			if got := loser.MustHusk(command...); !strings.Contains(got, why) {
				t.Errorf("husk %s doesn't say that %s:\n%s", strings.Join(command, " "), why, got)
			}
		}
	}
	leave := func(m *machine) {
		t.Helper()
		m.MustHusk(append([]string{"rm", "-f"}, m.names...)...)
		m.pods, m.names = nil, nil
		m.MustHusk("shutdown", "--leave")
		if !m.huskd.Wait(30 * time.Second) {
			t.Fatal("huskd is still running")
		}
		m.NothingLeft()
	}

	sandbox := loser.MustHusk("ps", "-o", "custom-columns=ID:.id")
	lose(taker)
	leave(taker)
	node.Eventually(t, 30*time.Second, func() string {
		if got := loser.MustHusk("ps"); !strings.Contains(got, "Running") {
			return "the pod is still marked:\n" + got + loser.MustHusk("net", "nodes")
		}
		return ""
	})
	if got := loser.MustHusk("ps", "-o", "custom-columns=ID:.id"); got != sandbox {
		t.Errorf("the pod has another sandbox: %s, before %s", got, sandbox)
	}
	Reach(t, 30*time.Second, loser, peer)

	lose(second)
	loser.huskd.Kill()
	loser.restart()
	if got := loser.MustHusk("ps"); !strings.Contains(got, "AddressLost") {
		t.Errorf("the pod isn't marked any more after huskd was killed:\n%s", got)
	}
	leave(peer)
	node.Eventually(t, time.Minute, func() string {
		if got := loser.MustHusk("ps"); !strings.Contains(got, "Running") || strings.Contains(got, pod.address(false).String()) {
			return "the pod has no other address:\n" + got + loser.MustHusk("net", "nodes")
		}
		return ""
	})
	if got := loser.MustHusk("events", "a"); !strings.Contains(got, "SandboxChanged") {
		t.Errorf("no event of the new sandbox:\n%s", got)
	}
	loser.runAgain()
	Reach(t, 30*time.Second, loser, second)
	if got := loser.MustHusk("net", "nodes"); strings.Contains(got, pod.address(false).String()) || strings.Contains(got, "other nodes don't reach") {
		t.Errorf("a note is left:\n%s", got)
	}
	store.stop()
	remove(t, loser, second)
}
