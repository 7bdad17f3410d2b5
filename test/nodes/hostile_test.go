package nodes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// TestBGPTooMany runs a node whose router announces more prefixes than there can be blocks, and
// then fewer.
func TestBGPTooMany(t *testing.T) {
	t.Parallel()
	for software, routing := range routings {
		t.Run(software, func(t *testing.T) {
			t.Parallel()
			c := newSpeakers(t, 1)
			a := c.nodes[0]
			config := routerConfig{as: 65000}
			config.addPeers(64512, a)
			few := config
			few.own = []netip.Prefix{netip.MustParsePrefix("10.201.200.0/24")}
			config.own = hosts("10.201.128.0", 10001)
			r := newRouter(t, a.Uplink.Segment, routing, config)
			a.also("--bgp-peers", fmt.Sprintf("%v=65000", r.at()))
			c.start()
			line := fmt.Sprintf("bgp: no session with %v of AS 65000: it announced more than 10000 prefixes, so the session was closed; it is tried again every 1m0s", r.at())
			a.says(line, true)
			node.Eventually(t, 30*time.Second, func() string {
				if got := a.routes(); got != "" {
					return fmt.Sprintf("%d routes", strings.Count(got, "\n"))
				}
				return ""
			})
			r.restart(few)
			a.says(line, false)
			if got, want := a.routes(), few.own[0].String(); !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
				t.Errorf("routes: want only %s:\n%s", want, got)
			}
			if n := strings.Count(a.huskd.Log(), "it announced more than"); n != 1 {
				t.Errorf("%d lines in the log:\n%s", n, a.huskd.Log())
			}
			remove(t, a)
		})
	}
}

// hosts returns prefixes of one address each, from one on.
func hosts(first string, n int) (out []netip.Prefix) {
	for a := netip.MustParseAddr(first); n > 0; a, n = a.Next(), n-1 {
		out = append(out, netip.PrefixFrom(a, 32))
	}
	return out
}

