package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network"
	huskpod "github.com/huskd/husk/internal/pod"
)

// Names of the operations of the workload net.
const (
	Namespace  = "create a namespace"
	Attach     = "ADD"
	Detach     = "DEL"
	RoundTrip  = "TCP round trip, 1 byte"
	Throughput = "one TCP stream"
)

// The networks that the workload net compares.
const (
	BareVeth = "bare veth pair"
	BuiltIn  = "husk's network"
)

// subnets of the pods in the workload net, whose node is a namespace.
var subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}

// benchNetwork benchmarks the built-in network, with namespaces for the node and its pods.
func benchNetwork(ctx context.Context, s *session) (err error) {
	all, end := s.newComparison("net", BareVeth, BuiltIn)
	defer end()
	node, err := s.namespace("node")
	if err != nil {
		return err
	}
	n, err := network.Open(ctx, network.Config{
		Instance: huskpod.InstanceOf(s.dir), Dir: filepath.Join(s.dir, "network"), Netns: node,
		Subnets: subnets, MTU: 1500, Quarantine: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	husk := all[1]
	s.interleave(ctx, all[1:], s.Samples, func(r *recorder, i int) error { return s.attachOne(ctx, n, r, i) })
	if ctx.Err() != nil {
		return nil
	}
	bare, err := s.bareWire()
	if err != nil {
		return err
	}
	pods, err := s.podWire(ctx, n)
	if err != nil {
		return err
	}
	wires := map[*recorder]*wire{all[0]: bare, husk: pods}
	flow := map[*recorder][]float64{}
	s.interleave(ctx, all, s.Samples, func(r *recorder, _ int) error {
		err := wires[r].roundTrips(r)
		if err == nil {
			var rate float64
			rate, err = wires[r].stream()
			flow[r] = append(flow[r], rate)
		}
		if err != nil {
			r.fail(RoundTrip, err)
		}
		return err
	})
	for _, r := range all {
		slices.Sort(flow[r])
		r.figure(Throughput, "Gbit/s", report.Quantile(flow[r], 0.5), nil)
	}
	return nil
}

// namespace creates a network namespace pinned in the run's directory.
func (s *session) namespace(name string) (path string, err error) {
	path = filepath.Join(s.dir, pinPrefix+name)
	return path, netns.Create(netns.Pins{Net: path})
}

// attachOne attaches one pod and detaches it again.
func (s *session) attachOne(ctx context.Context, n *network.Network, r *recorder, i int) error {
	ctx = context.WithoutCancel(ctx)
	var path string
	if err := r.time(Namespace, func() (err error) {
		path, err = s.namespace("pod")
		return err
	}); err != nil {
		return err
	}
	a := attachment(path, i)
	err := r.time(Attach, func() error {
		_, err := n.Attach(ctx, a)
		return err
	})
	if err == nil {
		err = r.time(Detach, func() error { return n.Detach(ctx, a) })
	}
	return errors.Join(err, netns.Remove(path))
}

func attachment(path string, i int) huskpod.Attachment {
	return huskpod.Attachment{Sandbox: huskpod.NewID(), Pod: huskpod.Ref{Namespace: namespace, Name: fmt.Sprint("pod", i)}, Netns: path, IfName: "eth0"}
}

// wire connects two namespaces. address is that of the second.
type wire struct {
	from, to string
	address  netip.Addr
}

// bareWire returns a veth pair between two namespaces.
func (s *session) bareWire() (*wire, error) {
	from, err := s.namespace("bare-a")
	if err != nil {
		return nil, err
	}
	to, err := s.namespace("bare-b")
	if err != nil {
		return nil, err
	}
	w := &wire{from: from, to: to, address: netip.MustParseAddr("192.0.2.2")}
	err = netns.Do(from, func() error {
		fd, err := unix.Open(to, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: wireName, MTU: 1500}, PeerName: wireName, PeerNamespace: netlink.NsFd(fd)}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return up("192.0.2.1/24")
	})
	if err == nil {
		err = netns.Do(to, func() error { return up("192.0.2.2/24") })
	}
	if err != nil {
		return nil, fmt.Errorf("bare veth pair: %w", err)
	}
	return w, nil
}

// wireName is the name of both ends of the veth pair, each in its namespace.
const wireName = "eth0"

func up(address string) error {
	link, err := netlink.LinkByName(wireName)
	if err != nil {
		return err
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		return err
	}
	return errors.Join(netlink.AddrAdd(link, a), netlink.LinkSetUp(link))
}

// podWire attaches two pods to the built-in network.
func (s *session) podWire(ctx context.Context, n *network.Network) (*wire, error) {
	w := &wire{}
	for i, path := range []*string{&w.from, &w.to} {
		var err error
		if *path, err = s.namespace(fmt.Sprint("pod-", i)); err != nil {
			return nil, err
		}
		at, err := n.Attach(ctx, attachment(*path, i))
		if err != nil {
			return nil, err
		}
		w.address = at.Addresses[0].Addr()
	}
	return w, nil
}

// serve accepts one connection at the wire's far end, handles it, and returns its near end.
func (w *wire) serve(handle func(net.Conn)) (near net.Conn, err error) {
	var listener net.Listener
	if err := netns.Do(w.to, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(w.address, 0).String())
		return err
	}); err != nil {
		return nil, err
	}
	go func() {
		defer listener.Close()
		if far, err := listener.Accept(); err == nil {
			defer far.Close()
			handle(far)
		}
	}()
	err = netns.Do(w.from, func() (err error) {
		near, err = net.DialTimeout("tcp", listener.Addr().String(), connectTimeout)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return near, near.SetDeadline(time.Now().Add(callTimeout))
}

// tripsPerRound is how many round trips are measured in each turn.
const tripsPerRound = 50

func (w *wire) roundTrips(r *recorder) error {
	near, err := w.serve(func(far net.Conn) { _, _ = io.Copy(far, far) })
	if err != nil {
		return err
	}
	defer near.Close()
	var b [1]byte
	for range tripsPerRound {
		began := time.Now()
		if _, err := near.Write(b[:]); err != nil {
			return err
		}
		if _, err := near.Read(b[:]); err != nil {
			return err
		}
		r.sample(RoundTrip, time.Since(began), nil)
	}
	return nil
}

// streamTime is how long a stream is measured in each turn.
const streamTime = 200 * time.Millisecond

// stream returns the throughput of a TCP stream in gigabits per second.
func (w *wire) stream() (float64, error) {
	arrived := make(chan int64, 1)
	near, err := w.serve(func(far net.Conn) {
		n, _ := io.Copy(io.Discard, far)
		arrived <- n
	})
	if err != nil {
		return 0, err
	}
	defer near.Close()
	chunk := make([]byte, 128<<10)
	began := time.Now()
	for time.Since(began) < streamTime {
		if _, err := near.Write(chunk); err != nil {
			return 0, err
		}
	}
	if err := near.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	n := <-arrived
	return float64(n) * 8 / 1e9 / time.Since(began).Seconds(), nil
}
