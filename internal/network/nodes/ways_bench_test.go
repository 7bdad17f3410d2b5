package nodes_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
)

// rival is a pair of nodes, on a wire of their own, with a pod each.
type rival struct {
	name  string
	nodes [2]string // paths of network namespaces, with the addresses of wired
	pods  [2]string // likewise
	at    netip.Addr
	// baseline is the rival that this one is compared with.
	baseline string
	rtt      []time.Duration // the median of each round
	rate     []float64       // bytes per second
}

var wired = [2]string{"192.0.2.1", "192.0.2.2"}

// block returns the pod subnet of one of two nodes.
func block(i int) string { return fmt.Sprintf("10.64.%d.0", i+1) }

func newRival(b *testing.B, name, baseline string) *rival {
	b.Helper()
	r := &rival{name: name, baseline: baseline, nodes: [2]string{namespace(b), namespace(b)}}
	netnstest.IP(b, r.nodes[0], "link add eth0 type veth peer name eth0 netns "+r.nodes[1])
	for i, path := range r.nodes {
		netnstest.IP(b, path, "address add "+wired[i]+"/24 dev eth0")
		netnstest.IP(b, path, "link set lo up")
		netnstest.IP(b, path, "link set eth0 up")
		netnstest.IP(b, path, "route add default via 192.0.2.254")
	}
	return r
}

// addPods adds a pod made by hand to each node.
func (r *rival) addPods(b *testing.B, blocks [2]string, mtu int) {
	b.Helper()
	for i, path := range r.nodes {
		r.pods[i] = filepath.Join(b.TempDir(), "net")
		netnstest.Make(b, r.pods[i])
		gateway, own := strings.TrimSuffix(blocks[i], "0")+"1", strings.TrimSuffix(blocks[i], "0")+"2"
		for _, args := range []string{
			fmt.Sprintf("link add pod0 mtu %d type veth peer name eth0 mtu %d netns %s", mtu, mtu, r.pods[i]),
			"address add " + gateway + "/32 dev pod0", "link set pod0 up", "route add " + own + " dev pod0",
		} {
			netnstest.IP(b, path, args)
		}
		for _, args := range []string{"address add " + own + "/24 dev eth0", "link set eth0 up", "route add default via " + gateway} {
			netnstest.IP(b, r.pods[i], args)
		}
		r.at = netip.MustParseAddr(own)
	}
}

// bare are pods and routes made by hand and nothing else, not even connection tracking.
func bare(b *testing.B) *rival {
	r := newRival(b, "bare", "")
	r.addPods(b, [2]string{block(0), block(1)}, 1500)
	r.addRoutes(b)
	return r
}

func (r *rival) addRoutes(b *testing.B) {
	b.Helper()
	for i, path := range r.nodes {
		netnstest.IP(b, path, "route add "+block(1-i)+"/24 via "+wired[1-i])
	}
}

// routes are Husk's nodes and pods with routes made by hand.
func routes(b *testing.B) *rival {
	r := husk(b, "routes", "bare", backend.HostGW)
	for i, path := range r.nodes {
		netnstest.IP(b, path, "route del "+block(1-i)+"/24")
	}
	r.addRoutes(b)
	return r
}

// flannel has the links of flanneld, or ones like these if there is no flanneld. It masquerades, as
// Husk does.
func flannel(b *testing.B) *rival {
	r := newRival(b, "flannel", "")
	blocks := [2]string{block(0), block(1)}
	if program := os.Getenv("HUSK_TEST_FLANNELD"); program != "" {
		for i, path := range r.nodes {
			blocks[i] = startFlanneld(b, program, path)
		}
		for i, path := range r.nodes {
			waitFor(b, "flanneld's route", func() bool {
				return strings.Contains(netnstest.Run(b, path, "ip", "route"), blocks[1-i]+"/24")
			})
		}
	} else {
		for i, path := range r.nodes {
			for _, args := range []string{
				fmt.Sprintf("link add flannel.1 mtu 1450 type vxlan id 1 local %s dev eth0 dstport 8472 nolearning", wired[i]),
				fmt.Sprintf("link set flannel.1 address 02:00:00:00:00:%02d up", i),
				"address add " + block(i) + "/32 dev flannel.1",
				fmt.Sprintf("neigh add %s lladdr 02:00:00:00:00:%02d dev flannel.1 nud permanent", block(1-i), 1-i),
				"route add " + block(1-i) + "/24 via " + block(1-i) + " dev flannel.1 onlink",
			} {
				netnstest.IP(b, path, args)
			}
			netnstest.Run(b, path, "bridge", "fdb", "append", fmt.Sprintf("02:00:00:00:00:%02d", 1-i), "dev", "flannel.1", "dst", wired[1-i])
			netnstest.Run(b, path, "nft", "add table ip f; add chain ip f post { type nat hook postrouting priority srcnat; }; add rule ip f post ip saddr 10.64.0.0/10 ip daddr != 10.64.0.0/10 masquerade")
		}
	}
	r.addPods(b, blocks, 1450)
	return r
}