// TestBGPHostile runs two nodes that are joined by a router. Another peer of one of them announces
// what it shouldn't, and sends malformed messages.
func TestBGPHostile(t *testing.T) {
	t.Parallel()
	c := newSpeakers(t, 2)
	a, b := c.nodes[0], c.nodes[1]
	config := routerConfig{as: 65000}
	config.addPeers(64512, a, b)
	honest := newRouter(t, a.Uplink.Segment, bird{}, config)
	evil := &attacker{newMachine(t, a.Uplink.Segment), a.Uplink.Addresses[0].Addr(), 65001, 64}
	at := evil.Uplink.Addresses[0].Addr()
	a.also("--bgp-peers", fmt.Sprintf("%v=65000,%v=65001", honest.at(), at))
	b.also("--bgp-peers", fmt.Sprintf("%v=65000", honest.at()))
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	routes, first := a.routes(), a.speaker()
	streams := c.streams()

	session := evil.open(t)
	for _, p := range []netip.Prefix{
		netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("8.8.8.0/24"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("224.0.0.0/4"),
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.201.0.0/16"),
		a.Uplink.Addresses[0].Masked(), netip.PrefixFrom(b.Uplink.Addresses[0].Addr(), 32),
		a.blocks[0], netip.PrefixFrom(a.blocks[0].Addr(), 25), netip.PrefixFrom(b.blocks[0].Addr(), 25),
	} {
		session.send(update(at, p))
	}
	session.send(update(a.Uplink.Addresses[0].Addr(), netip.MustParsePrefix("10.201.220.0/24")))
	some := hosts("10.201.128.0", 50)
	session.send(update(at, some...))
	last := fmt.Sprintf("%v via %v ", some[len(some)-1].Addr(), at)
	node.Eventually(t, 60*time.Second, func() string {
		if !strings.Contains(a.routes(), last) {
			return "no route " + last
		}
		return ""
	})
	var others strings.Builder
	for line := range strings.Lines(a.routes()) {
		if p, err := netip.ParseAddr(strings.Fields(line)[0]); err != nil || !slices.Contains(some, netip.PrefixFrom(p, 32)) {
			others.WriteString(line)
		}
	}
	if others.String() != routes {
		t.Errorf("routes:\n%s, want\n%s", others.String(), routes)
	}
	for chunk := range slices.Chunk(hosts("10.201.128.0", 5000), 500) {
		session.send(update(at, chunk...))
	}
	a.says(fmt.Sprintf("bgp: next hop %v: 5000 subnets of no node: at most 64 can be used, so none is", at), true)
	unchanged := func() {
		t.Helper()
		node.Eventually(t, 60*time.Second, func() string {
			if got := a.routes(); got != routes {
				return fmt.Sprintf("the routes are\n%s, want\n%s", got, routes)
			}
			return ""
		})
	}
	unchanged()
	_ = session.Close()
	session = nil

	random := make([]byte, 4096)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, malformed := range map[string][]byte{
		"a next hop of loopback":      update(netip.MustParseAddr("127.0.0.1"), netip.MustParsePrefix("10.201.221.0/24")),
		"a next hop of no link":       update(netip.MustParseAddr("203.0.113.1"), netip.MustParsePrefix("10.201.222.0/24")),
		"a next hop of broadcast":     update(netip.MustParseAddr("255.255.255.255"), netip.MustParsePrefix("10.201.223.0/24")),
		"an ORIGIN of 9":              updateOf(attributes(0x40, 1, 1, 9), 24, 10, 201, 224),
		"no attribute":                updateOf(nil, 24, 10, 201, 224),
		"an AS_PATH beyond its end":   updateOf(attributes(0x40, 2, 4, 2, 200, 0xfd, 0xe9), 24, 10, 201, 224),
		"an attribute beyond the end": updateOf(attributes(0x50, 3, 0xff, 0xff), 24, 10, 201, 224),
		"attributes beyond the end":   message(2, 0, 0, 0xff, 0xff),
		"a prefix of 77 bits":         updateOf(attributes(0x40, 1, 1, 0), 77, 10, 201, 224),
		"a prefix beyond the end":     updateOf(attributes(0x40, 1, 1, 0), 32, 10),
		"withdrawals beyond the end":  message(2, 0xff, 0xff),
		"MP_REACH_NLRI without a hop": updateOf(attributes(0x80, 14, 5, 0, 2, 1, 0, 0)),
		"MP_REACH_NLRI of 3 bytes":    updateOf(attributes(0x80, 14, 3, 0, 2, 1)),
		"an unknown type":             message(9),
		"an OPEN in a session":        message(1, 4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 66, 0),
		"a length of 18":              append(slices.Repeat([]byte{0xff}, 16), 0, 18, 4),
		"a length of 65535":           append(slices.Repeat([]byte{0xff}, 16), 0xff, 0xff, 2),
		"another marker":              make([]byte, 19),
		"random bytes":                random,
	} {
		// It ignores the route or closes the session, which it takes again some seconds later.
		if session == nil {
			session = evil.open(t)
		}
		session.send(malformed)
		session.send(message(4))
		_ = session.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if _, err := io.Copy(io.Discard, session); !errors.Is(err, os.ErrDeadlineExceeded) {
			_ = session.Close()
			session = nil
		}
		if pid := a.speaker(); pid != first {
			t.Fatalf("%s: husk-bgp of PID %q has become %q", name, first, pid)
		}
	}
	for _, instead := range [][]byte{random, message(1, 3), message(1, 4, 0, 1, 0, 90, 192, 0, 2, 66, 0), message(1, 4, 0xfd, 0xe9, 0, 90, 192, 0, 2, 66, 9, 2, 200), message(2, 0, 0, 0, 0)} {
		conn := evil.dial(t)
		_, _ = conn.Write(instead)
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close()
	}
	unchanged()
	lost(t, "a hostile peer", 0, streams)
	a.says("of AS 65000", false)
	if pid := a.speaker(); pid != first {
		t.Errorf("husk-bgp of PID %q has become %q", first, pid)
	}
	remove(t, c.nodes...)
}

// attacker opens sessions with a node.
type attacker struct {
	*machine
	victim netip.Addr
	as     uint16
	ttl    int // of its packets
}

func (e *attacker) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := e.connect(t, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

func (e *attacker) connect(t *testing.T, timeout time.Duration) (conn net.Conn, err error) {
	t.Helper()
	level, option := unix.IPPROTO_IP, unix.IP_TTL
	if e.victim.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	dialer := net.Dialer{Timeout: timeout, Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, e.ttl) }), err)
	}}
	err = netns.Do(e.Net(), func() (err error) {
		conn, err = dialer.DialContext(t.Context(), "tcp", netip.AddrPortFrom(e.victim, 179).String())
		return err
	})
	if err == nil {
		t.Cleanup(func() { _ = conn.Close() })
	}
	return conn, err
}

