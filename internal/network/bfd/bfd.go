// Package bfd finds within a second that the path to a neighbour on the same link is dead:
// Bidirectional Forwarding Detection in asynchronous mode (RFC 5880, RFC 5881), without echo and
// authentication.
//
// It says what it has found and ends nothing itself: what depends on the path decides that.
package bfd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// Port is where packets go (RFC 5881).
	Port = 3784
	// HopLimit is the TTL or hop limit of all packets. What a router has forwarded has less.
	HopLimit = 255
	// sourceMin and sourceMax are the ports from which packets come (RFC 5881, section 4).
	sourceMin, sourceMax = 49152, 65535
	// networkControl is the traffic class CS6.
	networkControl = 0xc0
)

// Config is the same for all sessions.
type Config struct {
	// Interval is the time between packets of a session that is up, unless the peer wants longer.
	Interval time.Duration
	// Multiplier is how many packets in a row have to be missing for the path to be dead.
	Multiplier uint8
}

// Failure is a session that was up and failed.
type Failure struct {
	Peer netip.Addr
	// Seen is when the last packet came in the session. A conversation with the peer that began
	// later says more about the path than the failure does.
	Seen time.Time
	Why  string // what happened
}

// Detector has sessions with peers.
type Detector struct {
	cfg     Config
	changed func()
	sockets []*net.UDPConn
	reading sync.WaitGroup

	mu       sync.Mutex // Invariant: guards the fields below.
	sessions map[netip.Addr]*runner
	failures []Failure
}

// Listen returns a detector that receives packets at this node's addresses. Control is called for
// each socket before it is bound, and has to make it take packets of HopLimit only. Changed is
// called when Failures or Up may return something new. It must not block.
func Listen(cfg Config, local []netip.Addr, control func(network, address string, c syscall.RawConn) error, changed func()) (*Detector, error) {
	d := &Detector{cfg: cfg, changed: changed, sessions: map[netip.Addr]*runner{}}
	config := net.ListenConfig{Control: control}
	for _, a := range local {
		conn, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a, Port).String())
		if err != nil {
			d.Close()
			return nil, fmt.Errorf("listen on UDP port %d of %v: %w: does another program do BFD on this node?", Port, a, err)
		}
		socket := conn.(*net.UDPConn)
		d.sockets = append(d.sockets, socket)
		d.reading.Go(func() { d.read(socket) })
	}
	return d, nil
}

// Add begins a session between an address of this node and a peer, unless there is one.
func (d *Detector) Add(local, peer netip.Addr) error {
	d.mu.Lock()
	_, ok := d.sessions[peer]
	d.mu.Unlock()
	if ok {
		return nil
	}
	conn, err := sender(local)
	if err != nil {
		return fmt.Errorf("open a socket for BFD with %v: %w", peer, err)
	}
	r := &runner{
		peer: peer, conn: conn, to: net.UDPAddrFromAddrPort(netip.AddrPortFrom(peer, Port)),
		packets: make(chan packet, 1), stop: make(chan struct{}), ended: make(chan struct{}),
	}
	r.session = newSession(d.cfg, rand.Uint32N(1<<32-1)+1)
	d.mu.Lock()
	d.sessions[peer] = r
	d.mu.Unlock()
	go d.run(r)
	return nil
}

// Remove ends the session with a peer if there is one. The peer is told that this isn't a failure.
func (d *Detector) Remove(peer netip.Addr) {
	d.mu.Lock()
	r := d.sessions[peer]
	delete(d.sessions, peer)
	d.failures = slices.DeleteFunc(d.failures, func(f Failure) bool { return f.Peer == peer })
	d.mu.Unlock()
	if r != nil {
		close(r.stop)
		<-r.ended
	}
}

// Up reports whether the session with a peer is up.
func (d *Detector) Up(peer netip.Addr) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.sessions[peer]
	return r != nil && r.session.state == up
}

// Failures returns what has failed since the last call, in order.
func (d *Detector) Failures() []Failure {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.failures
	d.failures = nil
	return out
}

