package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/bfd"
)

// TestNearby checks which packets sockets take that have the filter: those of hopLimit, and for BGP
// all of a peer without GTSM.
func TestNearby(t *testing.T) {
	path := filepath.Join(t.TempDir(), "net")
	netnstest.Make(t, path)
	netnstest.IP(t, path, "link set lo up")
	for _, a := range []string{"192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32", "2001:db8::1/128", "2001:db8::2/128", "2001:db8::3/128", "2001:db8:0:1::3/128"} {
		netnstest.IP(t, path, "address add "+a+" dev lo nodad")
	}
	inside := func(do func() error) {
		t.Helper()
		if err := netns.Do(path, do); err != nil {
			t.Fatal(err)
		}
	}
	at := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
	for _, a := range at {
		inside(func() error {
			var config net.ListenConfig
			config.SetMultipathTCP(false) // as gobgp's
			l, err := config.Listen(t.Context(), "tcp", netip.AddrPortFrom(a, bgpPort).String())
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = l.Close() })
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					_ = conn.Close()
				}
			}()
			return nil
		})
	}
	var datagrams *net.UDPConn
	inside(func() (err error) {
		conn, err := (&net.ListenConfig{Control: nearbyOnly}).ListenPacket(t.Context(), "udp", netip.AddrPortFrom(netip.IPv6Unspecified(), bfd.Port).String())
		if err == nil {
			datagrams = conn.(*net.UDPConn)
		}
		return err
	})
	defer datagrams.Close()

	for _, distant := range [][]netip.Addr{nil, {netip.MustParseAddr("192.0.2.4"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::3"), netip.MustParseAddr("2001:db8::2")}} {
		if n, err := attach(bgpPort, nearby(distant)); err != nil || n == 0 {
			t.Fatalf("attached to %d sockets of port %d: %v", n, bgpPort, err)
		}
		for from, exempt := range map[string]bool{"192.0.2.2": true, "192.0.2.3": false, "2001:db8::2": true, "2001:db8:0:1::3": false} {
			for ttl, want := range map[int]bool{254: exempt && distant != nil, 255: true} {
				source := netip.MustParseAddr(from)
				to := at[map[bool]int{source.Is6(): 1}[true]]
				conn, err := dialBy(t, path, "tcp", source, netip.AddrPortFrom(to, bgpPort), ttl)
				if err == nil {
					_ = conn.Close()
				}
				if (err == nil) != want {
					t.Errorf("distant %v: a connection from %v with TTL %d: %v, want one: %t", distant, source, ttl, err, want)
				}
				// What the socket takes is read in order, so a datagram that passes shows whether the one
				// before it did.
				for _, d := range []struct {
					text string
					ttl  int
				}{{"first", ttl}, {"second", 255}} {
					conn, err := dialBy(t, path, "udp", source, netip.AddrPortFrom(to, bfd.Port), d.ttl)
					if err != nil {
						t.Fatal(err)
					}
					_, err = conn.Write([]byte(d.text))
					_ = conn.Close()
					if err != nil {
						t.Fatal(err)
					}
				}
				read := func() string {
					t.Helper()
					buf := make([]byte, 100)
					_ = datagrams.SetReadDeadline(time.Now().Add(10 * time.Second))
					n, _, err := datagrams.ReadFrom(buf)
					if err != nil {
						t.Fatal(err)
					}
					return string(buf[:n])
				}
				got := read() == "first"
				if got {
					read()
				}
				if want := ttl == hopLimit; got != want {
					t.Errorf("a datagram from %v with TTL %d was taken: %t, want %t", source, ttl, got, want)
				}
			}
		}
	}
}

// dialBy connects from an address, with packets of a TTL or hop limit.
func dialBy(t *testing.T, path, network string, from netip.Addr, to netip.AddrPort, ttl int) (conn net.Conn, err error) {
	t.Helper()
	level, option := unix.IPPROTO_IP, unix.IP_TTL
	if from.Is6() {
		level, option = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS
	}
	local, err := map[string]func() (net.Addr, error){
		"tcp": func() (net.Addr, error) { return net.ResolveTCPAddr("tcp", netip.AddrPortFrom(from, 0).String()) },
		"udp": func() (net.Addr, error) { return net.ResolveUDPAddr("udp", netip.AddrPortFrom(from, 0).String()) },
	}[network]()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	dialer := net.Dialer{LocalAddr: local, Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, ttl) }), err)
	}}
	err = netns.Do(path, func() (err error) {
		conn, err = dialer.DialContext(ctx, network, to.String())
		return err
	})
	if err != nil {
		err = fmt.Errorf("from %v to %v: %w", from, to, err)
	}
	return conn, err
}
