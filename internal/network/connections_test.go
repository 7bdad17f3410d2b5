package network

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/connlimit"
)

// handshakes sends the packets of TCP handshakes, without any end that would know of them. Both
// pods send with a TTL of 1 once the connection is known, so that only the node sees it, and the
// server's socket ignores all that reaches it. This takes raw sockets, and nothing else.
type handshakes struct {
	from, to         netip.Addr
	client, server   int // raw sockets
	toServer, toBack unix.Sockaddr
}

func (l *lab) handshakes(client, server guest, family int) *handshakes {
	l.t.Helper()
	h := &handshakes{from: client.addr(family), to: server.addr(family)}
	raw := func(ns string, to netip.Addr) (fd int, at unix.Sockaddr) {
		must(l.t, netns.Do(ns, func() (err error) {
			if to.Is4() {
				at = &unix.SockaddrInet4{Addr: to.As4()}
				fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			} else {
				at = &unix.SockaddrInet6{Addr: to.As16()}
				fd, err = unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
			}
			return err
		}))
		l.t.Cleanup(func() { _ = unix.Close(fd) })
		return fd, at
	}
	h.client, h.toServer = raw(client.Netns, h.to)
	h.server, h.toBack = raw(server.Netns, h.from)
	return h
}

// deaf listens on ports of a pod, and ignores what comes.
func (l *lab) deaf(ns string, ports ...uint16) {
	l.t.Helper()
	ignore := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &ignore[0]})
		}), err)
	}}
	must(l.t, netns.Do(ns, func() error {
		for _, port := range ports {
			s, err := config.Listen(context.Background(), "tcp", fmt.Sprintf(":%d", port))
			if err != nil {
				return err
			}
			l.t.Cleanup(func() { _ = s.Close() })
		}
		return nil
	}))
}

const synFlag, ackFlag = 0x02, 0x10

// segment returns a TCP segment without data, with its IP header.
func segment(from, to netip.Addr, ports [2]uint16, flags, ttl byte, numbers [2]uint32) []byte {
	var tcp []byte
	tcp = binary.BigEndian.AppendUint16(tcp, ports[0])
	tcp = binary.BigEndian.AppendUint16(tcp, ports[1])
	tcp = binary.BigEndian.AppendUint32(tcp, numbers[0])
	tcp = binary.BigEndian.AppendUint32(tcp, numbers[1])
	tcp = append(tcp, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0)
	sum := uint32(unix.IPPROTO_TCP + len(tcp))
	for _, part := range [][]byte{from.AsSlice(), to.AsSlice(), tcp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(tcp[16:], ^uint16(sum))
	if from.Is4() {
		ip := append([]byte{0x45, 0, 0, byte(20 + len(tcp)), 0, 0, 0, 0, ttl, unix.IPPROTO_TCP, 0, 0}, append(from.AsSlice(), to.AsSlice()...)...)
		return append(ip, tcp...) // the kernel computes its checksum
	}
	ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(tcp)), unix.IPPROTO_TCP, ttl}, append(from.AsSlice(), to.AsSlice()...)...)
	return append(ip, tcp...)
}

// open makes a connection in the table of the node. It ignores packets that are lost.
func (h *handshakes) open(from, to uint16) {
	there, back := [2]uint16{from, to}, [2]uint16{to, from}
	_ = unix.Sendto(h.client, segment(h.from, h.to, there, synFlag, 64, [2]uint32{1000, 0}), 0, h.toServer)
	_ = unix.Sendto(h.server, segment(h.to, h.from, back, synFlag|ackFlag, 1, [2]uint32{2000, 1001}), 0, h.toBack)
	_ = unix.Sendto(h.client, segment(h.from, h.to, there, ackFlag, 1, [2]uint32{1001, 2001}), 0, h.toServer)
}

