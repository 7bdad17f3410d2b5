package nodes

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/test/node"
)

// TestVXLANIsTakenFromNodesOnly: neither a pod of another node, nor a host beside the nodes, brings
// packets into the pod network inside VXLAN packets of its own, over IPv4 and IPv6.
func TestVXLANIsTakenFromNodesOnly(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	near, far := u.Segment(node.Media{}), u.Segment(node.Media{})
	c := newCluster(t, "vxlan", "46", near, far)
	evil := newMachine(t, far) // it has no huskd
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	c.goes(by("vxlan"))
	a, b := c.nodes[0], c.nodes[1]
	table := b.Instance().Table()
	victim := b.pods[0]
	inner := netip.AddrPortFrom(victim.address(false), 7778)
	var listener net.PacketConn
	if err := netns.Do(victim.netns, func() (err error) {
		listener, err = net.ListenPacket("udp4", inner.String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	// arrives sends VXLAN packets with the source of a pod of a, and reports whether the victim gets
	// what is inside.
	arrives := func(ns string, over netip.Addr, limit time.Duration) (arrived bool) {
		link := "hn" + string(b.Instance()) + "vx"
		if over.Is6() {
			link += "6"
		}
		mac, err := net.ParseMAC(strings.Fields(b.Must("ip", "-br", "link", "show", link))[2])
		if err != nil {
			t.Fatal(err)
		}
		packet := vxlan(mac, netip.AddrPortFrom(a.pods[1].address(false), 7778), inner)
		err = netns.Do(ns, func() error {
			out, err := net.Dial("udp", netip.AddrPortFrom(over, plan.VXLANPort).String())
			if err != nil {
				return err
			}
			defer out.Close()
			for end := time.Now().Add(limit); !arrived && time.Now().Before(end); {
				_, _ = out.Write(packet)
				_ = listener.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				_, _, err := listener.ReadFrom(make([]byte, 16))
				if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
					return err
				}
				arrived = err == nil
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return arrived
	}
	const brevity = 500 * time.Millisecond
	for _, p := range b.Uplink.Addresses {
		if arrives(a.pods[0].netns, p.Addr(), brevity) {
			t.Errorf("a pod brought a packet to another node's pod by %v", p.Addr())
		}
		if arrives(evil.Net(), p.Addr(), brevity) {
			t.Errorf("a host brought a packet to a pod by %v", p.Addr())
		}
	}
	for _, own := range a.Uplink.Addresses {
		if arrives(a.pods[0].netns, own.Addr(), brevity) {
			t.Errorf("a pod brought a packet to a pod of another node by its own node's %v", own.Addr())
		}
	}
	for _, counter := range []struct {
		on   *machine
		name string
	}{{a, "pod-to-node"}, {b, "no-node"}} {
		if got := counter.on.Must("nft", "list", "counter", "inet", counter.on.Instance().Table(), counter.name); strings.Contains(got, "packets 0 ") {
			t.Errorf("%s counted nothing: %s", counter.on.Uplink.Name(), got)
		}
	}
	if got := a.Husk("net", "explain", "a", b.Uplink.Addresses[0].Addr().String(), "8472/udp").Stdout; !strings.Contains(got, "nodes talk to each other by port 8472") {
		t.Errorf("husk net explain says\n%s", got)
	}
	Reach(t, 30*time.Second, c.nodes...)
	// Without the rules, they would arrive.
	b.huskd.Kill()
	b.Must("nft", "flush", "chain", "inet", table, "at-node")
	for _, p := range b.Uplink.Addresses {
		if !arrives(evil.Net(), p.Addr(), 10*time.Second) {
			t.Errorf("without the rules, nothing arrived by %v", p.Addr())
		}
	}
	b.restart()
	node.Eventually(t, 30*time.Second, func() string {
		if arrives(evil.Net(), b.Uplink.Addresses[0].Addr(), brevity) {
			return "a host brings packets to a pod after huskd was started again"
		}
		return ""
	})
	Reach(t, 30*time.Second, c.nodes...)
	remove(t, c.nodes...)
}

// vxlan returns the payload of a VXLAN packet with VNI 1 (RFC 7348) with a UDP datagram of IPv4
// inside.
func vxlan(to net.HardwareAddr, from, at netip.AddrPort) []byte {
	out := []byte{8, 0, 0, 0, 0, 0, 1, 0}
	out = append(append(out, to...), 2, 0, 0, 0, 0, 9, 8, 0)
	payload := []byte("injected")
	ip := []byte{0x45, 0, 0, byte(28 + len(payload)), 0, 0, 0, 0, 64, 17, 0, 0}
	ip = append(append(ip, from.Addr().AsSlice()...), at.Addr().AsSlice()...)
	sum := uint32(0)
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	out = binary.BigEndian.AppendUint16(append(out, ip...), from.Port())
	out = binary.BigEndian.AppendUint16(out, at.Port())
	out = binary.BigEndian.AppendUint16(out, uint16(8+len(payload)))
	return append(append(out, 0, 0), payload...) // RFC 768: without a checksum
}
