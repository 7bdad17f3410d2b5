package overlay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// stream sends a packet each millisecond from one pod to another until stop is called, which
// returns how many were sent and how many arrived.
func stream(t testing.TB, from string, source netip.Addr, to string, target netip.Addr) (stop func() (sent, arrived int)) {
	t.Helper()
	server, err := listen(to, target)
	must(t, err)
	client, err := listen(from, source)
	must(t, err)
	at := netip.AddrPortFrom(target, server.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	ctx, cancel := context.WithCancel(t.Context())
	sent, arrived := make(chan int, 1), make(chan int, 1)
	go func() {
		defer client.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		n := 0
		for ctx.Err() == nil {
			<-tick.C
			n++ // a packet that can't be sent is lost too
			_, _ = client.WriteToUDPAddrPort(binary.BigEndian.AppendUint32(nil, uint32(n)), at)
		}
		sent <- n
	}()
	go func() {
		defer server.Close()
		seen := map[uint32]bool{}
		buf := make([]byte, 64)
		for {
			n, err := server.Read(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if n == 4 {
				seen[binary.BigEndian.Uint32(buf)] = true
			}
		}
		arrived <- len(seen)
	}()
	return func() (int, int) {
		cancel()
		n := <-sent
		_ = server.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		return n, <-arrived
	}
}

// TestNoPacketIsLost changes the ways between two nodes, restarts one, and changes its address,
// while packets of both families go to and fro.
func TestNoPacketIsLost(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, false, "46"})
	a, b := l.nodes[0], l.nodes[1]
	for _, n := range l.nodes {
		n.self.Record.IPIP, n.self.Record.WireGuard = false, nil
	}
	l.apply(backend.Auto)
	l.reach("46")
	setBroken := func(n, peer *node, broken ...backend.Way) {
		n.self.Broken = map[string][]backend.Way{peer.self.Record.Name: broken}
	}
	setBroken(a, b, backend.Direct)
	setBroken(b, a, backend.Direct)
	l.apply(backend.Auto)
	l.reach("46")
	setBroken(a, b)
	setBroken(b, a)
	l.apply(backend.Auto)
	stops := map[string]func() (int, int){}
	for _, six := range []bool{false, true} {
		stops[fmt.Sprintf("from a, IPv6 %v", six)] = stream(t, a.pod, podAddress(1, six), b.pod, podAddress(2, six))
		stops[fmt.Sprintf("from b, IPv6 %v", six)] = stream(t, b.pod, podAddress(2, six), a.pod, podAddress(1, six))
	}
	apply := func(n *node) {
		n.plan = backend.For(n.self, l.peers(n))
		_, err := n.Apply(n.plan)
		must(t, err)
		time.Sleep(20 * time.Millisecond) // for packets to go this way
	}
	for range 5 {
		setBroken(a, b, backend.Direct)
		apply(a)
		setBroken(b, a, backend.Direct)
		apply(b)
		a.reopen() // as if huskd was killed and restarted
		apply(a)
		setBroken(a, b)
		apply(a)
		setBroken(b, a)
		apply(b)
	}
	setBroken(a, b, backend.Direct)
	setBroken(b, a, backend.Direct)
	apply(a)
	apply(b)
	l.ip(a.path, "addr add 192.0.2.101/24 dev eth0")
	a.self.Record.Addresses[0] = netip.MustParseAddr("192.0.2.101")
	a.self.Underlay[0].Address = netip.MustParsePrefix("192.0.2.101/24")
	apply(a) // with the new address; b still sends to the old one
	apply(b)
	for name, stop := range stops {
		sent, arrived := stop()
		if t.Logf("%s: %d of %d packets arrived", name, arrived, sent); arrived < sent {
			t.Errorf("%s: %d of %d packets were lost", name, sent-arrived, sent)
		}
	}
	a.agrees()
	b.agrees()
}
