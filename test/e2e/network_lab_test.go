package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// family describes an address family on the test network.
type family struct {
	suffix                string // in Go's names of networks, such as tcp4
	subnet                netip.Prefix
	node, other, loopback string
}

var (
	ipv4 = family{"4", netip.MustParsePrefix("10.88.0.0/24"), node.Address4, node.Other4, "127.0.0.1"}
	ipv6 = family{"6", netip.MustParsePrefix("fd88::/64"), node.Address6, node.Other6, "::1"}
)

// first returns the subnet's first address, the source that pods see for connections from the
// node's loopback.
func (s family) first() string { return s.subnet.Addr().Next().String() }

// of returns the address that is in the family's subnet.
func (s family) of(addresses []string) string {
	i := slices.IndexFunc(addresses, func(a string) bool {
		addr, err := netip.ParseAddr(a)
		return err == nil && s.subnet.Contains(addr)
	})
	if i < 0 {
		return "none of " + strings.Join(addresses, ", ")
	}
	return addresses[i]
}

// netConfig is a configuration of Husk's network.
type netConfig struct {
	name, mode string
	families   []family
}

var netConfigs = []netConfig{
	{"ptp dual", "ptp", []family{ipv4, ipv6}},
	{"ptp v4", "ptp", []family{ipv4}},
	{"ptp v6", "ptp", []family{ipv6}},
	{"bridge dual", "bridge", []family{ipv4, ipv6}},
	{"bridge v4", "bridge", []family{ipv4}},
	{"bridge v6", "bridge", []family{ipv6}},
}

func (c netConfig) flags() node.Option {
	var subnets []string
	for _, s := range c.families {
		subnets = append(subnets, s.subnet.String())
	}
	return node.Flags("--network-mode", c.mode, "--pod-subnets", strings.Join(subnets, ","))
}

// netNode is a node whose pods run the program in testdata/answer.
type netNode struct {
	*node.Node
	t       *testing.T
	answers string // directory of the program
	flags   node.Option
	huskd   *node.Daemon
}

// buildAnswer builds the program and returns its directory.
func buildAnswer(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "answer"), "./testdata/answer")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build answer: %v\n%s", err, out)
	}
	return dir
}

// newNetNode starts a node with a huskd that has the configuration. It calls prepare, unless nil,
// before it starts huskd.
func newNetNode(t *testing.T, conf netConfig, answers string, prepare func(n *node.Node)) *netNode {
	t.Helper()
	n := node.New(t)
	if prepare != nil {
		prepare(n)
	}
	return &netNode{n, t, answers, conf.flags(), startHuskd(t, n, conf.flags())}
}

// manifest writes the manifest of a pod that answers on port, and returns its path. Either of
// ports, a YAML flow sequence, and spec, more lines of the spec, may be empty.
func (w *netNode) manifest(name string, port int, ports, spec string) string {
	w.t.Helper()
	if ports == "" {
		ports = "[]"
	}
	return write(w.t, w.Node, name+".yaml", fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 0
  volumes: [{name: answers, hostPath: {path: %s}}]
  containers:
  - name: answer
    image: localhost/web:1
    command: [/answers/answer, '%d']
    ports: %s
    volumeMounts: [{name: answers, mountPath: /answers, readOnly: true}]
%s`, name, w.answers, port, ports, spec))
}

// run starts a pod that answers on port 80.
func (w *netNode) run(name, ports string) podNetwork {
	w.t.Helper()
	w.MustHusk("run", "--wait", w.manifest(name, 80, ports, ""))
	return w.inspect(name)
}

// podNetwork holds what tests of the network read from husk inspect.
type podNetwork struct {
	IPs             []string
	HostNetwork     bool
	Message         string
	NetworkSettings struct {
		SandboxID, SandboxKey string
		Ports                 map[string][]struct{ HostIp, HostPort string }
		Networks              map[string]struct {
			IFName, IPAddress, Gateway, GlobalIPv6Address, IPv6Gateway, MacAddress string
			IPPrefixLen, GlobalIPv6PrefixLen                                       int
		}
	}
	Sandbox struct {
		MTU      int
		HostLink string
	}
	netns string // path of the pod's network namespace, for this process
}

func (w *netNode) inspect(name string) (out podNetwork) {
	w.t.Helper()
	if err := json.Unmarshal([]byte(w.MustHusk("inspect", name)), &out); err != nil {
		w.t.Fatal(err)
	}
	out.netns = w.Net()
	if !out.HostNetwork {
		out.netns = w.Path(out.NetworkSettings.SandboxKey)
	}
	return out
}

// end removes the pods, stops huskd, and checks that nothing is left on the node.
func (w *netNode) end(pods ...string) {
	w.t.Helper()
	if len(pods) > 0 {
		w.MustHusk(append([]string{"rm", "-f"}, pods...)...)
	}
	w.huskd.Stop()
	w.NothingLeft()
}

// serve answers like the pods' program, with a name, on an address in a network namespace, until
// the end of the test.
func (w *netNode) serve(netnsPath, name, address string) {
	w.t.Helper()
	err := netns.Do(netnsPath, func() error {
		s, err := net.Listen("tcp", address)
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { _ = s.Close() })
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, name+" "+ipOf(c.RemoteAddr()))
				_ = c.Close()
			}
		}()
		d, err := net.ListenPacket("udp", address)
		if err != nil {
			return err
		}
		w.t.Cleanup(func() { _ = d.Close() })
		go func() {
			for buf := make([]byte, 100); ; {
				_, from, err := d.ReadFrom(buf)
				if err != nil {
					return
				}
				_, _ = d.WriteTo([]byte(name+" "+ipOf(from)), from)
			}
		}()
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// ipOf returns the IP address of from, without its port.
func ipOf(from net.Addr) string {
	return netip.MustParseAddrPort(from.String()).Addr().Unmap().String()
}

// ask connects once and returns the answer.
func ask(netnsPath, network, host string, port int, within time.Duration) (answer string, err error) {
	err = netns.Do(netnsPath, func() error {
		c, err := net.DialTimeout(network, net.JoinHostPort(host, fmt.Sprint(port)), within)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(within))
		buf := make([]byte, 100)
		if strings.HasPrefix(network, "udp") {
			_, err = io.WriteString(c, "?")
		}
		if err == nil {
			var n int
			n, err = c.Read(buf)
			answer = string(buf[:n])
		}
		return err
	})
	return answer, err
}

// answerTime is the timeout of one attempt to get an answer. silence is how long a test listens for
// an answer that must not come.
const (
	answerTime = time.Second
	silence    = 200 * time.Millisecond
)

// reaches checks the answer. It retries for a while, because the program may not listen yet.
func (w *netNode) reaches(from, netnsPath, network, host string, port int, want string) {
	w.t.Helper()
	var got string
	var err error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if got, err = ask(netnsPath, network, host, port, answerTime); err == nil && got == want {
			return
		}
		if time.Now().After(end) || err == nil && !strings.HasPrefix(want, got) {
			w.t.Errorf("from %s to %s %s port %d: got %q, %v; want %q", from, network, host, port, got, err, want)
			return
		}
	}
}

// unreachable checks that there is no answer.
func (w *netNode) unreachable(from, netnsPath, network, host string, port int) {
	w.t.Helper()
	if got, err := ask(netnsPath, network, host, port, silence); err == nil {
		w.t.Errorf("from %s to %s %s port %d: got the answer %q, want none", from, network, host, port, got)
	}
}
