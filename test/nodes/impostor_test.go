package nodes

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// TestBGPImpostor runs two nodes of a mesh of three. What has the third one's address is hostile:
// it first sends as from behind a router, where a pod of that node is, and then as the node itself.
func TestBGPImpostor(t *testing.T) {
	t.Parallel()
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			t.Parallel()
			impostor(t, newSpeakersOn(t, node.NewUnderlay(t).Segment(node.Media{NoIPv4: six}), 3), six)
		})
	}
}

func impostor(t *testing.T, c *cluster, six bool) {
	stolen := c.nodes[0]
	c.nodes = c.nodes[1:]
	victim, honest := c.nodes[0], c.nodes[1]
	address := func(m *machine, six bool) netip.Addr {
		i := slices.IndexFunc(m.Uplink.Addresses, func(p netip.Prefix) bool { return p.Addr().Is6() == six })
		return m.Uplink.Addresses[i].Addr()
	}
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	routes, first := victim.routes(), victim.speaker()
	streams := c.streams()

	evil := &attacker{stolen, address(victim, six), 64512, 254}
	var timeout net.Error
	if conn, err := evil.connect(t, 3*time.Second); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a connection from behind a router: %v, want none", err)
		if err == nil {
			_ = conn.Close()
		}
	}
	evil.ttl = 255
	session := evil.open(t)
	at := address(stolen, six)
	all := netip.MustParsePrefix(fmt.Sprintf("10.201.%d.0/23", honest.Uplink.Number&^1))
	for _, hop := range []netip.Addr{address(victim, six), address(honest, six), at} {
		for _, block := range slices.Concat(honest.blocks, victim.blocks, []netip.Prefix{all, netip.MustParsePrefix("10.201.200.0/24"), netip.MustParsePrefix("10.201.0.0/17")}) {
			session.send(preferred(hop, block))
			half := netip.PrefixFrom(block.Addr(), block.Bits()+1)
			session.send(preferred(hop, half))
		}
		if hop != at {
			for _, block := range stolen.blocks {
				session.send(preferred(hop, block))
			}
		}
	}
	if pid := victim.speaker(); pid != first {
		t.Errorf("husk-bgp of PID %q has become %q", first, pid)
	}
	line := fmt.Sprintf("bgp: session with %v of AS 64512: it announces ", at)
	victim.says(line, true)
	if n := strings.Count(victim.huskd.Log(), line); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, victim.huskd.Log())
	}
	// The larger prefixes count for the node's own block.
	var others strings.Builder
	for l := range strings.Lines(victim.routes()) {
		if !strings.HasPrefix(l, stolen.blocks[0].String()) && !strings.HasPrefix(l, stolen.blocks[1].String()) {
			others.WriteString(l)
		}
	}
	if others.String() != routes {
		t.Errorf("with an impostor, the routes are\n%s, want\n%s", others.String(), routes)
	}
	// What is the node's own is a route.
	session.send(preferred(at, stolen.blocks[0]))
	node.Eventually(t, 30*time.Second, func() string {
		if got := victim.routes(); !strings.Contains(got, fmt.Sprint(stolen.blocks[0], " via ", at)) && !strings.Contains(got, fmt.Sprint(stolen.blocks[0], " via inet6 ", at)) {
			return "no route to the node's own block:\n" + got
		}
		return ""
	})
	lost(t, "an impostor", 0, streams)
	if pid := victim.speaker(); pid != first {
		t.Errorf("husk-bgp of PID %q has become %q", first, pid)
	}
	remove(t, c.nodes...)
}

// preferred announces a prefix, within an AS, with a preference above the usual one of 100.
func preferred(via netip.Addr, p netip.Prefix) []byte {
	common := []byte{0x40, 1, 1, 0, 0x40, 2, 0, 0x40, 5, 4, 0, 0, 0, 200}
	nlri := append([]byte{byte(p.Bits())}, p.Masked().Addr().AsSlice()[:(p.Bits()+7)/8]...)
	if p.Addr().Is4() && via.Is4() {
		return updateOf(slices.Concat(common, []byte{0x40, 3, 4}, via.AsSlice()), nlri...)
	}
	reach := slices.Concat([]byte{0, byte(1 + p.Addr().BitLen()/128), 1, byte(via.BitLen() / 8)}, via.AsSlice(), []byte{0}, nlri)
	return updateOf(slices.Concat(common, []byte{0x80, 14, byte(len(reach))}, reach))
}

// forgeBFD sends packets of BFD with another's address and a TTL of 254: the session is down, and
// packets follow every 4,000 seconds.
func (m *machine) forgeBFD(from, to netip.Addr) {
	m.t.Helper()
	packet := make([]byte, 24)
	packet[0], packet[1], packet[2], packet[3] = 1<<5, 1<<6, 255, byte(len(packet))
	binary.BigEndian.PutUint32(packet[4:], 0xbadbad)
	binary.BigEndian.PutUint32(packet[12:], 4_000_000_000)
	dialer := net.Dialer{LocalAddr: net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 50000)), Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TRANSPARENT, 1), unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, 254))
		}), err)
	}}
	err := netns.Do(m.Net(), func() error {
		conn, err := dialer.DialContext(m.t.Context(), "udp", netip.AddrPortFrom(to, 3784).String())
		if err != nil {
			return err
		}
		defer conn.Close()
		for range 10 {
			if _, err := conn.Write(packet); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		m.t.Fatal(err)
	}
}
