package conntrack

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/nlsock"
)

// BenchmarkForget is what it costs to delete 10,000 entries of a pod, in processor time: ns-CPU is
// for each of them.
func BenchmarkForget(b *testing.B) {
	const entries = 10_000
	path := b.TempDir() + "/net"
	netnstest.Make(b, path)
	netnstest.IP(b, path, "address add 10.9.0.2/32 dev lo")
	netnstest.Run(b, path, "nft", rules)
	var s *nlsock.Conn
	var from *net.UDPConn
	must(b, netns.Do(path, func() (err error) {
		if s, err = nlsock.Dial(unix.NETLINK_NETFILTER); err != nil {
			return err
		}
		from, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 2)})
		return err
	}))
	defer s.Close()
	defer from.Close()
	pod := netip.MustParseAddr("10.9.0.2")
	processorTime := func() time.Duration {
		var u unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var used time.Duration
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		for port := range entries {
			_, _ = from.WriteToUDPAddrPort(nil, netip.AddrPortFrom(pod, uint16(1024+port)))
		}
		if size, err := SizeOf(s); err != nil || size.Entries < entries {
			b.Fatalf("%+v, %v", size, err)
		}
		b.StartTimer()
		before := processorTime()
		must(b, Forget(s, Flows{Pods: []netip.Addr{pod}}))
		used += processorTime() - before
	}
	b.ReportMetric(float64(used.Nanoseconds())/float64(b.N)/entries, "ns-CPU")
}