// startFlanneld starts flanneld in a namespace, with an etcd of the host's loopback that a relay in
// the namespace leads to, and returns its subnet.
func startFlanneld(b *testing.B, program, path string) string {
	b.Helper()
	env := filepath.Join(b.TempDir(), "subnet.env")
	cmd := exec.Command("nsenter", "--net="+path, program, "--etcd-endpoints", flannelStore(b, path), "--iface", "eth0", "--subnet-file", env, "--ip-masq")
	must(b, cmd.Start())
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	subnet := ""
	waitFor(b, "flanneld's subnet", func() bool {
		data, _ := os.ReadFile(env)
		_, rest, ok := strings.Cut(string(data), "FLANNEL_SUBNET=")
		subnet, _, _ = strings.Cut(rest, "/")
		return ok
	})
	return strings.TrimSuffix(subnet, "1") + "0"
}

var flannelEtcd string // the etcd that a benchmark's flannelds share

// flannelStore returns the URL of an etcd as a namespace reaches it.
func flannelStore(b *testing.B, path string) string {
	b.Helper()
	if flannelEtcd == "" {
		flannelEtcd = startEtcd(b)
		b.Cleanup(func() { flannelEtcd = "" })
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{flannelEtcd}, Logger: zap.NewNop(), DialTimeout: 20 * time.Second})
		must(b, err)
		defer client.Close()
		_, err = client.Put(b.Context(), "/coreos.com/network/config", `{"Network":"10.64.0.0/10","Backend":{"Type":"vxlan"}}`)
		must(b, err)
	}
	return relay(b, path, strings.TrimPrefix(flannelEtcd, "http://"))
}

// husk are nodes of Husk.
func husk(b *testing.B, name, baseline string, by backend.Backend, broken ...backend.Way) *rival {
	r := newRival(b, name, baseline)
	var records [2]*peer.Node
	for i := range r.nodes {
		node := fmt.Sprint("n", i+1)
		records[i] = &peer.Node{Version: peer.Version, Name: node, MTU: 1500, VXLAN: backend.VXLANOf(node), Addresses: []netip.Addr{netip.MustParseAddr(wired[i])},
			Blocks: []netip.Prefix{prefix(block(i) + "/24")}}
	}
	for i, path := range r.nodes {
		p := openParts(b, path, subnets[:1], nil)
		underlay, err := p.Underlay()
		must(b, err)
		must(b, p.SetBlocks(b.Context(), records[i].Blocks))
		planned := backend.For(backend.Self{Instance: instance, Backend: by, Record: *records[i], Underlay: underlay, Cluster: subnets[:1],
			Broken: map[string][]backend.Way{records[1-i].Name: broken}}, []*peer.Node{records[1-i]})
		_, err = p.Apply(planned)
		must(b, err)
		p.SetMTU(planned.MTU)
		r.pods[i] = filepath.Join(b.TempDir(), "net")
		netnstest.Make(b, r.pods[i])
		attached, err := p.Attach(b.Context(), pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Namespace: "default", Name: "p", UID: fmt.Sprint(i)}, Netns: r.pods[i], IfName: "eth0"})
		must(b, err)
		r.at = attached.Addresses[0].Addr()
	}
	return r
}

// BenchmarkWays measures ways between two nodes beside routes made by hand and flannel's VXLAN:
// the time of a round trip of one byte by TCP, and the throughput of a stream. They take turns, and
// each is compared with its baseline in the same turn. With HUSK_TEST_FLANNELD, the path of a
// flanneld, that one makes flannel's links.
func BenchmarkWays(b *testing.B) {
	hosttest.Root(b)
	rivals := []*rival{bare(b), routes(b), husk(b, "host-gw", "routes", backend.HostGW), flannel(b), husk(b, "vxlan", "flannel", backend.OnlyVXLAN, backend.Direct)}
	for b.Loop() {
		for range 20 {
			for _, r := range rivals {
				r.round(b)
			}
			slices.Reverse(rivals)
		}
	}
	report(b, rivals)
}