// Close ends all sessions, as Remove does.
func (d *Detector) Close() {
	d.mu.Lock()
	var peers []netip.Addr
	for a := range d.sessions {
		peers = append(peers, a)
	}
	d.mu.Unlock()
	for _, a := range peers {
		d.Remove(a)
	}
	for _, s := range d.sockets {
		_ = s.Close()
	}
	d.reading.Wait()
}

// read passes on the packets of peers until the socket is closed.
func (d *Detector) read(socket *net.UDPConn) {
	buf := make([]byte, 256)
	for {
		n, from, err := socket.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		} else if err != nil {
			continue
		}
		p, err := decode(buf[:n])
		if err != nil {
			continue
		}
		d.mu.Lock()
		r := d.sessions[from.Addr().Unmap()]
		d.mu.Unlock()
		if r == nil {
			continue
		}
		select {
		case r.packets <- p:
		case <-r.ended:
		}
	}
}

// runner gives a session its clock and its socket.
type runner struct {
	peer        netip.Addr
	conn        net.PacketConn
	to          net.Addr
	packets     chan packet
	stop, ended chan struct{}
	session     *session // Invariant: guarded by Detector.mu.
}

func (d *Detector) run(r *runner) {
	defer close(r.ended)
	defer r.conn.Close()
	send, expiry := time.NewTimer(0), time.NewTimer(time.Hour)
	defer send.Stop()
	defer expiry.Stop()
	var sent time.Time
	write := func(p packet) { _, _ = r.conn.WriteTo(p.encode(), r.to) } // BFD is about lost packets
	for {
		var failure string
		var answer, periodic bool
		var p packet
		select {
		case <-r.stop:
			d.mu.Lock()
			r.session.set(adminDown, diagAdminDown)
			last := r.session.packet(false)
			d.mu.Unlock()
			write(last)
			return
		case p = <-r.packets:
		case <-send.C:
			periodic = true
		case <-expiry.C:
		}
		now := time.Now()
		d.mu.Lock()
		s := r.session
		before, seen := s.state, s.seen
		switch {
		case p.mine != 0:
			answer, failure = s.receive(p, now)
		case periodic:
		default:
			// A packet that has come in time may have waited for this goroutine.
			if at := s.deadline(); len(r.packets) == 0 && !at.IsZero() && !now.Before(at) {
				failure = s.expire()
			}
		}
		if failure != "" {
			d.failures = append(d.failures, Failure{Peer: r.peer, Seen: seen, Why: failure})
		}
		changed := s.state != before
		interval, deadline := s.interval(), s.deadline()
		out, reply := s.packet(false), s.packet(true)
		d.mu.Unlock()
		if answer {
			write(reply)
		}
		if periodic && interval > 0 || changed {
			write(out)
			sent = now
		}
		if !deadline.IsZero() {
			expiry.Reset(max(time.Until(deadline), 0))
		}
		switch {
		case interval == 0:
			send.Stop()
		case periodic || changed:
			send.Reset(jittered(interval, d.cfg.Multiplier))
		case p.mine != 0 && time.Since(sent) > interval:
			send.Reset(0) // it was stopped, or the peer takes packets more often now
		}
		if changed {
			d.changed()
		}
	}
}

// jittered returns an interval less up to a quarter, so that nodes don't send in step (RFC 5880,
// section 6.8.7). A single missing packet must not be one that comes late.
func jittered(interval time.Duration, multiplier uint8) time.Duration {
	least, most := 0.75, 1.0
	if multiplier == 1 {
		most = 0.9
	}
	return time.Duration(float64(interval) * (least + rand.Float64()*(most-least)))
}

// sender returns a socket that sends from a port of its own and receives nothing. It isn't
// connected, since that fails while there is no route.
func sender(local netip.Addr) (conn net.PacketConn, err error) {
	level, ttl, class := unix.IPPROTO_IP, unix.IP_TTL, unix.IP_TOS
	if local.Is6() {
		level, ttl, class = unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, unix.IPV6_TCLASS
	}
	none := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = errors.Join(
				unix.SetsockoptInt(int(fd), level, ttl, HopLimit), unix.SetsockoptInt(int(fd), level, class, networkControl),
				unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &none}),
			)
		}), err)
	}}
	for range 16 {
		port := uint16(sourceMin + rand.IntN(sourceMax-sourceMin+1))
		conn, err = config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(local, port).String())
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	return conn, err
}
