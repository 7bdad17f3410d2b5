package overlay

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/companion"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/wireguard"
	"github.com/huskd/husk/internal/pod"
)

// BenchmarkWireGuardGo compares the network of two nodes by husk-wireguard with the same two nodes
// connected by hand with wireguard-go, whose library husk-wireguard uses. It reports the throughput
// of a TCP connection between pods, its time for a byte there and back, and the ratios of both. In
// each round it measures both, as the load of a shared machine changes.
func BenchmarkWireGuardGo(b *testing.B) {
	dir := b.TempDir()
	if l := newLab(b, layout{1, true, "4"}); l.nodes[0].supports(backend.WireGuard) {
		b.Skip("the kernel has WireGuard, so huskd doesn't start husk-wireguard")
	}
	for name, path := range map[string]string{wireguard.Program: "github.com/huskd/husk/cmd/" + wireguard.Program, "wireguard-go": "golang.zx2c4.com/wireguard"} {
		if out, err := exec.Command("go", "build", "-o", filepath.Join(dir, name), path).CombinedOutput(); err != nil {
			b.Fatalf("build %s: %v\n%s", name, err, out)
		}
	}
	pairs := []pair{connect(b, newHusk(b, filepath.Join(dir, wireguard.Program))), connect(b, newPlain(b, filepath.Join(dir, "wireguard-go")))}
	var rates, times [2][]float64
	var rateRatios, timeRatios []float64
	for round := range 2 + b.N*30 { // the first two to warm up
		var rate, rtt [2]float64
		for i := range pairs {
			which := (i + round) % 2
			rate[which] = pairs[which].rate(b, 200*time.Millisecond)
			rtt[which] = pairs[which].rtt(b, 300)
		}
		if round < 2 {
			continue
		}
		for i := range pairs {
			rates[i], times[i] = append(rates[i], rate[i]), append(times[i], rtt[i])
		}
		rateRatios, timeRatios = append(rateRatios, rate[0]/rate[1]), append(timeRatios, rtt[0]/rtt[1])
	}
	b.ReportMetric(0, "ns/op")
	for i, name := range []string{"husk", "wireguard-go"} {
		b.ReportMetric(median(rates[i]), name+"-Mb/s")
		b.ReportMetric(median(times[i]), name+"-rtt-µs")
	}
	b.ReportMetric(median(rateRatios), "rate-ratio")
	b.ReportMetric(median(timeRatios), "rtt-ratio")
}

func median(of []float64) float64 {
	slices.Sort(of)
	return of[len(of)/2]
}

// newHusk connects two nodes as huskd does.
func newHusk(b *testing.B, program string) *lab {
	l := newLab(b, layout{2, true, "4"})
	for i, n := range l.nodes {
		// Programs have their sockets in one directory, so the names of their links must differ.
		n.self.Instance = pod.Instance(fmt.Sprintf("%04x", (2*os.Getpid()+i)&0xffff))
		o, err := Open(Config{Netns: n.path, Instance: n.self.Instance, StartWireGuard: func(link string, mtu int) error { return companion.Start(nil, program, link, strconv.Itoa(mtu)) }})
		must(b, err)
		o.SetKeys(n.private)
		b.Cleanup(func() {
			must(b, o.Teardown())
			must(b, o.Close())
		})
		n.Overlay = o
	}
	l.apply(backend.OnlyWireGuard)
	return l
}

// newPlain connects two nodes by hand.
func newPlain(b *testing.B, program string) *lab {
	l := newLab(b, layout{2, true, "4"})
	control, err := wgctrl.New()
	must(b, err)
	defer control.Close()
	for i, n := range l.nodes {
		link := fmt.Sprintf("hwb%d%c", os.Getpid(), 'a'+i)
		cmd := exec.Command(program, "-f", link)
		cmd.Env = append(os.Environ(), "LOG_LEVEL=error")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // the kernel may schedule sessions as groups
		must(b, netns.Do(n.path, cmd.Start))
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = os.Remove("/var/run/wireguard/" + link + ".sock")
		})
		eventually(b, func() string {
			if _, err := control.Device(link); err != nil {
				return err.Error()
			}
			return ""
		})
		other := l.nodes[1-i]
		key, port := wgtypes.Key(n.private), peer.WireGuardPort
		c := wgtypes.PeerConfig{
			PublicKey: wgtypes.Key(other.self.Record.Key()),
			Endpoint:  net.UDPAddrFromAddrPort(netip.AddrPortFrom(other.self.Record.Addresses[0], peer.WireGuardPort)),
		}
		for _, block := range other.self.Record.Blocks {
			c.AllowedIPs = append(c.AllowedIPs, net.IPNet{IP: block.Addr().AsSlice(), Mask: net.CIDRMask(block.Bits(), block.Addr().BitLen())})
		}
		must(b, control.ConfigureDevice(link, wgtypes.Config{PrivateKey: &key, ListenPort: &port, Peers: []wgtypes.PeerConfig{c}}))
		l.ip(n.path, fmt.Sprintf("link set %s mtu 1440 up", link))
		for _, block := range other.self.Record.Blocks {
			l.ip(n.path, fmt.Sprintf("route add %v dev %s", block, link))
		}
		netnstest.Set(b, n.path, "net/ipv4/conf/"+link+"/rp_filter", "0")
	}
	return l
}

// pair is a TCP connection between two pods. Its far end sends back each byte 'b' and drops all
// others.
type pair struct{ conn net.Conn }

func connect(b *testing.B, l *lab) pair {
	var listener net.Listener
	must(b, netns.Do(l.nodes[1].pod, func() (err error) {
		listener, err = new(net.ListenConfig).Listen(context.Background(), "tcp", netip.AddrPortFrom(podAddress(2, false), 0).String())
		return err
	}))
	var p pair
	eventually(b, func() string {
		err := netns.Do(l.nodes[0].pod, func() (err error) {
			p.conn, err = net.DialTimeout("tcp", listener.Addr().String(), 5*time.Second)
			return err
		})
		if err != nil {
			return err.Error()
		}
		return ""
	})
	far, err := listener.Accept()
	must(b, err)
	must(b, listener.Close())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		buf := make([]byte, 1<<18)
		for {
			n, err := far.Read(buf)
			if err != nil {
				return
			}
			if k := strings.Count(string(buf[max(0, n-1):n]), "b"); k > 0 {
				_, _ = far.Write(buf[n-1 : n])
			}
		}
	}()
	b.Cleanup(func() {
		_ = p.conn.Close()
		_ = far.Close()
		<-ended
	})
	return p
}

// rate sends for a time, until all has arrived, and returns how many megabits a second that was.
func (p pair) rate(b *testing.B, d time.Duration) float64 {
	b.Helper()
	buf := make([]byte, 1<<18)
	sent, began := 0, time.Now()
	for time.Since(began) < d {
		n, err := p.conn.Write(buf)
		must(b, err)
		sent += n
	}
	p.ping(b)
	return float64(sent) * 8 / 1e6 / time.Since(began).Seconds()
}

func (p pair) ping(b *testing.B) {
	b.Helper()
	_, err := p.conn.Write([]byte("b"))
	must(b, err)
	_, err = io.ReadFull(p.conn, make([]byte, 1))
	must(b, err)
}

// rtt returns the median time for a byte there and back, in microseconds.
func (p pair) rtt(b *testing.B, times int) float64 {
	b.Helper()
	all := make([]float64, times)
	for i := range all {
		began := time.Now()
		p.ping(b)
		all[i] = float64(time.Since(began)) / 1e3
	}
	return median(all)
}
