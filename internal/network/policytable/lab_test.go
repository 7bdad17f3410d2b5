package policytable

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

const instance = pod.Instance("be0f")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a node with local pods and a namespace for what is elsewhere.
type lab struct {
	t      testing.TB
	dir    string
	node   string
	where  map[netip.Addr]string // the namespace of each address
	listen sync.Map              // what the hosts have got
}

// Addresses of each kind, in both families.
var (
	locals = addrs("10.88.0.1", "10.88.0.2", "10.88.0.3", "10.88.0.4", "fd88::1", "fd88::2", "fd88::3", "fd88::4")
	own    = addrs("10.77.0.1", "fd77::1") // the node's
	far    = addrs("10.99.0.1", "10.99.0.2", "192.0.2.7", "198.51.100.9", "fd99::1", "fd99::2", "2001:db8::7", "2001:db8:1::9")
)

func addrs(all ...string) (out []netip.Addr) {
	for _, a := range all {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

const routers = "169.254.1.1"

func newLab(t testing.TB) *lab {
	t.Helper()
	hosttest.Root(t)
	l := &lab{t: t, dir: t.TempDir(), where: map[netip.Addr]string{}}
	l.node = l.namespace("node")
	netnstest.Set(t, l.node, "net/ipv4/ip_forward", "1")
	netnstest.Set(t, l.node, "net/ipv6/conf/all/forwarding", "1")
	netnstest.Set(t, l.node, "net/ipv4/conf/all/rp_filter", "0")
	for i := range 4 {
		l.connect(fmt.Sprint("pod", i), fmt.Sprint(instance.HostLinkPrefix(), "pod", i), locals[i], locals[4+i])
	}
	l.connect("far", "up0", far...)
	netnstest.IP(t, l.node, "link set lo up")
	for _, a := range own {
		line := fmt.Sprintf("addr add %s dev lo", a)
		if a.Is6() {
			line += " nodad"
		}
		netnstest.IP(t, l.node, line)
		l.where[a] = l.node
	}
	return l
}

func (l *lab) namespace(name string) string {
	path := filepath.Join(l.dir, name)
	netnstest.Make(l.t, path)
	return path
}

// connect makes a namespace with addresses, which the node reaches by a link of that name.
func (l *lab) connect(name, link string, addresses ...netip.Addr) {
	l.t.Helper()
	ns := l.namespace(name)
	netnstest.IP(l.t, l.node, "link add "+link+" type veth peer name eth0 netns "+ns)
	netnstest.Set(l.t, l.node, "net/ipv6/conf/"+link+"/accept_dad", "0")
	netnstest.Set(l.t, ns, "net/ipv6/conf/eth0/accept_dad", "0")
	var host, guest strings.Builder
	fmt.Fprintf(&host, "addr add %s/32 dev %s\naddr add fe80::1/64 dev %s nodad\nlink set %s up\n", routers, link, link, link)
	fmt.Fprintf(&guest, "link set eth0 up\nroute add %s dev eth0\nroute add default via %s\n-6 route add default via fe80::1 dev eth0\n", routers, routers)
	for _, a := range addresses {
		l.where[a] = ns
		fmt.Fprintf(&host, "route add %s dev %s\n", a, link)
		fmt.Fprintf(&guest, "addr add %s dev eth0 nodad\n", a)
	}
	for ns, lines := range map[string]string{l.node: host.String(), ns: guest.String()} {
		for line := range strings.Lines(lines) {
			if strings.Contains(line, ".") {
				line = strings.Replace(line, "nodad", "", 1)
			}
			netnstest.IP(l.t, ns, line)
		}
	}
}

func (l *lab) open() *Table {
	l.t.Helper()
	t, err := Open(l.node, instance)
	must(l.t, err)
	l.t.Cleanup(func() { must(l.t, t.Close()) })
	return t
}

func (l *lab) nft(args ...string) string {
	l.t.Helper()
	return netnstest.Run(l.t, l.node, append([]string{"nft"}, args...)...)
}

// in calls fn on a thread in the namespace of an address.
func (l *lab) in(addr netip.Addr, fn func() error) error { return netns.Do(l.where[addr], fn) }

// servedPorts have servers at all addresses.
var servedPorts = []uint16{80, 81, 90, 8500}

// serve starts servers in all namespaces, until the test ends.
func (l *lab) serve() {
	l.t.Helper()
	seen := map[string]bool{}
	for addr, ns := range l.where {
		if seen[ns] {
			continue
		}
		seen[ns] = true
		must(l.t, l.in(addr, func() error {
			for _, port := range servedPorts {
				at := fmt.Sprintf(":%d", port)
				tcp, err := net.Listen("tcp", at)
				if err != nil {
					return err
				}
				l.t.Cleanup(func() { tcp.Close() })
				go func() {
					for {
						c, err := tcp.Accept()
						if err != nil {
							return
						}
						_ = c.(*net.TCPConn).SetLinger(0)
						_, _ = c.Write([]byte("hello"))
						c.Close()
					}
				}()
			}
			// One socket for each address, so that the answer comes from there.
			for own, at := range l.where {
				if at != ns {
					continue
				}
				for _, port := range servedPorts {
					udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(own, port)))
					if err != nil {
						return err
					}
					l.t.Cleanup(func() { udp.Close() })
					go func() {
						buf := make([]byte, 100)
						for {
							n, from, err := udp.ReadFromUDPAddrPort(buf)
							if errors.Is(err, net.ErrClosed) {
								return
							}
							if err == nil {
								_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
							}
						}
					}()
				}
			}
			for _, network := range []string{"ip4:132", "ip6:132", "ip4:253", "ip6:253"} {
				c, err := net.ListenPacket(network, "")
				if err != nil {
					return err
				}
				l.t.Cleanup(func() { c.Close() })
				go func() {
					buf := make([]byte, 1000)
					for {
						n, _, err := c.ReadFrom(buf)
						if err != nil {
							return
						}
						l.listen.Store(string(buf[:n]), true)
					}
				}()
			}
			return nil
		}))
	}
}

// patience is how long a test waits for what must happen, and brevity for what must not happen.
const (
	patience = 20 * time.Second
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

func dialer(from netip.Addr, network string, timeout time.Duration) net.Dialer {
	d := net.Dialer{Timeout: timeout}
	if network == "tcp" {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	} else {
		d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	return d
}

// errDenied means that no answer came in time.
var errDenied = errors.New("no answer")

func timedOut(err error) error {
	var timeout net.Error
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return errDenied
	case errors.Is(err, unix.ECONNRESET): // the server has closed the connection already
		return nil
	}
	return err
}
