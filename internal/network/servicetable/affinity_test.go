package servicetable

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/service"
)

// datagram returns a UDP datagram with its IP header.
func datagram(from, to netip.AddrPort) []byte {
	udp := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, from.Port()), to.Port())
	udp = append(udp, 0, 10, 0, 0, 'x', 'x')
	sum := uint32(unix.IPPROTO_UDP + len(udp))
	for _, part := range [][]byte{from.Addr().AsSlice(), to.Addr().AsSlice(), udp} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], ^uint16(sum))
	addresses := append(from.Addr().AsSlice(), to.Addr().AsSlice()...)
	if from.Addr().Is4() {
		ip := append([]byte{0x45, 0, 0, byte(20 + len(udp)), 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0}, addresses...)
		return append(ip, udp...) // the kernel computes its checksum
	}
	ip := append([]byte{0x60, 0, 0, 0, 0, byte(len(udp)), unix.IPPROTO_UDP, 64}, addresses...)
	return append(ip, udp...)
}

// flood sends a datagram to a Service from each of n addresses that nobody has.
func (l *lab) flood(to netip.AddrPort, n int) {
	l.t.Helper()
	must(l.t, netns.Do(l.where[addr("192.0.2.7")], func() error {
		kind, at, first := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{}), addr("198.18.0.0")
		if to.Addr().Is4() {
			at.(*unix.SockaddrInet4).Addr = to.Addr().As4()
		} else {
			kind, at, first = unix.AF_INET6, &unix.SockaddrInet6{Addr: to.Addr().As16()}, addr("2001:db8:1::")
		}
		fd, err := unix.Socket(kind, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for i, from := 0, first; i < n; i, from = i+1, from.Next() {
			if err := unix.Sendto(fd, datagram(netip.AddrPortFrom(from, 7), to), 0, at); err != nil {
				return err
			}
		}
		return nil
	}))
}

// TestAffinityOfOneServiceIsNotAnothers fills a Service's affinity from spoofed addresses, and
// checks that the clients of another Service keep theirs, and that new ones get it.
func TestAffinityOfOneServiceIsNotAnothers(t *testing.T) {
	l := newLab(t)
	other6 := netip.MustParseAddrPort("[fd88::2]:8080")
	for _, e := range []netip.AddrPort{here4, other4, here6, other6} {
		l.serve(e)
		must(t, netns.Do(l.where[e.Addr()], func() error { // it answers nothing
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(e.Addr(), 9090)))
			if err == nil {
				t.Cleanup(func() { c.Close() })
			}
			return err
		}))
	}
	victim, flooded := web(), web()
	victim.Affinity, flooded.Affinity = time.Hour, time.Hour
	flooded.Name, flooded.ClusterIPs, flooded.ExternalIPs, flooded.LoadBalancerIPs = "flooded", []netip.Addr{addr("10.96.0.2"), addr("fd96::2")}, nil, nil
	for i := range flooded.Ports {
		flooded.Ports[i].NodePort = 0
	}
	deaf4, deaf6 := sliceOf("flooded", "3", here4, other4), sliceOf("flooded", "4", here6, other6)
	for _, s := range []*service.Slice{deaf4, deaf6} {
		for i := range s.Ports {
			s.Ports[i].Port = 9090
		}
	}
	services := map[string]*service.Service{"n/web": victim, "n/flooded": flooded}
	l.change(service.Changes{Node: here(), Services: services, Slices: map[string]*service.Slice{
		"n/1": sliceOf("web", "1", here4, other4), "n/2": sliceOf("web", "2", here6, other6), "n/3": deaf4, "n/4": deaf6,
	}})
	for _, f := range []struct{ victim, flooded, old, recent string }{
		{"10.96.0.1:80", "10.96.0.2:80", "192.0.2.7", "10.99.0.1"},
		{"[fd96::1]:80", "[fd96::2]:80", "2001:db8::7", "fd99::1"},
	} {
		endpoint := func(network, from string) string {
			name, _, _ := strings.Cut(l.get(network, from, f.victim), " ")
			return name
		}
		before := map[string]string{"tcp": endpoint("tcp", f.old), "udp": endpoint("udp", f.old)}
		l.flood(netip.MustParseAddrPort(f.flooded), 66_000)
		for _, network := range []string{"tcp", "udp"} {
			recent := endpoint(network, f.recent)
			for range 12 {
				if got := endpoint(network, f.old); got != before[network] {
					t.Errorf("%s: a client of before is led to %s, after %s", network, got, before[network])
				}
				if got := endpoint(network, f.recent); got != recent {
					t.Errorf("%s: a new client is led to %s, after %s", network, got, recent)
				}
			}
		}
	}
	l.clean()

	// The map goes with the Service, and comes back empty.
	sets := func() int {
		return strings.Count(netnstest.Run(t, l.node, "nft", "-t", "list", "sets")+netnstest.Run(t, l.node, "nft", "-t", "list", "maps"), "map affinity-0a600002-17-80 ")
	}
	chains := func() int {
		return strings.Count(netnstest.Run(t, l.node, "nft", "-t", "list", "chains"), "0a600002-17-80 ")
	}
	if sets() != 1 || chains() != 3 {
		t.Errorf("%d maps, %d chains", sets(), chains())
	}
	l.change(service.Changes{Services: map[string]*service.Service{"n/flooded": nil}})
	if sets() != 0 || chains() != 0 {
		t.Errorf("%d maps, %d chains are left", sets(), chains())
	}
	l.clean()
	l.change(service.Changes{Services: one("n/flooded", flooded)})
	if sets() != 1 || chains() != 3 {
		t.Errorf("%d maps, %d chains", sets(), chains())
	}
	l.clean()
}
