package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) {
	if os.Getenv(crashEnv) != "" {
		os.Exit(crashed())
	}
	goleak.VerifyTestMain(m)
}

// The addresses of a lab's node and of the other host.
const (
	node4, other4 = "192.0.2.2", "192.0.2.1"
	node6, other6 = "2001:db8::2", "2001:db8::1"
)

// The subnets of a lab's pods.
var (
	subnet4 = netip.MustParsePrefix("10.88.0.0/24")
	subnet6 = netip.MustParsePrefix("fd88::/64")
)

// lab is a node and another host, each a network namespace, and a link between them that is the
// node's uplink.
type lab struct {
	t           testing.TB
	dir         string
	node, other string // paths of the namespaces
	pods        atomic.Int32
}

func newLab(t testing.TB) *lab {
	t.Helper()
	hosttest.Root(t)
	l := &lab{t: t, dir: t.TempDir()}
	l.node, l.other = l.namespace("node"), l.namespace("other")
	// Some kernels let namespaces inherit this from the host.
	l.write(l.node, "net/ipv4/conf/all/rp_filter", "1")
	l.ip(l.node, "link add up0 type veth peer name eth0")
	l.ip(l.node, "link set eth0 netns "+l.other)
	l.write(l.node, "net/ipv6/conf/up0/accept_dad", "0")
	l.write(l.other, "net/ipv6/conf/eth0/accept_dad", "0")
	for _, end := range []struct{ ns, link, four, six string }{{l.node, "up0", node4, node6}, {l.other, "eth0", other4, other6}} {
		l.ip(end.ns, fmt.Sprintf("addr add %s/24 dev %s", end.four, end.link))
		l.ip(end.ns, fmt.Sprintf("addr add %s/64 dev %s nodad", end.six, end.link))
		l.ip(end.ns, "link set "+end.link+" up")
	}
	// Tests compare the node's state before and after.
	eventually(t, "the uplink has a carrier", func() bool { return strings.Contains(l.ip(l.node, "link show up0"), "state UP") })
	l.ip(l.node, "route add default via "+other4)
	l.ip(l.node, "-6 route add default via "+other6)
	return l
}

// namespace makes a network namespace and returns its path.
func (l *lab) namespace(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	netnstest.Make(l.t, path)
	return path
}

// run runs a command in a namespace and returns what it printed.
func (l *lab) run(ns string, args ...string) string {
	l.t.Helper()
	return netnstest.Run(l.t, ns, args...)
}

func (l *lab) ip(ns, args string) string {
	l.t.Helper()
	return netnstest.IP(l.t, ns, args)
}

func (l *lab) write(ns, sysctl, value string) {
	l.t.Helper()
	netnstest.Set(l.t, ns, sysctl, value)
}

func (l *lab) read(ns, sysctl string) string {
	l.t.Helper()
	var value string
	must(l.t, netns.Do(ns, func() error {
		data, err := os.ReadFile("/proc/sys/" + sysctl)
		value = strings.TrimSpace(string(data))
		return err
	}))
	return value
}

// config returns the configuration of a dual-stack network on the lab's node, in its own directory.
func (l *lab) config() Config {
	return Config{
		Instance:   "be0f",
		Dir:        filepath.Join(l.dir, "journal"),
		Netns:      l.node,
		Subnets:    []netip.Prefix{subnet4, subnet6},
		Masquerade: true,
		Log:        slog.New(slog.NewTextHandler(testLog{l.t}, nil)),
	}
}

type testLog struct{ t testing.TB }

func (w testLog) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// open opens a network until the end of the test.
func (l *lab) open(cfg Config) *Network {
	l.t.Helper()
	n, err := Open(l.t.Context(), cfg)
	must(l.t, err)
	l.t.Cleanup(func() { must(l.t, n.Close()) })
	return n
}

// attachment returns an attachment of a new pod in a new namespace.
func (l *lab) attachment(ports ...pod.PortMapping) pod.Attachment {
	l.t.Helper()
	name := fmt.Sprint("pod", l.pods.Add(1))
	return pod.Attachment{
		Sandbox: pod.NewID(),
		Pod:     pod.Ref{Namespace: "default", Name: name, UID: name},
		Netns:   l.namespace(name),
		IfName:  "eth0",
		Ports:   ports,
	}
}

// guest is an attached pod.
type guest struct {
	pod.Attachment
	*pod.Attached
}

func (l *lab) attach(n *Network, ports ...pod.PortMapping) guest {
	l.t.Helper()
	a := l.attachment(ports...)
	got, err := n.Attach(l.t.Context(), a)
	must(l.t, err)
	return guest{a, got}
}

