package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// says waits until husk inspect gives text as the reason why a pod isn't ready.
func (w *wired) says(pod, text string) {
	w.t.Helper()
	node.Eventually(w.t, 10*time.Second, func() string {
		if p := w.inspect(pod); !strings.Contains(p.Message, text) {
			return fmt.Sprintf("of %s, husk inspect says %q, want %q", pod, p.Message, text)
		}
		return ""
	})
}

// TestPortConflict: a port of the node is that of one pod, which is named to
// the next. When it is gone, the next has it.
func TestPortConflict(t *testing.T) {
	t.Parallel()
	w := newWired(t, worlds[0], buildAnswer(t), nil)
	w.run("first", ports8080)
	at := func(protocol, hostIP string) string {
		return fmt.Sprintf("[{containerPort: 80, hostPort: 8080, protocol: %s, hostIP: '%s'}]", protocol, hostIP)
	}
	for _, c := range []struct{ ports, taken string }{
		{at("TCP", node.Address4), "8080/tcp"},
		{at("UDP", "::1"), "8080/udp"},
		{at("TCP", "0.0.0.0"), "8080/tcp"},
		{ports8080, "8080/tcp"},
	} {
		w.Husk("rm", "-f", "second")
		w.MustHusk("run", w.manifest("second", 80, c.ports, ""))
		w.says("second", "host port "+c.taken+" is in use on this node: pod default/first has it; stop that pod or use another hostPort")
	}
	for _, s := range worlds[0].stacks {
		w.reaches("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080, "first "+s.other)
	}
	w.run("beside", at("SCTP", ""))
	w.MustHusk("rm", "-f", "first")
	w.run("second", ports8080)
	for _, s := range worlds[0].stacks {
		for _, proto := range []string{"tcp", "udp"} {
			w.reaches("other", w.OtherNet(), proto+s.suffix, s.node, 8080, "second "+s.other)
		}
	}
	w.end("second", "beside")
}

// TestPortThatAProcessHas: what listens on the node is not cut off by a pod.
func TestPortThatAProcessHas(t *testing.T) {
	t.Parallel()
	w := newWired(t, worlds[0], buildAnswer(t), nil)
	var process net.Listener
	err := netns.Do(w.Net(), func() (err error) {
		process, err = net.Listen("tcp4", "127.0.0.1:8080")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer process.Close()
	path := w.manifest("a", 80, ports8080, "")
	w.MustHusk("run", path)
	w.says("a", "host port 8080/tcp is in use on this node: a process listens on 127.0.0.1:8080")
	_ = process.Close()
	w.MustHusk("run", "--wait", path)
	w.reaches("node", w.Net(), "tcp4", "127.0.0.1", 8080, "a 10.88.0.1")
	w.end("a")
}

// TestHostIP has pods with the same port at different addresses of the node.
func TestHostIP(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	const second = "198.51.100.3"
	for _, in := range []world{worlds[0], worlds[3]} {
		t.Run(in.name, func(t *testing.T) {
			t.Parallel()
			w := newWired(t, in, answers, func(n *node.Node) {
				n.Must("ip", "address", "add", second+"/24", "dev", "up0")
				n.Run("sysctl", "-qw", "net.bridge.bridge-nf-call-ip6tables=0") // see TestNetwork
			})
			at := map[string]string{"one": node.Address4, "two": second, "six": node.Address6, "lo": "127.0.0.1", "lo6": "::1"}
			for name, hostIP := range at {
				p := w.run(name, fmt.Sprintf("[{containerPort: 80, hostPort: 8080, hostIP: '%s'}]", hostIP))
				if got := p.NetworkSettings.Ports["80/tcp"]; len(got) != 1 || got[0].HostIp != hostIP || got[0].HostPort != "8080" {
					t.Errorf("%s: inspect shows %v", name, got)
				}
			}
			reached := func(names ...string) {
				t.Helper()
				for _, name := range names {
					switch hostIP := at[name]; name {
					case "lo":
						w.reaches("node", w.Net(), "tcp4", hostIP, 8080, name+" "+stack4.first())
					case "lo6":
						w.reaches("node", w.Net(), "tcp6", hostIP, 8080, name+" "+stack6.first())
					case "six":
						w.reaches("other", w.OtherNet(), "tcp6", hostIP, 8080, name+" "+stack6.other)
						w.reaches("node", w.Net(), "tcp6", hostIP, 8080, name+" "+hostIP)
					default:
						w.reaches("other", w.OtherNet(), "tcp4", hostIP, 8080, name+" "+stack4.other)
						// The kernel prefers the link's first address to its second.
						w.reaches("node", w.Net(), "tcp4", hostIP, 8080, name+" "+node.Address4)
					}
				}
			}
			reached("one", "two", "six", "lo", "lo6")
			w.fails("node", w.Net(), "tcp4", "127.0.0.2", 8080)
			w.MustHusk("rm", "-f", "one", "lo")
			w.fails("other", w.OtherNet(), "tcp4", node.Address4, 8080)
			w.fails("node", w.Net(), "tcp4", "127.0.0.1", 8080)
			reached("two", "six", "lo6")
			w.end("two", "six", "lo6")
		})
	}
}
