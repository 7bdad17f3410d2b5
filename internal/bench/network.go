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
	podnet "github.com/huskd/husk/internal/network"
	words "github.com/huskd/husk/internal/pod"
)

// The operations of the workload net, by their names.
const (
	Namespace  = "make a namespace"
	Attach     = "ADD"
	Detach     = "DEL"
	RoundTrip  = "round trip, 1 byte by TCP"
	Throughput = "one TCP stream"
)

// What the workload net compares.
const (
	BarePair = "bare veth pair"
	BuiltIn  = "husk's network"
)

// subnets of the pods of the workload net, whose node is a namespace of its own.
var subnets = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64")}

// network measures the built-in network in namespaces of its own: the node, and
// pods on it.
func network(ctx context.Context, s *session) (err error) {
	all, end := s.compare("net", BarePair, BuiltIn)
	defer end()
	node, err := s.namespace("node")
	if err != nil {
		return err
	}
	n, err := podnet.Open(ctx, podnet.Config{
		Instance: words.InstanceOf(s.dir), Dir: filepath.Join(s.dir, "network"), Netns: node,
		Subnets: subnets, MTU: 1500, Quarantine: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	husk := all[1]
	s.turns(ctx, all[1:], s.Samples, func(r *record, i int) error { return s.attachOne(ctx, n, r, i) })
	if stopped(ctx) != nil {
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
	wires := map[*record]*wire{all[0]: bare, husk: pods}
	flow := map[*record][]float64{}
	s.turns(ctx, all, s.Samples, func(r *record, _ int) error {
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

// namespace makes a network namespace of that name in the run's directory.
func (s *session) namespace(name string) (path string, err error) {
	path = filepath.Join(s.dir, pinPrefix+name)
	return path, netns.Create(netns.Pins{Net: path})
}

// attachOne attaches one pod and detaches it again.
func (s *session) attachOne(ctx context.Context, n *podnet.Network, r *record, i int) error {
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

func attachment(path string, i int) words.Attachment {
	return words.Attachment{Sandbox: words.NewID(), Pod: words.Ref{Namespace: namespace, Name: fmt.Sprint("pod", i)}, Netns: path, IfName: "eth0"}
}

// wire is two namespaces and the address of the second.
type wire struct {
	from, to string
	address  netip.Addr
}

// bareWire is a veth pair between two namespaces, with an address at each end.
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
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: wireName, MTU: 1500}, PeerName: wireName, PeerNamespace: netlink.NsFd(fd)}
		if err := netlink.LinkAdd(pair); err != nil {
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

// wireName is that of both ends of the bare pair, each in its namespace.
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

// podWire is two pods of the built-in network.
func (s *session) podWire(ctx context.Context, n *podnet.Network) (*wire, error) {
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

// serve accepts one connection at the wire's far end, handles it, and returns
// the near end of it.
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
		near, err = net.DialTimeout("tcp", listener.Addr().String(), connectTime)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return near, near.SetDeadline(time.Now().Add(callTime))
}

// tripsPerTurn is how many round trips are taken before the other's turn.
const tripsPerTurn = 50

func (w *wire) roundTrips(r *record) error {
	near, err := w.serve(func(far net.Conn) { _, _ = io.Copy(far, far) })
	if err != nil {
		return err
	}
	defer near.Close()
	var b [1]byte
	for range tripsPerTurn {
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

// stream returns how many gigabits a second arrive.
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