// report reports the best round of each rival, which the other load of the machine has disturbed
// least, and its ratio to that of the baseline.
func report(b *testing.B, rivals []*rival) {
	best := map[string]*rival{}
	for _, r := range rivals {
		best[r.name] = r
		slices.Sort(r.rtt)
		slices.Sort(r.rate)
		b.ReportMetric(float64(r.rtt[0].Nanoseconds())/1000, "µs-"+r.name)
		b.ReportMetric(r.rate[len(r.rate)-1]*8/1e9, "Gb/s-"+r.name)
	}
	for _, r := range rivals {
		if to := best[r.baseline]; to != nil {
			b.ReportMetric(float64(r.rtt[0])/float64(to.rtt[0]), "x-RTT-"+r.name)
			b.ReportMetric(r.rate[len(r.rate)-1]/to.rate[len(to.rate)-1], "x-rate-"+r.name)
		}
	}
}

// round measures a rival once. Blocking calls on threads of their own leave out Go's scheduler, and
// one processor for both ends leaves out how long another one takes to wake up.
func (r *rival) round(b *testing.B) {
	b.Helper()
	var listener int
	must(b, netns.Do(r.pods[1], func() (err error) {
		if listener, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(listener, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(listener, &unix.SockaddrInet4{Port: 5000}), unix.Listen(listener, 1))
	}))
	defer unix.Close(listener)
	var client int
	must(b, netns.Do(r.pods[0], func() (err error) {
		if client, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(unix.SetsockoptInt(client, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1), unix.Connect(client, &unix.SockaddrInet4{Port: 5000, Addr: r.at.As4()}))
	}))
	server, _, err := unix.Accept(listener)
	must(b, err)
	defer unix.Close(server)
	must(b, unix.SetsockoptInt(server, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1))
	const trips = 3000
	ended := make(chan error, 1)
	go func() {
		defer pin()()
		buf := make([]byte, 256<<10)
		for range trips {
			if _, err := unix.Read(server, buf[:1]); err != nil {
				ended <- err
				return
			}
			_, _ = unix.Write(server, buf[:1])
		}
		for { // the stream
			if n, err := unix.Read(server, buf); err != nil || n == 0 {
				ended <- err
				return
			}
		}
	}()
	unpin := pin()
	took := make([]time.Duration, trips)
	buf := make([]byte, 256<<10)
	for i := range took {
		began := time.Now()
		_, _ = unix.Write(client, buf[:1])
		_, err := unix.Read(client, buf[:1])
		must(b, err)
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	r.rtt = append(r.rtt, took[trips/2])
	sent, began := 0, time.Now()
	for time.Since(began) < 300*time.Millisecond {
		n, err := unix.Write(client, buf)
		must(b, err)
		sent += n
	}
	must(b, unix.Shutdown(client, unix.SHUT_WR))
	unpin()
	must(b, <-ended)
	r.rate = append(r.rate, float64(sent)/time.Since(began).Seconds())
	must(b, unix.Close(client))
}

// pin binds the calling goroutine to one processor until the returned function is called.
func pin() (unpin func()) {
	runtime.LockOSThread()
	var before, one unix.CPUSet
	_ = unix.SchedGetaffinity(0, &before)
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	_ = unix.SchedSetaffinity(0, &one)
	return func() {
		_ = unix.SchedSetaffinity(0, &before)
		runtime.UnlockOSThread()
	}
}

func waitFor(b *testing.B, what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatal("not there after a minute: " + what)
		}
	}
}

// relay listens on loopback in a namespace, and passes connections on to an address of the host.
func relay(b *testing.B, path, to string) (url string) {
	b.Helper()
	var listener net.Listener
	must(b, netns.Do(path, func() (err error) {
		listener, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	}))
	b.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			target, err := net.Dial("tcp4", to)
			if err != nil {
				_ = from.Close()
				continue
			}
			copyBoth := func(a, b net.Conn) { _, _ = io.Copy(a, b); _ = a.Close(); _ = b.Close() }
			go copyBoth(from, target)
			go copyBoth(target, from)
		}
	}()
	return "http://" + listener.Addr().String()
}
