package nodes

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// echoPort is the port on which pods answer.
const echoPort = 7777

// host is a pod or a node: what has addresses and a network namespace.
type host struct {
	name, netns string
	addresses   []netip.Addr
	mtu         int // 0 if sizes don't matter
}

func (h *host) address(six bool) netip.Addr {
	for _, a := range h.addresses {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// serve answers on all of the host's addresses until the end of the test: UDP with a datagram of
// the same size that begins with the client's address, TCP with the client's address and a checksum
// of what it sent, and then all of that again.
func (h *host) serve(t testing.TB) {
	t.Helper()
	listening := func(c io.Closer) { t.Cleanup(func() { _ = c.Close() }) }
	for _, a := range h.addresses {
		at := netip.AddrPortFrom(a, echoPort)
		err := netns.Do(h.netns, func() error {
			listen := net.ListenConfig{Control: dontFragment}
			packets, err := listen.ListenPacket(t.Context(), "udp", at.String())
			if err != nil {
				return err
			}
			listening(packets)
			go echoUDP(packets)
			streams, err := listen.Listen(t.Context(), "tcp", at.String())
			if err != nil {
				return err
			}
			listening(streams)
			go echoTCP(streams)
			return nil
		})
		if err != nil {
			t.Fatalf("%s: serve on %v: %v", h.name, at, err)
		}
	}
}

func clientOf(a net.Addr) string {
	return netip.MustParseAddrPort(a.String()).Addr().Unmap().String()
}

func echoUDP(c net.PacketConn) {
	for buf := make([]byte, 65536); ; {
		k, from, err := c.ReadFrom(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err == nil {
			copy(buf[:k], clientOf(from)+" ")
			_, _ = c.WriteTo(buf[:k], from)
		}
	}
}

func echoTCP(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			data, err := io.ReadAll(c)
			if err == nil {
				_, _ = fmt.Fprintf(c, "%s %08x\n%s", clientOf(c.RemoteAddr()), crc32.ChecksumIEEE(data), data)
			}
		}()
	}
}

// dontFragment makes a socket send datagrams with DF, so that those that are too long for the path
// fail.
func dontFragment(network, _ string, raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		if strings.HasSuffix(network, "6") {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
			return
		}
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
	})
	if strings.HasPrefix(network, "udp") {
		err = errors.Join(err, largeBuffer(network, "", raw))
	}
	return errors.Join(control, err)
}

// largeBuffer lets datagrams wait for seconds while a busy machine runs something else.
func largeBuffer(_, _ string, raw syscall.RawConn) error {
	var err error
	control := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	})
	return errors.Join(control, err)
}

// askUDP sends a datagram that is a packet of size bytes to an address and returns which source
// address the server saw. The reply is a packet of the same size.
func (h *host) askUDP(to netip.Addr, size int, within time.Duration) (seen string, err error) {
	headers := 28
	if to.Is6() {
		headers = 48
	}
	err = netns.Do(h.netns, func() error {
		d := net.Dialer{Control: dontFragment}
		c, err := d.Dial("udp", netip.AddrPortFrom(to, echoPort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(within))
		if _, err := c.Write(make([]byte, size-headers)); err != nil {
			return err
		}
		reply := make([]byte, size)
		k, err := c.Read(reply)
		if err == nil && k != size-headers {
			err = fmt.Errorf("reply of %d bytes, want %d", k, size-headers)
		}
		seen, _, _ = strings.Cut(string(reply[:k]), " ")
		return err
	})
	return seen, err
}

// askTCP sends bytes to an address, gets them back, and returns which source address the server
// saw.
func (h *host) askTCP(to netip.Addr, data []byte, within time.Duration) (seen string, err error) {
	err = netns.Do(h.netns, func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(to, echoPort).String(), within)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(within))
		if _, err := c.Write(data); err != nil {
			return err
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return err
		}
		reply, err := io.ReadAll(c)
		if err != nil {
			return err
		}
		line, back, _ := bytes.Cut(reply, []byte("\n"))
		seen, _, _ = strings.Cut(string(line), " ")
		if string(line) != fmt.Sprintf("%s %08x", seen, crc32.ChecksumIEEE(data)) || !bytes.Equal(back, data) {
			return fmt.Errorf("the server got something else than was sent, or the reply was changed: %.80q, %d bytes", line, len(back))
		}
		return nil
	})
	return seen, err
}

// answerTime is how long one question may take on a busy machine.
const answerTime = 3 * time.Second

// bulk is longer than the largest receive window at the beginning of a connection.
var bulk = bytes.Repeat([]byte("0123456789abcdef"), 16<<10)