// addr returns the pod's address of a family, 4 or 6.
func (g guest) addr(family int) netip.Addr {
	for _, p := range g.Addresses {
		if p.Addr().Is4() == (family == 4) {
			return p.Addr()
		}
	}
	return netip.Addr{}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// patience is how long a test waits for what must happen, and brevity for what must not happen. On
// a machine that does much else, with the race detector, seconds of work take minutes.
const (
	patience = 2 * time.Minute
	brevity  = 300 * time.Millisecond
)

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// serve runs a server in a namespace until the end of the test. It answers each connection or
// datagram with its name and the client's address.
func (l *lab) serve(ns, network, name string, port uint16) {
	l.t.Helper()
	at := fmt.Sprintf(":%d", port)
	must(l.t, netns.Do(ns, func() error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, at)
			if err == nil {
				l.t.Cleanup(func() { _ = c.Close() })
				go serveUDP(c.(*net.UDPConn), name)
			}
			return err
		}
		s, err := net.Listen(network, at)
		if err == nil {
			l.t.Cleanup(func() { _ = s.Close() })
			go func() {
				for {
					c, err := s.Accept()
					if err != nil {
						return
					}
					ap, _ := netip.ParseAddrPort(c.RemoteAddr().String())
					_, _ = io.WriteString(c, answer(name, ap.Addr()))
					_ = c.Close()
				}
			}()
		}
		return err
	}))
}

func answer(name string, from netip.Addr) string {
	return name + " " + from.Unmap().WithZone("").String()
}

// serveUDP uses the peers' addresses as the kernel returns them. Package net would look for the
// link of a link-local one in its own namespace.
func serveUDP(c *net.UDPConn, name string) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<16)
	for err == nil {
		err = raw.Read(func(fd uintptr) bool {
			_, from, err := unix.Recvfrom(int(fd), buf, 0)
			if err != nil {
				return !errors.Is(err, unix.EAGAIN)
			}
			var addr netip.Addr
			switch from := from.(type) {
			case *unix.SockaddrInet4:
				addr = netip.AddrFrom4(from.Addr)
			case *unix.SockaddrInet6:
				addr = netip.AddrFrom16(from.Addr)
			}
			_ = unix.Sendto(int(fd), []byte(answer(name, addr)), 0, from)
			return true
		})
	}
}

// ask connects from a namespace and returns the answer. Datagrams are repeated: the first may be
// lost while a neighbour is resolved.
func (l *lab) ask(ns, network, host string, port uint16) (string, error) {
	ctx, cancel := context.WithTimeout(l.t.Context(), patience)
	defer cancel()
	return askWithin(ctx, ns, network, host, port)
}

func askWithin(ctx context.Context, ns, network, host string, port uint16) (string, error) {
	var got string
	err := netns.Do(ns, func() error {
		c, err := (&net.Dialer{}).DialContext(ctx, network, net.JoinHostPort(host, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		deadline, _ := ctx.Deadline()
		if strings.HasPrefix(network, "tcp") {
			_ = c.SetDeadline(deadline)
			data, err := io.ReadAll(c)
			got = string(data)
			return err
		}
		buf := make([]byte, 1<<16)
		for {
			if _, err := c.Write([]byte("?")); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			n, err := c.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) && time.Now().Before(deadline) {
				continue
			}
			got = string(buf[:n])
			return err
		}
	})
	return got, err
}

// reaches checks a server's answer.
func (l *lab) reaches(from, ns, network, host string, port uint16, want string) {
	l.t.Helper()
	got, err := l.ask(ns, network, host, port)
	if err != nil || got != want {
		l.t.Errorf("from %s to %s %s:%d: got %q, %v; want %q", from, network, host, port, got, err, want)
	}
}

// fails checks that there is no answer.
func (l *lab) fails(from, ns, network, host string, port uint16) {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.t.Context(), brevity)
	defer cancel()
	if got, err := askWithin(ctx, ns, network, host, port); err == nil {
		l.t.Errorf("from %s to %s %s:%d: got %q, want none", from, network, host, port, got)
	}
}

// kernel lists an instance's objects on the node, without what changes by itself.
func (l *lab) kernel(i pod.Instance) string {
	l.t.Helper()
	var out []string
	// A bridge's state follows that of its ports with a delay.
	state := regexp.MustCompile(`<[A-Z,_-]*>|state [A-Z]*`)
	for _, line := range strings.Split(l.ip(l.node, "-o link")+l.ip(l.node, "-o addr"), "\n") {
		line = state.ReplaceAllString(line, "")
		if strings.Contains(line, i.HostLinkPrefix()) || strings.Contains(line, i.Bridge()) {
			out = append(out, line)
		}
	}
	routes := l.ip(l.node, fmt.Sprintf("route show table all proto %d", plan.Protocol)) +
		l.ip(l.node, fmt.Sprintf("-6 route show table all proto %d", plan.Protocol))
	return strings.Join(out, "\n") + routes + l.run(l.node, "nft", "list", "tables")
}

// mount mounts a tmpfs until the end of the test.
func (l *lab) mount(dir, options string) {
	l.t.Helper()
	must(l.t, unix.Mount("tmpfs", dir, "tmpfs", 0, options))
	l.t.Cleanup(func() { must(l.t, unix.Unmount(dir, unix.MNT_DETACH)) })
}
