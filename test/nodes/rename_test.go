package nodes

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestRename gives a node of a cluster in etcd another name, while etcd is there and while it is
// away. The node keeps its blocks, and its pods their addresses; nobody knows
// the former name any more, and nothing is lost of what pods send each other.
func TestRename(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	nodes := []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}
	store := startEtcd(t, nodes[0])
	flags := func(name string) node.Option {
		return node.Flags("--pod-subnets", "10.201.0.0/16,fd68:7573:6b01::/48", "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure", "--node-name", name)
	}
	for _, m := range nodes {
		m.flags = flags(m.Uplink.Name())
	}
	start(t, nodes...)
	for _, m := range nodes {
		m.run("a")
	}
	Reach(t, 30*time.Second, nodes...)
	renamed := nodes[2]
	blocks := func() string { return renamed.MustHusk("net", "pools") }
	before, last := blocks(), renamed.Uplink.Name()
	for i, way := range []string{"killed", "away"} {
		next := fmt.Sprintf("%s-%d", renamed.Uplink.Name(), i)
		c := &cluster{t: t, nodes: nodes}
		streams := c.streams()
		renamed.huskd.Kill()
		if way == "away" {
			store.stop()
		}
		renamed.flags = flags(next)
		renamed.restart()
		if way == "away" {
			for _, s := range streams {
				s.after(t, 500)
			}
			store.start()
		}
		// A lease of etcd counts as prolonged when etcd restarts, as if another machine were the node.
		node.Eventually(t, 2*time.Minute, func() string {
			for _, m := range nodes[:2] {
				r := m.Husk("net", "nodes")
				if !strings.Contains(r.Stdout, "\n"+next+" ") || strings.Contains(r.Stdout, "\n"+last+" ") || r.Stderr != "" {
					return fmt.Sprintf("node %s is renamed to %s (%s), and node %s says\n%s%s", last, next, way, m.Uplink.Name(), r.Stdout, r.Stderr)
				}
			}
			if r := renamed.Husk("net", "nodes"); r.Stderr != "" || !strings.Contains(r.Stdout, "this node") {
				return "the renamed node says\n" + r.Stdout + r.Stderr
			}
			return ""
		})
		for _, s := range streams {
			s.after(t, 500)
		}
		lost(t, way, time.Second, streams)
		renamed.run(fmt.Sprint("b", i))
		Reach(t, 30*time.Second, nodes...)
		if after := strings.Fields(blocks()); strings.Fields(before)[8] != after[8] {
			t.Errorf("%s: the node has another block than\n%s:\n%s", way, before, blocks())
		}
		last = next
	}
	store.stop()
	remove(t, nodes...)
}

// TestRenameInFile: with a nodes file, a node with another name doesn't start as long as the file
// has its former one. Its pods lose nothing meanwhile.
func TestRenameInFile(t *testing.T) {
	t.Parallel()
	s := node.NewUnderlay(t).Segment(node.Media{})
	c := newCluster(t, "vxlan", "46", s, s)
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	renamed := c.nodes[1]
	streams := c.streams()
	renamed.huskd.Kill()
	former := renamed.Uplink.Name()
	renamed.huskd = renamed.Launch(renamed.flags, node.Flags("--node-name", "other"))
	if !renamed.huskd.Wait(30 * time.Second) {
		t.Fatal("huskd runs")
	}
	if want := "node other was node " + former + " before"; !strings.Contains(renamed.huskd.Log(), want) || !strings.Contains(renamed.huskd.Log(), "set node-name to "+former) {
		t.Errorf("huskd doesn't say %q:\n%s", want, renamed.huskd.Log())
	}
	for _, s := range streams {
		s.after(t, 500)
	}
	lost(t, "while huskd refused to start", 0, streams)
	data, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.file, []byte(strings.Replace(string(data), fmt.Sprintf("name = %q", former), `name = "other"`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	before := renamed.flags
	renamed.flags = func(c *exec.Cmd) { before(c); node.Flags("--node-name", "other")(c) }
	renamed.restart()
	renamed.run("c")
	Reach(t, 30*time.Second, c.nodes...)
	remove(t, c.nodes...)
}
