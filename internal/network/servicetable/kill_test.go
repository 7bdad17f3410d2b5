package servicetable

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/balancer"
	"github.com/huskd/husk/internal/network/service"
)

// ownerVariable is set in the process that TestConnectionsAcrossKills kills: the path of the
// node's network namespace.
const ownerVariable = "HUSK_TEST_SERVICES_IN"

// restless is a source whose Services change all the time. The endpoints of n/web are ready or not,
// except for one that always is.
type restless struct{}

func (restless) Run(ctx context.Context, update func(service.Changes), waiting func(error)) error {
	r := rand.New(rand.NewPCG(uint64(os.Getpid()), 14))
	waiting(errors.New("not yet"))
	if !pause(ctx, time.Duration(r.IntN(30))*time.Millisecond) {
		return nil
	}
	changes := service.Changes{Node: here(), Services: one("n/web", web()), Slices: map[string]*service.Slice{}}
	for i := range 100 {
		changes.Services[fmt.Sprint("n/noise-", i)] = noise(i)
	}
	for i := 0; ; i++ {
		endpoints := sliceOf("web", "1", here4, there4, other4)
		for i := range endpoints.Endpoints[1:] {
			e := &endpoints.Endpoints[1+i]
			e.Ready = r.IntN(2) == 0
			e.Serving = e.Ready
		}
		changes.Slices["n/1"] = endpoints
		update(changes)
		waiting(nil)
		if i == 0 {
			fmt.Println("applies")
		}
		if !pause(ctx, time.Duration(1+r.IntN(5))*time.Millisecond) {
			return nil
		}
		name := r.IntN(100)
		changes = service.Changes{Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
		if changes.Services[fmt.Sprint("n/noise-", name)] = noise(name); r.IntN(2) == 0 {
			changes.Services[fmt.Sprint("n/noise-", name)] = nil
		}
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func noise(i int) *service.Service {
	return &service.Service{
		Namespace: "n", Name: fmt.Sprint("noise-", i), ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 1, byte(i)})},
		Ports: []service.Port{{Protocol: service.TCP, Port: 80, NodePort: uint16(31000 + i)}},
	}
}

// own is a process that leads connections until it is killed, or its input ends.
func own(path string) error {
	table, err := Open(path, instance, []netip.Addr{addr("10.88.0.254"), addr("fd88::ff")})
	if err != nil {
		return err
	}
	defer table.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	b := balancer.New(balancer.Config{Source: restless{}, Kernel: table, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	return b.Run(ctx)
}

// owner starts such a process, and returns it with its input once it has something to apply.
func (l *lab) owner() (*exec.Cmd, io.Closer) {
	l.t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run", "^$")
	cmd.Env = append(os.Environ(), ownerVariable+"="+l.node)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(l.t, err)
	out, err := cmd.StdoutPipe()
	must(l.t, err)
	must(l.t, cmd.Start())
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		l.t.Fatalf("what leads connections ends: %v", err)
	}
	return cmd, in
}

// keepAsking has clients ask the Service until stop is closed, over connections that stay and over
// new ones. All must be answered.
func (l *lab) keepAsking(stop <-chan struct{}) (wait func(), opened, asked *atomic.Int64) {
	var running sync.WaitGroup
	opened, asked = new(atomic.Int64), new(atomic.Int64)
	const limit = 30 * time.Second // for packets that are sent again, on a busy machine
	going := func() bool {
		select {
		case <-stop:
			return false
		case <-time.After(time.Millisecond):
			return true
		}
	}
	for _, way := range []struct{ from, to string }{
		{"10.88.0.2", "10.96.0.1:80"}, {"192.168.0.1", "10.96.0.1:80"}, {"192.0.2.7", "192.168.0.1:30080"}, {"192.0.2.7", "198.51.100.1:80"},
		{"10.88.0.1", "10.96.0.1:80"},
	} {
		dial := func(network string) (c net.Conn, err error) {
			err = netns.Do(l.where[addr(way.from)], func() error {
				c, err = (&net.Dialer{Timeout: limit}).Dial(network, way.to)
				return err
			})
			return c, err
		}
		ask := func(c net.Conn) (err error) {
			timeout := limit
			if c.LocalAddr().Network() == "udp" { // an answer is lost if its endpoint is no longer ready
				timeout = 100 * time.Millisecond
			}
			for began := time.Now(); time.Since(began) < limit; {
				_ = c.SetDeadline(time.Now().Add(timeout))
				if _, err = c.Write([]byte("x")); err == nil {
					_, err = c.Read(make([]byte, 100))
				}
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					break
				}
			}
			return err
		}
		running.Go(func() {
			c, err := dial("tcp")
			for ; err == nil && going(); asked.Add(1) {
				err = ask(c)
			}
			if err != nil {
				l.t.Errorf("a connection from %s to %s that stays: %v", way.from, way.to, err)
				return
			}
			c.Close()
		})
		for _, network := range []string{"tcp", "udp"} {
			running.Go(func() {
				for ; going(); opened.Add(1) {
					c, err := dial(network)
					if err == nil {
						err = ask(c)
						c.Close()
					}
					if err != nil {
						l.t.Errorf("a new connection from %s to %s over %s: %v", way.from, way.to, network, err)
						return
					}
				}
			})
		}
	}
	return running.Wait, opened, asked
}

// TestConnectionsAcrossKills kills the process that leads connections again and again, at any
// moment, while clients have connections and open new ones. None may break or fail, and nothing is
// left at the end.
func TestConnectionsAcrossKills(t *testing.T) {
	l := newLab(t)
	for _, e := range []netip.AddrPort{here4, there4, other4} {
		l.echo(e)
	}
	must(t, l.table.Close())
	cmd, in := l.owner()
	kill := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = in.Close()
	}
	defer func() { kill() }()
	for began := time.Now(); l.get("udp", "10.88.0.2", "10.96.0.1:80") != "x"; {
		if time.Since(began) > time.Minute {
			t.Fatal("nothing is led")
		}
	}
	stop := make(chan struct{})
	wait, opened, asked := l.keepAsking(stop)
	const kills = 20
	for range kills {
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		kill()
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond)
		cmd, in = l.owner()
	}
	close(stop)
	wait()
	t.Logf("over %d kills, %d connections were opened and %d requests sent on those that stay", kills, opened.Load(), asked.Load())
	must(t, in.Close())
	must(t, cmd.Wait())
	l.open()
	must(t, l.table.Teardown())
	if left := netnstest.Run(t, l.node, "nft", "list", "ruleset"); strings.TrimSpace(left) != "" {
		t.Errorf("left:\n%s", left)
	}
}

// echo serves at an endpoint until the test ends: what it gets goes back.
func (l *lab) echo(at netip.AddrPort) {
	l.t.Helper()
	must(l.t, netns.Do(l.where[at.Addr()], func() error {
		tcp, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { tcp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				go func() {
					_, _ = io.Copy(c, c)
					c.Close()
				}()
			}
		}()
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { udp.Close() })
		go func() {
			for buf := make([]byte, 16); ; {
				n, from, err := udp.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				_, _ = udp.WriteToUDPAddrPort(buf[:n], from)
			}
		}()
		return nil
	}))
}
