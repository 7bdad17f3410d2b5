package nodes

import (
	"fmt"
	"os"
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
	title("three nodes: n1 and n2 on one link, n3 behind a router")
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	c := newCluster(t, "auto", "46", near, near, far)
	for _, m := range c.nodes {
		say("%s  %s", m.Uplink.Name(), joined(m.Uplink.Addresses))
	}
	data, err := os.ReadFile(c.file)
	if err != nil {
		t.Fatal(err)
	}
	title("the file of nodes, which all of them read")
	say("%s", strings.TrimSpace(string(data)))
	title("start huskd on each, and two pods")
	say("$ huskd --pod-subnets %s --network-store file --nodes-file nodes.toml --network-backend auto", subnets)
	c.start()
	for _, m := range c.nodes {
		for _, p := range m.pods {
			say("%s  %s", p.name, joined(p.addresses))
		}
	}
	c.shows("net", "nodes")
	c.shows("net", "routes")
	title("every pod asks every other, by TCP and by UDP up to the MTU, in IPv4 and IPv6")
	c.answers(c.nodes)
	first := c.nodes[0].pods[0]
	say("")
	say("%s asks %s, which sees it as %s", first.name, c.nodes[2].pods[0].name, seenBy(t, first, c.nodes[2].pods[0]))

	title("huskd of every node is killed and started again, while packets flow")
	streams := c.streams()
	for _, m := range c.nodes {
		m.huskd.Kill()
	}
	for _, m := range c.nodes {
		m.restart()
	}
	sent, missing := 0, 0
	for _, s := range streams {
		k, lost, _ := s.end()
		sent, missing = sent+k, missing+lost
	}
	say("%d packets sent, %d lost", sent, missing)
	if missing > 0 {
		t.Errorf("%d of %d packets were lost while huskd restarted", missing, sent)
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
