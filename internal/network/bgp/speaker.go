package bgp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/companion"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

// Program is the companion. Its argument is the socket that it listens on.
const Program = "husk-bgp"

// Config of a Speaker.
type Config struct {
	Socket string // where the program listens
	AS     uint32 // of this node
	// Peers are the configured ones. Without any, the nodes of the same AS are each other's.
	Peers    []Peer
	Password string // of the sessions with other nodes
	Cluster  []netip.Prefix
	Monitors *os.File // directory of the cgroup for the program, or nil
}

// Speaker starts the program, tells it what to announce, and follows what it has learned.
type Speaker struct {
	cfg     Config
	program string
	send    chan struct{} // has an item when desired has changed

	mu      sync.Mutex // Invariant: guards the fields below.
	desired *Desired
	state   State
	learned map[netip.Prefix][]netip.Addr // nil until the program has settled once
	failure string                        // why there is no connection
}

// Open returns a speaker. It fails if the program isn't installed.
func Open(cfg Config) (*Speaker, error) {
	program, err := companion.Find(Program)
	if err != nil {
		return nil, err
	}
	return &Speaker{cfg: cfg, program: program, send: make(chan struct{}, 1)}, nil
}

// Set sets what this node announces, and to which peers.
func (s *Speaker) Set(self peer.Node, peers []*peer.Node) {
	next := s.cfg.desired(self, peers)
	s.mu.Lock()
	changed := s.desired == nil || !s.desired.Equal(next)
	s.desired = &next
	s.mu.Unlock()
	if changed {
		select {
		case s.send <- struct{}{}:
		default:
		}
	}
}

// desired returns what the program is to do for a node's record and those of the others.
func (c Config) desired(self peer.Node, peers []*peer.Node) Desired {
	d := Desired{Version: Version, AS: c.AS, RouterID: self.Address(false), Local: self.Addresses, Inside: c.Cluster, Peers: c.Peers}
	if !d.RouterID.IsValid() {
		d.RouterID = routerID(self.Name)
	}
	for _, b := range aggregate(self.Blocks) {
		// Linux has no IPv6 routes by IPv4 next hops.
		if b.Addr().Is4() || self.Address(true).IsValid() {
			d.Prefixes = append(d.Prefixes, b)
		}
	}
	if len(c.Peers) > 0 {
		return d
	}
	byAddress := map[netip.Addr]*Node{}
	for _, n := range peers {
		if n.AS != c.AS {
			continue
		}
		// One session carries the routes of both families.
		for _, six := range []bool{false, true} {
			a := n.Address(six)
			if !a.IsValid() || !self.Address(six).IsValid() {
				continue
			}
			if other := byAddress[a]; other != nil {
				// Both records name the address, and one of them may do so to keep the other node's session
				// from being used. It may announce the blocks of either.
				other.Blocks, other.Addresses = slices.Concat(other.Blocks, n.Blocks), slices.Concat(other.Addresses, n.Addresses)
				break
			}
			byAddress[a] = &Node{Blocks: n.Blocks, Addresses: n.Addresses}
			d.Peers = append(d.Peers, Peer{Address: a, AS: n.AS, Password: c.Password, Passive: a.Less(self.Address(six)), GTSM: true, Node: byAddress[a]})
			break
		}
	}
	slices.SortFunc(d.Peers, func(a, b Peer) int { return a.Address.Compare(b.Address) })
	return d
}

// aggregate merges prefixes that together are exactly a larger one, and returns them in order.
func aggregate(list []netip.Prefix) (out []netip.Prefix) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b netip.Prefix) int { return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits()) })
	for _, p := range list {
		if len(out) > 0 && out[len(out)-1].Overlaps(p) {
			continue
		}
		out = append(out, p)
		for len(out) > 1 {
			low, high := out[len(out)-2], out[len(out)-1]
			both := netip.PrefixFrom(low.Addr(), low.Bits()-1)
			if low.Bits() != high.Bits() || both != both.Masked() || !both.Contains(high.Addr()) {
				break
			}
			out = append(out[:len(out)-2], both)
		}
	}
	return out
}

// routerID returns an ID, which looks like an IPv4 address, for a node without one.
func routerID(name string) netip.Addr {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	sum := h.Sum(nil)
	return netip.AddrFrom4([4]byte{sum[0]%223 + 1, sum[1], sum[2], sum[3]})
}

// Learned returns the next hops of prefixes. It is not known until the program has settled once.
func (s *Speaker) Learned() (routes map[netip.Prefix][]netip.Addr, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.learned, s.learned != nil
}

// Notes say what isn't as it should be, one line each.
func (s *Speaker) Notes() (notes []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failure != "" {
		notes = append(notes, "bgp: "+s.failure)
	}
	if s.state.Error != "" {
		notes = append(notes, "bgp: "+s.state.Error)
	}
	for _, session := range s.state.Sessions {
		if session.Why != "" {
			what := map[bool]string{false: "no session", true: "session"}[session.Up]
			notes = append(notes, fmt.Sprintf("bgp: %s with %v of AS %d: %s", what, session.Address, session.AS, session.Why))
		}
	}
	return notes
}

