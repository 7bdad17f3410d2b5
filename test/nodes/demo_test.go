package nodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestDemo shows the pod network of three nodes: make demo-nodes runs it by itself. Two nodes share
// a link, the third is behind a router. Their pods answer each other; one node loses its power and
// comes back; at the end nothing is left.
func TestDemo(t *testing.T) {
	began := time.Now()
	title("three nodes: n1 and n2 on one link, n3 behind a router; etcd runs on n1")
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	c := &cluster{t: t, nodes: []*machine{newMachine(t, near), newMachine(t, near), newMachine(t, far)}}
	store := startEtcd(t, c.nodes[0])
	for _, m := range c.nodes {
		m.Binary("husk-wireguard")
		m.flags = node.Flags("--pod-subnets", subnets, "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure")
		say("%s  %s", m.Uplink.Name(), joined(m.Uplink.Addresses))
	}
	title("start huskd on each, and two pods")
	say("$ huskd --pod-subnets %s --network-store etcd --etcd-endpoints %s --etcd-insecure", subnets, store.url())
	c.start()
	for _, m := range c.nodes {
		for _, p := range m.pods {
			say("%s  %s", p.name, joined(p.addresses))
		}
	}
	c.shows("net", "nodes")
	c.shows("net", "routes")
	c.shows("net", "pools")
	title("every pod asks every other, by TCP and by UDP up to the MTU, in IPv4 and IPv6")
	c.answers(c.nodes)
	first := c.nodes[0].pods[0]
	say("")
	say("%s asks %s, which sees it as %s", first.name, c.nodes[2].pods[0].name, seenBy(t, first, c.nodes[2].pods[0]))

	title("etcd is stopped and huskd of every node killed, while packets flow; a pod starts; all come back")
	streams := c.streams()
	store.stop()
	for _, m := range c.nodes {
		m.huskd.Kill()
	}
	for _, m := range c.nodes {
		m.restart()
	}
	p := c.nodes[0].run("c")
	say("%s  %s", p.name, joined(p.addresses))
	store.start()
	sent, missing := 0, 0
	for _, s := range streams {
		k, lost, _ := s.end()
		sent, missing = sent+k, missing+lost
	}
	say("%d packets sent, %d lost", sent, missing)
	if missing > 0 {
		t.Errorf("%d of %d packets were lost while etcd and huskd were away", missing, sent)
	}

	title("n2 loses its power")
	lost := c.nodes[1]
	lost.PowerOff()
	c.answers([]*machine{c.nodes[0], c.nodes[2]})
	title("it comes back")
	at := time.Now()
	lost.Reboot()
	lost.restart()
	lost.runAgain()
	c.answers(c.nodes)
	say("from power on to all answers: %v", time.Since(at).Round(10*time.Millisecond))

	title("stop everything and count what is left")
	store.stop()
	remove(t, c.nodes...)
	for _, m := range c.nodes {
		say("%s: %d namespaces, links, routes, nftables tables, mounts, processes, cgroups and files", m.Uplink.Name(), len(m.Left()))
	}
	say("all of it took %v", time.Since(began).Round(100*time.Millisecond))
}

func title(text string) { fmt.Printf("\n%s\n", text) }

func say(format string, args ...any) {
	fmt.Printf("  %s\n", strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "\n  "))
}

// shows shows the output of a command of husk on the first node.
func (c *cluster) shows(args ...string) {
	c.t.Helper()
	title("husk " + strings.Join(args, " ") + ", on n1")
	say("%s", strings.TrimRight(c.nodes[0].MustHusk(args...), "\n"))
}

// answers waits until all pods of nodes answer each other.
func (c *cluster) answers(of []*machine) {
	c.t.Helper()
	began := time.Now()
	Reach(c.t, 30*time.Second, of...)
	pods := 0
	for _, m := range of {
		pods += len(m.pods)
	}
	say("%d pods on %d nodes: all answer (%v)", pods, len(of), time.Since(began).Round(10*time.Millisecond))
}

func seenBy(t *testing.T, from, to *host) string {
	t.Helper()
	seen, err := from.askTCP(to.address(false), []byte("?"), answerTime)
	if err != nil {
		t.Fatal(err)
	}
	return seen
}
