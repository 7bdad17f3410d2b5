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

// waitMessage waits until husk inspect shows text as the reason why a pod isn't ready.
func (w *netNode) waitMessage(pod, text string) {
	w.t.Helper()
	node.Eventually(w.t, 10*time.Second, func() string {
		if p := w.inspect(pod); !strings.Contains(p.Message, text) {
			return fmt.Sprintf("husk inspect shows the message %[2]q for %[1]s, want %[3]q", pod, p.Message, text)
		}
		return ""
	})
}

// TestPortConflict checks that a pod with a host port in use waits, with a message that names the
// pod that has it, and gets the port when that pod is removed.
func TestPortConflict(t *testing.T) {
	t.Parallel()
	w := newNetNode(t, netConfigs[0], buildAnswer(t), nil)
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
		w.waitMessage("second", "host port "+c.taken+" is in use on this node: pod default/first has it; stop that pod or use another hostPort")
	}
	for _, s := range netConfigs[0].families {
		w.reaches("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080, "first "+s.other)
	}
	w.run("beside", at("SCTP", ""))
	w.MustHusk("rm", "-f", "first")
	w.run("second", ports8080)
	for _, s := range netConfigs[0].families {
		for _, proto := range []string{"tcp", "udp"} {
			w.reaches("other", w.OtherNet(), proto+s.suffix, s.node, 8080, "second "+s.other)
		}
	}
	w.end("second", "beside")
}

// TestHostPortOfProcess checks that a pod doesn't take a host port on which a process listens.
func TestHostPortOfProcess(t *testing.T) {
	t.Parallel()
	w := newNetNode(t, netConfigs[0], buildAnswer(t), nil)
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
	w.waitMessage("a", "host port 8080/tcp is in use on this node: a process listens on 127.0.0.1:8080")
	if out := w.MustHusk("ps"); !strings.Contains(out, " PortInUse ") {
		t.Errorf("husk ps shows\n%s", out)
	}
	_ = process.Close()
	w.MustHusk("run", "--wait", path)
	w.reaches("node", w.Net(), "tcp4", "127.0.0.1", 8080, "a 10.88.0.1")
	w.end("a")
}

// TestHostIP runs pods with the same host port on different addresses of the node.
func TestHostIP(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	const second = "198.51.100.3"
	for _, conf := range []netConfig{netConfigs[0], netConfigs[3]} {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			w := newNetNode(t, conf, answers, func(n *node.Node) {
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
						w.reaches("node", w.Net(), "tcp4", hostIP, 8080, name+" "+ipv4.first())
					case "lo6":
						w.reaches("node", w.Net(), "tcp6", hostIP, 8080, name+" "+ipv6.first())
					case "six":
						w.reaches("other", w.OtherNet(), "tcp6", hostIP, 8080, name+" "+ipv6.other)
						w.reaches("node", w.Net(), "tcp6", hostIP, 8080, name+" "+hostIP)
					default:
						w.reaches("other", w.OtherNet(), "tcp4", hostIP, 8080, name+" "+ipv4.other)
						// The kernel prefers the link's first address to its second.
						w.reaches("node", w.Net(), "tcp4", hostIP, 8080, name+" "+node.Address4)
					}
				}
			}
			reached("one", "two", "six", "lo", "lo6")
			w.unreachable("node", w.Net(), "tcp4", "127.0.0.2", 8080)
			w.MustHusk("rm", "-f", "one", "lo")
			w.unreachable("other", w.OtherNet(), "tcp4", node.Address4, 8080)
			w.unreachable("node", w.Net(), "tcp4", "127.0.0.1", 8080)
			reached("two", "six", "lo6")
			w.end("two", "six", "lo6")
		})
	}
}