// wrong returns what is wrong about the way from h to another host in a family: "" if nothing is.
// The server must see the address of h, if it has one.
func (h *host) wrong(to *host, six bool) string {
	target, own := to.address(six), h.address(six)
	complain := func(format string, args ...any) string {
		return fmt.Sprintf("from %s to %s at %v: ", h.name, to.name, target) + fmt.Sprintf(format, args...)
	}
	sizes := []int{100}
	if mtu := min(h.mtu, to.mtu); mtu > 0 {
		sizes = append(sizes, 1280, mtu-1, mtu)
	}
	for _, size := range sizes {
		if seen, err := h.askUDP(target, size, answerTime); err != nil {
			return complain("UDP, %d bytes: %v", size, err)
		} else if own.IsValid() && seen != own.String() {
			return complain("UDP: the server sees %s, want %v", seen, own)
		}
	}
	if h.mtu > 0 {
		if _, err := h.askUDP(target, h.mtu+1, answerTime); !errors.Is(err, unix.EMSGSIZE) {
			return complain("UDP, %d bytes: %v, want that it is too long", h.mtu+1, err)
		}
	}
	if seen, err := h.askTCP(target, bulk, answerTime); err != nil {
		return complain("TCP: %v", err)
	} else if own.IsValid() && seen != own.String() {
		return complain("TCP: the server sees %s, want %v", seen, own)
	}
	return ""
}

// wrongs returns what is wrong about the ways between all pairs of hosts, in each family that both
// have, and from each of the clients to each of the hosts.
func wrongs(hosts, clients []*host) (out []string) {
	for _, from := range append(append([]*host{}, hosts...), clients...) {
		for _, to := range hosts {
			for _, six := range []bool{false, true} {
				if from == to || !to.address(six).IsValid() || from.mtu > 0 && !from.address(six).IsValid() {
					continue
				}
				if what := from.wrong(to, six); what != "" {
					out = append(out, what)
				}
			}
		}
	}
	return out
}

// Reach waits until every pair of the nodes' pods reach each other in each family and at each size
// up to the MTU, with their own addresses, and each node every pod.
func Reach(t testing.TB, within time.Duration, of ...*machine) {
	t.Helper()
	var hosts, clients []*host
	for _, m := range of {
		hosts = append(hosts, m.pods...)
		clients = append(clients, &host{name: m.Uplink.Name(), netns: m.Net()})
	}
	node.Eventually(t, within, func() string { return strings.Join(wrongs(hosts, clients), "\n") })
}

// Unreachable fails the test if a pod of one node reaches one of another.
func Unreachable(t testing.TB, from, to *machine) {
	t.Helper()
	for _, a := range from.pods {
		for _, b := range to.pods {
			for _, address := range b.addresses {
				if _, err := a.askUDP(address, 100, 200*time.Millisecond); err == nil {
					t.Errorf("%s reaches %s at %v", a.name, b.name, address)
				}
			}
		}
	}
}

// stream is a UDP conversation of which every packet is counted.
type stream struct {
	c        net.Conn
	interval time.Duration
	stop     chan struct{}
	sent     atomic.Int64
	stopped  chan struct{}
	replies  chan map[int]bool
}

// streamTo sends a datagram every interval to an address, until end is called.
func (h *host) streamTo(t testing.TB, to netip.Addr, interval time.Duration) *stream {
	t.Helper()
	s := &stream{interval: interval, stop: make(chan struct{}), stopped: make(chan struct{}), replies: make(chan map[int]bool, 1)}
	err := netns.Do(h.netns, func() (err error) {
		dial := net.Dialer{Control: largeBuffer}
		s.c, err = dial.DialContext(t.Context(), "udp", netip.AddrPortFrom(to, echoPort).String())
		return err
	})
	if err != nil {
		t.Fatalf("from %s to %v: %v", h.name, to, err)
	}
	t.Cleanup(func() { _ = s.c.Close() })
	go s.send()
	go s.receive()
	return s
}

func (s *stream) send() {
	tick := time.NewTicker(s.interval)
	defer tick.Stop()
	defer close(s.stopped)
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		// The server writes the client's address over the beginning. An error is a lost packet.
		_, _ = fmt.Fprintf(s.c, "%60s#%d", "", s.sent.Load())
		s.sent.Add(1)
	}
}

func (s *stream) receive() {
	got := map[int]bool{}
	defer func() { s.replies <- got }()
	for buf := make([]byte, 200); ; {
		k, err := s.c.Read(buf)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		var number int
		if i := bytes.IndexByte(buf[:k], '#'); err == nil && i >= 0 {
			_, _ = fmt.Sscanf(string(buf[i:k]), "#%d", &number)
			got[number] = true
		}
	}
}

// after waits until so many more packets were sent.
func (s *stream) after(t testing.TB, packets int64) {
	t.Helper()
	until := s.sent.Load() + packets
	node.Eventually(t, time.Minute, func() string {
		if s.sent.Load() < until {
			return "packets aren't sent"
		}
		return ""
	})
}

// end stops sending and returns how many packets were sent and had no reply, and the longest time
// without one.
func (s *stream) end() (sent, lost int, gap time.Duration) {
	close(s.stop)
	<-s.stopped
	sent = int(s.sent.Load())
	_ = s.c.SetReadDeadline(time.Now().Add(time.Second))
	got := <-s.replies
	run := 0
	for k := range sent {
		if got[k] {
			run = 0
			continue
		}
		lost++
		run++
		gap = max(gap, time.Duration(run)*s.interval)
	}
	return sent, lost, gap
}
