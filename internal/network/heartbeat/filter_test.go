package heartbeat

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/bpf"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
)

// garbage is how many datagrams a host sends that is no node: several times as many as wait in the
// socket's buffer.
const garbage = 20_000

// TestGarbage sends datagrams to a node that are neither answers to its probes nor probes of other
// nodes. None of them reaches the socket's buffer, so none takes the place of a probe.
func TestGarbage(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			a, b := hosts(t, six)
			up := func(h Health) bool { return h.Answered }
			a.eventually(t, "both up", up)
			b.eventually(t, "both up", up)
			stranger, unread := netip.MustParseAddr("10.201.2.9"), netip.MustParseAddr("10.201.1.8")
			if six {
				stranger, unread = netip.MustParseAddr("fd68:0:0:2::9"), netip.MustParseAddr("fd68:0:0:1::8")
			}
			netnstest.IP(t, b.path, "address add "+stranger.String()+" dev lo nodad")
			netnstest.IP(t, a.path, "address add "+unread.String()+" dev lo nodad")
			// A socket like the node's, which nobody reads.
			var waiting *socket
			nonce := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
			known := []netip.Addr{netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("fd68:0:0:9::1"), b.from}
			if err := netns.Do(a.path, func() (err error) {
				waiting, err = openSocket(unread, wanted(nonce, six, known))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer waiting.close()
			dial := func(from netip.AddrPort, to netip.Addr) (conn *net.UDPConn) {
				t.Helper()
				if err := netns.Do(b.path, func() (err error) {
					conn, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(from), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to, Port)))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
			probe := message{kind: kindProbe, way: backend.Direct, node: "n2", seq: 1}.encode()
			wrong := message{kind: kindAnswer, way: backend.Direct, nonce: [8]byte{1, 2, 3, 4}, seq: 1}.encode()
			other := append([]byte("hub\x01\x03"), probe[5:]...)
			for _, to := range []netip.Addr{unread, a.from} {
				near, far := dial(netip.AddrPortFrom(stranger, Port), to), dial(netip.AddrPortFrom(b.from, 0), to)
				for i := range garbage / 5 {
					for _, d := range []struct {
						by   *net.UDPConn
						data []byte
					}{{near, probe}, {near, wrong}, {far, probe}, {far, other}, {far, []byte(fmt.Sprint("garbage", i))}} {
						_, _ = d.by.Write(d.data)
					}
				}
				_, _ = near.Close(), far.Close()
			}
			if r, ok := waiting.receive(); ok {
				t.Errorf("%q of %v is in the buffer", r.data, r.from)
			}
			right := message{kind: kindAnswer, way: backend.Direct, nonce: nonce, seq: 7}.encode()
			if _, err := dial(netip.AddrPortFrom(stranger, 0), unread).Write(right); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				if r, ok := waiting.receive(); ok {
					if m, ok := parse(r.data); !ok || m.seq != 7 {
						t.Errorf("received %q of %v", r.data, r.from)
					}
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the answer to the node's own probe was refused")
				}
			}
			after := time.Now()
			for _, h := range []*host{a, b} {
				h.eventually(t, "after garbage", func(h Health) bool { return h.Last.After(after) && len(h.Broken) == 0 })
			}
		})
	}
}

// TestAnswersAreNoLargerThanProbes sends probes as earlier versions of Husk do, and shorter ones
// than any node sends.
func TestAnswersAreNoLargerThanProbes(t *testing.T) {
	for _, six := range []bool{false, true} {
		t.Run(map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
			a, b := hosts(t, six)
			other := netip.MustParseAddr("10.201.2.9")
			if six {
				other = netip.MustParseAddr("fd68:0:0:2::9")
			}
			netnstest.IP(t, b.path, "address add "+other.String()+" dev lo nodad")
			peers := slices.Clone(a.prober.watched)
			peers[0].From = append(slices.Clone(peers[0].From), other)
			a.prober.Watch(a.from, peers)
			nonce := [8]byte{1, 2, 3, 4, 5, 6, 7, 8}
			var sender *socket
			if err := netns.Do(b.path, func() (err error) {
				sender, err = openSocket(other, wanted(nonce, six, nil))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			defer sender.close()
			// The last one shows that all before were seen.
			sizes := []int{header + 1, answerLength - 1, answerLength, small - headers(other), 1450 - headers(other)}
			answered := map[uint32]int{}
			for deadline := time.Now().Add(30 * time.Second); answered[4] == 0; time.Sleep(tick) {
				for i, size := range sizes {
					m := message{kind: kindProbe, way: backend.Direct, nonce: nonce, seq: uint32(i), node: "x"}
					sender.send(m.encode(), size, netip.AddrPortFrom(a.from, Port))
				}
				for r, ok := sender.receive(); ok; r, ok = sender.receive() {
					if m, ok := parse(r.data); ok {
						answered[m.seq] = len(r.data)
					}
				}
				if time.Now().After(deadline) {
					t.Fatalf("answers to probes by their numbers: %v", answered)
				}
			}
			if len(answered) != 3 || answered[2] != answerLength || answered[3] != answerLength {
				t.Errorf("the sizes of answers to probes of %v bytes are %v", sizes, answered)
			}
		})
	}
}

// TestFilterFits checks that the filter is one that the kernel takes, for any number of senders.
func TestFilterFits(t *testing.T) {
	for _, six := range []bool{false, true} {
		for _, n := range []int{0, 1, 400, 2000, 5000} {
			var senders []netip.Addr
			for i := range n {
				a := netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 1})
				if six {
					a = netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)})
				}
				senders = append(senders, a)
			}
			raw, err := bpf.Assemble(wanted([8]byte{}, six, senders))
			if err != nil || len(raw) > maxFilter {
				t.Errorf("IPv6 %t, %d senders: %d instructions, %v", six, n, len(raw), err)
			}
		}
	}
}