// hostileSession is a session that is up.
type hostileSession struct {
	net.Conn
	t *testing.T
}

// open waits until the node takes a session: it doesn't for some seconds after the last one.
func (e *attacker) open(t *testing.T) *hostileSession {
	t.Helper()
	var out *hostileSession
	node.Eventually(t, 60*time.Second, func() string {
		conn := e.dial(t)
		_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
		// Version 4, the AS, 90 seconds, an ID, and the capabilities of IPv4 and IPv6.
		_, _ = conn.Write(message(1, 4, byte(e.as>>8), byte(e.as), 0, 90, 192, 0, 2, 66, 16, 2, 6, 1, 4, 0, 1, 0, 1, 2, 6, 1, 4, 0, 2, 0, 1))
		_, _ = conn.Write(message(4))
		for {
			header := make([]byte, 19)
			if _, err := io.ReadFull(conn, header); err != nil {
				_ = conn.Close()
				return "the node doesn't take the session: " + err.Error()
			}
			if _, err := io.CopyN(io.Discard, conn, int64(binary.BigEndian.Uint16(header[16:]))-19); err != nil {
				return err.Error()
			}
			if header[18] == 4 {
				_ = conn.SetDeadline(time.Time{})
				out = &hostileSession{conn, t}
				return ""
			}
		}
	})
	return out
}

func (s *hostileSession) send(message []byte) {
	s.t.Helper()
	_ = s.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, _ = s.Write(message) // it may have been closed
}

// message returns a message of BGP (RFC 4271): 1 is OPEN, 2 is UPDATE, 4 is KEEPALIVE.
func message(typ byte, body ...byte) []byte {
	out := slices.Repeat([]byte{0xff}, 16)
	out = binary.BigEndian.AppendUint16(out, uint16(19+len(body)))
	return append(append(out, typ), body...)
}

// update announces prefixes of IPv4.
func update(via netip.Addr, prefixes ...netip.Prefix) []byte {
	var nlri []byte
	for _, p := range prefixes {
		nlri = append(nlri, byte(p.Bits()))
		nlri = append(nlri, p.Masked().Addr().AsSlice()[:(p.Bits()+7)/8]...)
	}
	hop := append([]byte{0x40, 3, 4}, via.AsSlice()...)
	return updateOf(slices.Concat([]byte{0x40, 1, 1, 0, 0x40, 2, 4, 2, 1, 0xfd, 0xe9}, hop), nlri...)
}

// attributes returns attributes with a next hop.
func attributes(bytes ...byte) []byte { return append([]byte{0x40, 3, 4, 198, 18, 1, 3}, bytes...) }

func updateOf(attributes []byte, nlri ...byte) []byte {
	body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
	return message(2, slices.Concat(body, attributes, nlri)...)
}
