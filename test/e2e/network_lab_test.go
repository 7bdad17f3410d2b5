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

// stack is what tests need to know of a family.
type stack struct {
	suffix                string // of Go's names of networks
	subnet                netip.Prefix
	node, other, loopback string
}

var (
	stack4 = stack{"4", netip.MustParsePrefix("10.88.0.0/24"), node.Address4, node.Other4, "127.0.0.1"}
	stack6 = stack{"6", netip.MustParsePrefix("fd88::/64"), node.Address6, node.Other6, "::1"}
)

// first is the address by which pods see what comes from the node's loopback.
func (s stack) first() string { return s.subnet.Addr().Next().String() }

// of returns the one of the addresses that is of the family.
func (s stack) of(addresses []string) string {
	i := slices.IndexFunc(addresses, func(a string) bool {
		addr, err := netip.ParseAddr(a)
		return err == nil && s.subnet.Contains(addr)
	})
	if i < 0 {
		return "none of " + strings.Join(addresses, ", ")
	}
	return addresses[i]
}

// world is a way to configure the network.
type world struct {
	name, mode string
	stacks     []stack
}

var worlds = []world{
	{"ptp dual", "ptp", []stack{stack4, stack6}},
	{"ptp v4", "ptp", []stack{stack4}},
	{"ptp v6", "ptp", []stack{stack6}},
	{"bridge dual", "bridge", []stack{stack4, stack6}},
	{"bridge v4", "bridge", []stack{stack4}},
	{"bridge v6", "bridge", []stack{stack6}},
}

func (w world) flags() node.Option {
	var subnets []string
	for _, s := range w.stacks {
		subnets = append(subnets, s.subnet.String())
	}
	return node.Flags("--network-mode", w.mode, "--pod-subnets", strings.Join(subnets, ","))
}

// wired is a node whose pods run the program of testdata/answer.
type wired struct {
	*node.Node
	t       *testing.T
	answers string // the directory that has the program
	flags   node.Option
	huskd   *node.Daemon
}

// buildAnswer builds the program and returns the directory that it is in.
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

// newWired starts a node and its huskd in a world. What is done in prepare is
// there before huskd.
func newWired(t *testing.T, w world, answers string, prepare func(n *node.Node)) *wired {
	t.Helper()
	n := node.New(t)
	if prepare != nil {
		prepare(n)
	}
	return &wired{n, t, answers, w.flags(), startHuskd(t, n, w.flags())}
}

// manifest is of a pod that answers at port. Of spec and ports, which is a flow
// sequence, either may be empty.
func (w *wired) manifest(name string, port int, ports, spec string) string {
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

// run runs a pod that answers at port 80.
func (w *wired) run(name, ports string) attached {
	w.t.Helper()
	w.MustHusk("run", "--wait", w.manifest(name, 80, ports, ""))
	return w.inspect(name)
}

// attached is what tests of the network read of husk inspect.
type attached struct {
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
	netns string // as this process sees it
}

func (w *wired) inspect(name string) (out attached) {
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

// end removes the pods and ends huskd, which must leave the node as it was.
func (w *wired) end(pods ...string) {
	w.t.Helper()
	if len(pods) > 0 {
		w.MustHusk(append([]string{"rm", "-f"}, pods...)...)
	}
	w.huskd.Stop()
	w.NothingLeft()
}

// serve answers as the program of the pods does, with a name, at an address in
// a network namespace, until the end of the test.
func (w *wired) serve(netnsPath, name, address string) {
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
				_, _ = io.WriteString(c, name+" "+asker(c.RemoteAddr()))
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
				_, _ = d.WriteTo([]byte(name+" "+asker(from)), from)
			}
		}()
		return nil
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

func asker(from net.Addr) string {
	return netip.MustParseAddrPort(from.String()).Addr().Unmap().String()
}

// ask asks once and returns the answer.
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

// answerTime is how long an answer may take before it is asked for again, and
// silence how long a test listens for one that must not come.
const (
	answerTime = time.Second
	silence    = 200 * time.Millisecond
)

// reaches checks what is answered soon: a program may not listen yet.
func (w *wired) reaches(from, netnsPath, network, host string, port int, want string) {
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

// fails checks that nobody answers.
func (w *wired) fails(from, netnsPath, network, host string, port int) {
	w.t.Helper()
	if got, err := ask(netnsPath, network, host, port, silence); err == nil {
		w.t.Errorf("from %s to %s %s port %d: got %q, want none", from, network, host, port, got)
	}
}