// TestPodsShareConnectionTracking fills the node's whole table from two pods, by IPv4 and IPv6,
// while nothing limits them. Then it checks that huskd makes room for other pods and the node,
// keeps it during the next attack, and names the pods that did it.
func TestPodsShareConnectionTracking(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	var mu sync.Mutex
	messages := map[string]string{}
	cfg.Refused = func(pod, message string) {
		mu.Lock()
		defer mu.Unlock()
		messages[pod] = message
	}
	n := l.open(cfg)
	attackers := [2]guest{l.attach(n), l.attach(n)}
	victim, server := l.attach(n), l.attach(n)
	l.serve(server.Netns, "tcp", "server", 80)
	ports := []uint16{1, 2, 3, 4, 5, 6, 7, 8}
	usage := func() connlimit.Usage {
		u, err := n.Connections()
		must(t, err)
		return u
	}
	size := usage().Max
	var attacks [2][2]*handshakes
	for i, client := range attackers {
		l.deaf(client.Netns, ports...)
		for j, family := range []int{4, 6} {
			attacks[i][j] = l.handshakes(client, attackers[1-i], family)
		}
	}
	attack := func(perPod int) {
		var attacking sync.WaitGroup
		for _, families := range attacks {
			attacking.Go(func() {
				for k := range perPod {
					families[k%2].open(uint16(1024+k/2%64000), ports[k/2/64000%len(ports)])
				}
			})
		}
		attacking.Wait()
	}
	attack(size * 6 / 10)
	if u := usage(); u.Entries < size*95/100 {
		t.Fatalf("the attack has made %d entries of %d", u.Entries, size)
	}
	l.fails("the victim, whose node's table is full", victim.Netns, "tcp", server.addr(4).String(), 80)

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- n.Watch(ctx) }()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	reach := func() {
		t.Helper()
		for _, family := range []int{4, 6} {
			host := server.addr(family).String()
			var asking sync.WaitGroup
			for range 50 {
				asking.Go(func() {
					l.reaches("the victim", victim.Netns, "tcp", host, 80, answer("server", victim.addr(family)))
					if _, err := l.ask(l.node, "tcp", host, 80); err != nil {
						t.Errorf("from the node: %v", err)
					}
				})
			}
			asking.Wait()
			for _, a := range attackers {
				l.fails("a refused pod", a.Netns, "tcp", host, 80)
			}
		}
	}
	eventually(t, "there is room", func() bool { return usage().Entries < size*3/4 })
	reach()
	attack(size / 10)
	u := usage()
	if u.Entries > size*3/4 {
		t.Errorf("the pods have %d entries of %d again", u.Entries, size)
	}
	reach()
	if len(u.Refused) != 2 || u.Refused[0].Pod != attackers[0].Pod.String() || u.Refused[1].Pod != attackers[1].Pod.String() || !u.Refused[0].Cut || u.Dropped < 1000 {
		t.Errorf("%+v", u)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(messages) != 2 || messages[u.Refused[0].Pod] == "" {
		t.Errorf("messages %v", messages)
	}
}

// Sysctls of connection tracking.
const (
	established = "net/netfilter/nf_conntrack_tcp_timeout_established"
	closeWait   = "net/netfilter/nf_conntrack_tcp_timeout_close_wait"
)

// TestTimeoutsOfConnections checks that the kernel's defaults are replaced, and an administrator's
// values are not.
func TestTimeoutsOfConnections(t *testing.T) {
	for _, c := range []struct{ was, is [2]string }{
		{[2]string{"432000", "60"}, [2]string{"86400", "3600"}},
		{[2]string{"7200", "30"}, [2]string{"7200", "30"}},
		{[2]string{"864000", "60"}, [2]string{"864000", "3600"}},
	} {
		l := newLab(t)
		names := [2]string{established, closeWait}
		for i, name := range names {
			l.write(l.node, name, c.was[i])
		}
		n := l.open(l.config())
		for i, name := range names {
			if got := l.read(l.node, name); got != c.is[i] {
				t.Errorf("%s was %s and is %s, want %s", name, c.was[i], got, c.is[i])
			}
		}
		must(t, n.Teardown())
		for i, name := range names {
			if got := l.read(l.node, name); got != c.was[i] {
				t.Errorf("%s was %s and is %s at the end", name, c.was[i], got)
			}
		}
	}
}

// TestPodsCantFillTheNeighbourTable sends, without any privilege, to addresses on a pod's link that
// nobody has. The kernel has one table of neighbours for all namespaces, of 1,024 by default, from
// which it can't drop those that it is looking for.
func TestPodsCantFillTheNeighbourTable(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	g := l.attach(n)
	must(t, netns.Do(g.Netns, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		for i := range 50 {
			fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			to := &unix.SockaddrInet6{Port: 9, ZoneId: uint32(link.Index), Addr: [16]byte{0: 0xfe, 1: 0x80, 14: 1, 15: byte(i)}}
			_ = unix.Sendto(fd, []byte("x"), 0, to)
			_ = unix.Close(fd)
		}
		return nil
	}))
	if got := strings.Count(l.ip(g.Netns, "-6 neigh show nud incomplete"), "\n"); got > 0 {
		t.Errorf("the kernel looks for %d neighbours", got)
	}
	l.serve(l.other, "udp6", "other", 53)
	l.reaches("pod", g.Netns, "udp6", other6, 53, answer("other", netip.MustParseAddr(node6)))
}