// retry is how long Run waits after the program has ended or couldn't be started.
const retry = time.Second

// Run starts the program or adopts the one that runs, and calls changed when what Learned or Notes
// return has changed, until ctx ends. The program stays.
func (s *Speaker) Run(ctx context.Context, changed func()) error {
	for ctx.Err() == nil {
		err := s.follow(ctx, changed)
		if ctx.Err() != nil {
			break
		}
		s.mu.Lock()
		s.failure = err.Error()
		s.mu.Unlock()
		changed()
		select {
		case <-ctx.Done():
		case <-time.After(retry):
		}
	}
	return nil
}

// follow exchanges messages with the program until the connection ends.
func (s *Speaker) follow(ctx context.Context, changed func()) error {
	conn, err := s.connect()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	defer sending.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	sending.Go(func() { s.sendAll(ctx, conn) })
	in := json.NewDecoder(bufio.NewReader(conn))
	for {
		var state State
		if err := in.Decode(&state); err != nil {
			_ = conn.Close()
			return fmt.Errorf("%s has ended: it is started again", Program)
		}
		if state.Version != Version {
			// Peers keep the routes of a program that is killed. One that is told to stop withdraws them.
			if err := kill(ctx, conn); err != nil {
				return fmt.Errorf("%s is of another version: kill it: %w", Program, err)
			}
			return fmt.Errorf("%s is of another version: it is started again", Program)
		}
		s.update(state)
		changed()
	}
}

func (s *Speaker) sendAll(ctx context.Context, conn net.Conn) {
	out := json.NewEncoder(conn)
	for {
		s.mu.Lock()
		desired := s.desired
		s.mu.Unlock()
		if desired != nil && out.Encode(desired) != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-s.send:
		}
	}
}

// update remembers a state. What was learned before stays until the program has settled.
func (s *Speaker) update(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.failure = state, ""
	if !state.Settled {
		return
	}
	s.learned = make(map[netip.Prefix][]netip.Addr, len(state.Routes))
	for _, r := range state.Routes {
		s.learned[r.Prefix] = r.Via
	}
}

// connect connects to the program, which it starts if it doesn't run.
func (s *Speaker) connect() (net.Conn, error) {
	if conn, err := net.Dial("unix", s.cfg.Socket); err == nil {
		return conn, nil
	}
	if err := os.MkdirAll(filepath.Dir(s.cfg.Socket), 0o700); err != nil {
		return nil, err
	}
	if err := companion.Start(s.cfg.Monitors, s.program, s.cfg.Socket); err != nil {
		return nil, err
	}
	return net.Dial("unix", s.cfg.Socket)
}

// stopTime is how long the program may take to end its sessions.
const stopTime = 5 * time.Second

// Stop ends the program that listens on a socket, if there is one, and its sessions. It returns
// when the program has ended.
func Stop(socket string) error {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("stop %s: %w", Program, err)
		}
		return nil
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	program, err := listenerOf(conn)
	if err != nil {
		return fmt.Errorf("stop %s: %w", Program, err)
	}
	_ = conn.SetDeadline(time.Now().Add(stopTime))
	if err := json.NewEncoder(conn).Encode(Desired{Version: Version, Stop: true}); err != nil {
		return fmt.Errorf("stop %s: %w", Program, err)
	}
	// A program whose states aren't read may block. Its sockets keep the mount that they are on busy
	// for a moment longer than the connection lasts: the kernel closes that first.
	_, err = io.Copy(io.Discard, conn)
	if errors.Is(err, os.ErrDeadlineExceeded) || wait(ctx, program) != nil {
		return fmt.Errorf("stop %s: it still runs after %v", Program, stopTime)
	}
	return nil
}

// kill kills the program that conn is connected to, and returns when it has ended.
func kill(ctx context.Context, conn net.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, stopTime)
	defer cancel()
	program, err := listenerOf(conn)
	if err != nil || program == (oci.Process{}) {
		return err
	}
	if err := pidfd.Signal(program, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return err
	}
	return wait(ctx, program)
}

// wait returns when a process has ended, or with ctx's cause.
func wait(ctx context.Context, p oci.Process) error {
	f, err := pidfd.Open(p)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	} else if err != nil {
		return err
	}
	defer f.Close()
	return pidfd.Wait(ctx, f)
}

// listenerOf returns the process that listens where conn is connected to. It is zero if that
// process has ended.
func listenerOf(conn net.Conn) (p oci.Process, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return p, err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return p, errors.Join(err, failed)
	}
	if p, err = pidfd.Identify(int(peer.Pid)); errors.Is(err, pidfd.ErrGone) {
		err = nil
	}
	return p, err
}
