package nodes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestLeave: a node that leaves ends its pods and gives its blocks back, which another node takes
// at once. It leaves nothing with its peers. It doesn't leave while a pod has an address or etcd is
// away, and can be asked again.
func TestLeave(t *testing.T) {
	t.Parallel()
	s := node.NewUnderlay(t).Segment(node.Media{})
	leaver, peer, late := newRuntime(newMachine(t, s)), newMachine(t, s), newMachine(t, s)
	store := startEtcd(t, late)
	nodes := []*machine{leaver.machine, peer, late}
	for _, m := range nodes {
		m.Binary("husk-wireguard")
		// There are two blocks.
		m.flags = node.Flags("--pod-subnets", "10.201.0.0/23", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure", "--node-name", m.Uplink.Name())
	}
	start(t, leaver.machine, peer)
	for _, m := range nodes[:2] {
		m.run("a")
	}
	Reach(t, 30*time.Second, leaver.machine, peer)
	start(t, late)
	node.Eventually(t, 30*time.Second, func() string {
		if r := late.Husk("net", "nodes"); !strings.Contains(r.Stderr, "all 2 blocks") {
			return "the third node doesn't say that there is no block:\n" + r.Stdout + r.Stderr
		}
		return ""
	})
	list := leaver.write()
	leaver.Must("ip", "netns", "add", "other")
	if _, err := leaver.cni.AddNetworkList(t.Context(), list, runtimeConf("other")); err != nil {
		t.Fatal(err)
	}
	refused := func(why string) {
		t.Helper()
		if r := leaver.Husk("shutdown", "--leave"); r.Code == 0 || !strings.Contains(r.Stderr, why) {
			t.Fatalf("husk shutdown --leave: %+v, want an error with %q", r, why)
		}
		if !leaver.Serves() {
			t.Fatal("huskd has ended, but the node hasn't left")
		}
	}
	refused("husk net attachments")
	if err := leaver.cni.DelNetworkList(t.Context(), list, runtimeConf("other")); err != nil {
		t.Error(err)
	}
	leaver.Must("ip", "netns", "del", "other")
	store.stop()
	refused("give this node's blocks")
	store.start()
	out := leaver.MustHusk("shutdown", "--leave")
	if !strings.Contains(out, "node "+leaver.Uplink.Name()+" has left") || !strings.HasSuffix(out, "huskd is exiting\n") {
		t.Errorf("husk shutdown --leave:\n%s", out)
	}
	if !leaver.huskd.Wait(30 * time.Second) {
		t.Fatal("huskd is still running")
	}
	leaver.Run("umount", "/run/netns") // unless huskd could
	node.Eventually(t, 10*time.Second, func() string {
		left := slices.DeleteFunc(leaver.Left(), func(s string) bool { return strings.HasPrefix(s, "file ") }) // the pod would run again
		return strings.Join(left, "\n")
	})
	late.run("a")
	Reach(t, 30*time.Second, peer, late)
	node.Eventually(t, 30*time.Second, func() string {
		got := peer.MustHusk("net", "nodes") + peer.Must("ip", "route") + peer.Must("ip", "neigh")
		if strings.Contains(got, leaver.Uplink.Name()+" ") {
			return "the node that has left is still known:\n" + got
		}
		return ""
	})
	store.stop()
	remove(t, peer, late)

	leaver.flags = node.Flags("--pod-subnets", "10.201.0.0/23")
	leaver.restart()
	leaver.MustHusk("rm", "-f", "a") // its pod has run again
	leaver.huskd.Stop()
	leaver.NothingLeft()
}

// TestLeaveNothing: where the node has nothing in a store, its pods aren't stopped either.
func TestLeaveNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "auto", "4", node.NewUnderlay(t).Segment(node.Media{}))
	m := c.nodes[0]
	start(t, m)
	m.run("a")
	if r := m.Husk("shutdown", "--leave"); r.Code == 0 || !strings.Contains(r.Stderr, "nodes-file") {
		t.Errorf("husk shutdown --leave: %+v", r)
	}
	Reach(t, 30*time.Second, m)
	remove(t, m)
	m.huskd = m.Launch(m.flags, node.Flags("--network-only"))
	m.serves()
	m.MustHusk("shutdown")
	if !m.huskd.Wait(30 * time.Second) {
		t.Error("huskd is still running")
	}
	m.NothingLeft()
}

// TestShutdownLeavesNothing checks that husk shutdown takes down what huskd has in the kernel, with
// each backend: its links, routes, tables, cgroups, and the processes that outlive it. So it does
// after the records of pods were lost, and with a cgroup that someone else has made below its own.
func TestShutdownLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "wireguard", "bgp"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			var c *cluster
			end := func() {}
			if backend == "bgp" {
				c = newSpeakers(t, 2)
			} else {
				u := node.NewUnderlay(t)
				c = &cluster{t: t, nodes: []*machine{newMachine(t, u.Segment(node.Media{})), newMachine(t, u.Segment(node.Media{}))}}
				store := startEtcd(t, c.nodes[0])
				end = store.stop
				for _, m := range c.nodes {
					m.Binary("husk-wireguard")
					m.flags = node.Flags("--pod-subnets", subnets, "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
						"--node-name", m.Uplink.Name(), "--network-backend", backend)
				}
			}
			start(t, c.nodes...)
			for _, m := range c.nodes {
				m.run("a")
				policy := filepath.Join(m.Dir, "policy.yaml")
				if err := os.WriteFile(policy, []byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: p}\nspec: {podSelector: {matchLabels: {app: none}}}\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				m.MustHusk("run", policy)
			}
			Reach(t, time.Minute, c.nodes...)
			c.goes(by(backend))
			lost := c.nodes[0]
			lost.huskd.Kill()
			journal := filepath.Join(lost.Root, "journal", "journal")
			data, err := os.ReadFile(journal)
			if err != nil {
				t.Fatal(err)
			}
			for at := 16; at < len(data); at += 25 {
				data[at] ^= 1
			}
			if err := os.WriteFile(journal, data, 0o600); err != nil {
				t.Fatal(err)
			}
			lost.restart()
			lost.pods, lost.names = nil, nil
			lost.run("b")
			Reach(t, time.Minute, c.nodes...)
			for _, m := range c.nodes {
				root := m.Inventory().Cgroups[0]
				if err := os.Mkdir(filepath.Join(root, "stray"), 0o755); err != nil {
					t.Fatal(err)
				}
				m.MustHusk("shutdown", "--budget", "5s")
			}
			end()
			for _, m := range c.nodes {
				if !m.huskd.Wait(30 * time.Second) {
					t.Fatal("huskd is still running")
				}
				node.Eventually(t, 10*time.Second, func() string {
					left := slices.DeleteFunc(m.Left(), func(s string) bool { return strings.HasPrefix(s, "file ") }) // the pod would run again
					return strings.Join(left, "\n")
				})
				m.flags = node.Flags("--pod-subnets", subnets)
				m.restart()
			}
			remove(t, c.nodes...)
		})
	}
}
