package nodes_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/overlay"
	"github.com/huskd/husk/internal/network/peer"
)

const instance = "be0f"

// subnets are of the pods of all nodes.
var subnets = []netip.Prefix{prefix("10.64.0.0/10"), prefix("fd99::/32")}

// parts are the real parts of a node in a network namespace.
type parts struct {
	*network.Network
	*overlay.Overlay
	*heartbeat.Prober
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// namespace returns the path of a network namespace that forwards.
func namespace(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net")
	netnstest.Make(t, path)
	for _, sysctl := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		netnstest.Set(t, path, sysctl, "1")
	}
	return path
}

// openParts opens the parts of a node in a network namespace until the end of the test.
func openParts(t testing.TB, netns string, cluster []netip.Prefix, may func(netip.Prefix) error) (p parts) {
	t.Helper()
	var err error
	p.Network, err = network.Open(t.Context(), network.Config{Instance: instance, Dir: filepath.Join(t.TempDir(), "journal"), Netns: netns,
		Cluster: cluster, May: may, Masquerade: true, Quarantine: -1, Log: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(func() { must(t, p.Network.Close()) })
	p.Overlay, err = overlay.Open(overlay.Config{Instance: instance, Netns: netns})
	must(t, err)
	t.Cleanup(func() { must(t, p.Overlay.Close()) })
	p.Prober, err = heartbeat.Open(netns, "n1")
	must(t, err)
	t.Cleanup(func() { must(t, p.Prober.Close()) })
	return p
}

func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func heap() float64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

// BenchmarkPass makes a node's first pass with 5,000 peers, and then passes after the record of one
// has changed.
func BenchmarkPass(b *testing.B) {
	hosttest.Root(b)
	const peers, changes = 5000, 200
	netns := namespace(b)
	netnstest.IP(b, netns, "link add eth0 type veth peer name gw0")
	netnstest.IP(b, netns, "link set gw0 up")
	netnstest.IP(b, netns, "addr add 192.0.2.1/24 dev eth0")
	netnstest.IP(b, netns, "link set eth0 up")
	netnstest.IP(b, netns, "route add default via 192.0.2.254")
	records := make([]*peer.Node, peers)
	for i := range records {
		name, hi, lo := fmt.Sprintf("peer%05d", i), byte(i>>8), byte(i)
		records[i] = &peer.Node{Version: 1, Name: name, VXLAN: backend.VXLANOf(name), MTU: 1500, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + hi, lo, 1})},
			Blocks: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + hi, lo, 0}), 24), netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x99, 6: hi, 7: lo}), 64)}}
	}
	own := []netip.Prefix{prefix("10.127.0.0/24"), prefix("fd99:0:ffff::/64")}
	var firsts, ones []time.Duration
	var more float64
	var spent time.Duration
	for b.Loop() {
		p := openParts(b, netns, subnets, nil)
		c := nodes.New(nodes.Config{Instance: instance, Name: "a", Boot: "1", Cluster: subnets, Backend: backend.Auto, Ways: nodes.Ways{VXLAN: backend.VXLANOf("a")},
			Registry: new(world), Kernel: p, Prober: p.Prober, Pods: p, Log: slog.New(slog.DiscardHandler)})
		see := func(records []*peer.Node) time.Duration {
			began := time.Now()
			c.See(peer.View{Blocks: own, Peers: records})
			must(b, c.Pass(b.Context()))
			return time.Since(began)
		}
		see(nil)
		before := heap()
		firsts = append(firsts, see(records))
		more = heap() - before
		began := cpu()
		for i := range changes {
			changed := slices.Clone(records)
			one := *changed[i*23]
			one.Addresses = []netip.Addr{netip.AddrFrom4([4]byte{172, 15, 0, byte(i)})}
			changed[i*23] = &one
			ones = append(ones, see(changed))
		}
		spent += cpu() - began
		if got := len(c.Status().Peers); got != peers {
			b.Fatalf("%d peers", got)
		}
		must(b, p.Overlay.Teardown())
		must(b, p.Network.Teardown())
	}
	reportQuantile(b, firsts, 0.5, "ms-first-p50")
	b.ReportMetric(float64(spent.Microseconds())/1000/float64(len(ones)), "ms-change-CPU")
	reportQuantile(b, ones, 0, "ms-change-min")
	reportQuantile(b, ones, 0.5, "ms-change-p50")
	reportQuantile(b, ones, 0.99, "ms-change-p99")
	b.ReportMetric(more, "MB-heap")
	runtime.KeepAlive(records)
}

// Watch is both the kernel's and the prober's.
func (p parts) Watch(ctx context.Context, changed func()) error { return p.Overlay.Watch(ctx, changed) }

func reportQuantile(b *testing.B, d []time.Duration, q float64, unit string) {
	slices.Sort(d)
	b.ReportMetric(float64(d[int(q*float64(len(d)-1))].Microseconds())/1000, unit)
}
