package datapath

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
)

// TestQuestions floods the address of the DNS server from a pod. The server gets no more than the
// rate, and every datagram of another pod.
func TestQuestions(t *testing.T) {
	for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
		for _, server := range plan.Resolvers(instance) {
			t.Run(string(mode)+" "+server.String(), func(t *testing.T) {
				t.Parallel()
				n := newNode(t, mode)
				base := plan.ForNode(plan.BaseConfig{Instance: instance, Tag: n.deletion.tag, Mode: mode, Subnets: subnets, Masquerade: true, Resolver: server})
				must(t, n.Ensure(base))
				at := netip.AddrPortFrom(server, dnsPort)
				serving := echo(t, n.path, at)
				attacker, other := n.plan(), n.plan()
				must(t, n.Apply(attacker))
				must(t, n.Apply(other))

				const sent = 20_000
				flood := dial(t, attacker.Netns, at)
				began := time.Now()
				flooded := make(chan struct{})
				go func() {
					defer close(flooded)
					// The kernel's backlog of a processor has room for 1000 packets of all pods.
					pace := time.NewTicker(time.Millisecond)
					defer pace.Stop()
					for i := range sent {
						if i%100 == 0 {
							<-pace.C
						}
						_, _ = flood.Write([]byte("flood"))
					}
				}()
				asks, lost := dial(t, other.Netns, at), 0
				pace := time.NewTicker(2 * time.Millisecond) // within the rate
				defer pace.Stop()
				for after := 0; after < 50; <-pace.C {
					select {
					case <-flooded:
						after++
					default:
					}
					_, _ = asks.Write([]byte("other"))
					_ = asks.SetReadDeadline(time.Now().Add(5 * time.Second))
					if _, err := asks.Read(make([]byte, 10)); err != nil {
						lost++
					}
				}
				if lost > 0 {
					t.Errorf("%d questions of another pod got no answer", lost)
				}
				got, most := serving()["flood"], int(questionBurst+questionRate*(time.Since(began).Seconds()+1))
				if got < questionBurst || got > most {
					t.Errorf("of %d datagrams %d arrived, want %d to %d", sent, got, questionBurst, most)
				}
			})
		}
	}
}

// echo sends back what arrives at an address in a network namespace, until the result is called,
// which counts what arrived.
func echo(t *testing.T, path string, at netip.AddrPort) func() map[string]int {
	t.Helper()
	buffer := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20)
		}), err)
	}}
	var conn net.PacketConn
	must(t, netns.Do(path, func() (err error) {
		conn, err = buffer.ListenPacket(context.Background(), "udp", at.String())
		return err
	}))
	counts, done := map[string]int{}, make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 100)
		for {
			size, from, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			counts[string(b[:size])]++
			if string(b[:size]) == "other" {
				_, _ = conn.WriteTo(b[:size], from)
			}
		}
	}()
	stop := func() map[string]int {
		_ = conn.Close()
		<-done
		return counts
	}
	t.Cleanup(func() { stop() })
	return stop
}

func dial(t *testing.T, path string, to netip.AddrPort) net.Conn {
	t.Helper()
	var conn net.Conn
	must(t, netns.Do(path, func() (err error) {
		conn, err = net.Dial("udp", to.String())
		return err
	}))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
