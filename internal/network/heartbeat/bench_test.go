package heartbeat

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
)

// BenchmarkRun is what heartbeats cost a node: the processor time, in thousandths of a processor,
// that it takes to probe peers and to answer as many probes of theirs. The packets travel by veth,
// so most of what receiving them costs the other side is included.
func BenchmarkRun(b *testing.B) {
	hosttest.Root(b)
	for _, peers := range []int{99, 1000, 5000} {
		b.Run(fmt.Sprint(peers), func(b *testing.B) {
			dir := b.TempDir()
			here, there := filepath.Join(dir, "here"), filepath.Join(dir, "there")
			netnstest.Make(b, here)
			netnstest.Make(b, there)
			for _, args := range []string{"link add eth0 type veth peer name eth0 netns " + there, "address add 10.64.0.1/24 dev eth0", "link set eth0 up", "route add 10.96.0.0/11 via 10.64.0.2"} {
				netnstest.IP(b, here, args)
			}
			for _, args := range []string{"link set lo up", "link set eth0 up", "address add 10.64.0.2/24 dev eth0", "route add local 10.96.0.0/11 dev lo"} {
				netnstest.IP(b, there, args)
			}
			startResponder(b, there)
			p, err := Open(here, "self")
			if err != nil {
				b.Fatal(err)
			}
			defer p.Close()
			all := make([]Peer, peers)
			for i := range all {
				to := netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})
				all[i] = Peer{Name: fmt.Sprintf("peer%05d", i), To: to, From: []netip.Addr{to}, Way: backend.VXLAN, MTU: 1450, Paths: []backend.Path{{Way: backend.VXLAN, Link: "eth0"}}}
			}
			p.Watch(netip.MustParseAddr("10.64.0.1"), all)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error)
			go func() { done <- p.Run(ctx, func() {}) }()
			defer func() { cancel(); <-done }()
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				answered := 0
				for _, h := range p.Health() {
					if h.Answered {
						answered++
					}
				}
				if answered == peers {
					break
				}
				if time.Now().After(deadline) {
					b.Fatalf("%d of %d peers have answered", answered, peers)
				}
			}
			var took, used time.Duration
			sent := p.monitor.first
			for b.Loop() {
				began, before := time.Now(), processorTime()
				time.Sleep(5 * time.Second)
				used += processorTime() - before
				took += time.Since(began)
			}
			b.ReportMetric(1000*used.Seconds()/took.Seconds(), "‰-CPU")
			b.ReportMetric(float64(p.monitor.first-sent)/took.Seconds(), "probes/s")
			lost := 0.0
			for _, h := range p.Health() {
				lost += h.Loss / float64(peers)
			}
			b.ReportMetric(100*lost, "%-lost")
		})
	}
}

func processorTime() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// responder is the environment variable that makes the test's executable a responder.
const responder = "HUSK_TEST_RESPONDER"

func TestMain(m *testing.M) {
	if os.Getenv(responder) != "" {
		respond()
	}
	os.Exit(m.Run())
}

func startResponder(b *testing.B, path string) {
	b.Helper()
	cmd := exec.Command("nsenter", "--net="+path, os.Args[0])
	cmd.Env = append(os.Environ(), responder+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // which closes when this process ends
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
}

// respond answers probes to any local address and sends as many of its own, each at a random time.
func respond() {
	socket, err := net.ListenPacket("udp4", fmt.Sprintf("0.0.0.0:%d", Port))
	if err != nil {
		panic(err)
	}
	conn := ipv4.NewPacketConn(socket)
	if err := conn.SetControlMessage(ipv4.FlagDst, true); err != nil {
		panic(err)
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	buf := make([]byte, 1<<16)
	for {
		n, control, from, err := conn.ReadFrom(buf)
		if err != nil {
			panic(err)
		}
		m, ok := parse(buf[:n])
		if !ok || m.kind != kindProbe {
			continue
		}
		as := &ipv4.ControlMessage{Src: control.Dst}
		answer := message{kind: kindAnswer, way: m.way, nonce: m.nonce, seq: m.seq}
		_, _ = conn.WriteTo(answer.encode(), as, from)
		own := message{kind: kindProbe, way: m.way, node: fmt.Sprintf("peer%05d", int(control.Dst.To4()[2])<<8|int(control.Dst.To4()[3]))}
		time.AfterFunc(rand.N(400*time.Millisecond), func() { _, _ = conn.WriteTo(append(own.encode(), make([]byte, n-header)...), as, from) })
	}
}
