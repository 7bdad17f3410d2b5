// Package heartbeat finds out which ways to other nodes carry packets.
//
// It sends UDP packets between the addresses that nodes have in their own pod subnets, because
// networks may treat these addresses differently from the nodes' own: clouds drop packets with
// sources that they don't know. Most packets are small, and some as large as the largest that pods
// send. Those by the way in use are routed like any other. Those by another way go straight to its
// link, through a packet socket, as the routing table doesn't know that way.
package heartbeat

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// Port is the UDP port on which nodes answer, on their addresses in their own pod subnets.
const Port = plan.ProbePort

// Peer is a node to probe.
type Peer struct {
	Name  string
	To    netip.Addr // its address in its own pod subnet
	Way   backend.Way
	MTU   int            // of the largest packets that pods send
	Paths []backend.Path // all ways to it, the preferred first
	// From are the addresses from which it may probe this node.
	From []netip.Addr
}

func (p Peer) target() Target {
	t := Target{Name: p.Name, Way: p.Way, MTU: p.MTU}
	for _, path := range p.Paths {
		t.Ways = append(t.Ways, path.Way)
	}
	return t
}

// Prober probes the peers and answers their probes.
type Prober struct {
	netns  string
	node   string // the name of this one
	nonce  [8]byte
	links  *nlsock.Conn
	packet int // the packet socket

	mu      sync.Mutex // Invariant: guards the fields below, and the monitor's content.
	monitor *Monitor
	peers   map[string]Peer
	watched []Peer // the peers in the order of their names
	senders []netip.Addr
	from    netip.Addr
	conn    *socket // bound to from; nil if that isn't possible yet
}

// Open returns the prober of a node in the network namespace at path; an empty path means the
// process's own. It sends nothing before Run.
func Open(path, node string) (*Prober, error) {
	p := &Prober{netns: path, node: node, packet: -1, monitor: NewMonitor(), peers: map[string]Peer{}}
	_, _ = rand.Read(p.nonce[:]) // never fails
	err := p.inNode(func() (err error) {
		if p.links, err = nlsock.Dial(unix.NETLINK_ROUTE); err != nil {
			return err
		}
		// Protocol 0: it only sends.
		p.packet, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		return os.NewSyscallError("open packet socket", err)
	})
	if err != nil {
		return nil, fmt.Errorf("heartbeat: %w", errors.Join(err, p.Close()))
	}
	return p, nil
}

// Close closes the sockets.
func (p *Prober) Close() error {
	var errs []error
	if p.links != nil {
		errs = append(errs, p.links.Close())
	}
	if p.packet >= 0 {
		errs = append(errs, unix.Close(p.packet))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(errs, p.hangUp())...)
}

func (p *Prober) inNode(do func() error) error {
	if p.netns == "" {
		return do()
	}
	return netns.Do(p.netns, do)
}

// Watch replaces the peers to probe, which are in the order of their names. from is this node's
// address in its own pod subnet, of the same family as the peers'. The time that it takes depends
// on how many peers have changed. The caller must not modify the peers afterwards.
func (p *Prober) Watch(from netip.Addr, peers []Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.watched
	for i := range peers {
		one := &peers[i]
		for len(old) > 0 && old[0].Name < one.Name {
			p.remove(old[0].Name)
			old = old[1:]
		}
		if len(old) > 0 && old[0].Name == one.Name {
			same := old[0].equal(one)
			old = old[1:]
			if same {
				continue
			}
		}
		p.monitor.Put(one.target())
		p.peers[one.Name] = *one
	}
	for i := range old {
		p.remove(old[i].Name)
	}
	p.watched = peers
	if from != p.from {
		_ = p.hangUp()
	}
	p.from = from
	if p.setSenders(peers) && p.conn != nil && filter(p.conn.fd, p.wanted()) != nil {
		_ = p.hangUp() // it is opened again with the filter
	}
}

// setSenders sets who may probe this node. It reports whether that has changed.
func (p *Prober) setSenders(peers []Peer) (changed bool) {
	senders := make([]netip.Addr, 0, len(peers))
	for i := range peers {
		senders = append(senders, peers[i].From...)
	}
	changed = !slices.Equal(senders, p.senders)
	p.senders = senders
	return changed
}

func (p *Prober) wanted() []bpf.Instruction { return wanted(p.nonce, p.from.Is6(), p.senders) }

func (p *Prober) remove(name string) {
	p.monitor.Remove(name)
	delete(p.peers, name)
}

func (p *Peer) equal(o *Peer) bool {
	samePaths := len(p.Paths) == len(o.Paths) && (len(p.Paths) == 0 || &p.Paths[0] == &o.Paths[0] || slices.Equal(p.Paths, o.Paths))
	return samePaths && slices.Equal(p.From, o.From) && p.Name == o.Name && p.To == o.To && p.Way == o.Way && p.MTU == o.MTU
}

// Health returns what is known of each peer.
func (p *Prober) Health() map[string]Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.monitor.Health()
}

// Impaired returns what is known of the peers that have broken ways or a limit.
func (p *Prober) Impaired() map[string]Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.monitor.Impaired()
}

// tick is how often Run looks for probes to send and for what has come. Round-trip times don't
// depend on it.
const tick = 50 * time.Millisecond

// Run probes until ctx ends. It calls changed when the ways that work to a peer, or the size of the
// packets that reach it, have changed.
func (p *Prober) Run(ctx context.Context, changed func()) error {
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.hangUp()
		case <-clock.C:
			if p.beat() {
				changed()
			}
		}
	}
}

// hangUp closes the socket if there is one. The caller holds p.mu.
func (p *Prober) hangUp() error {
	if p.conn == nil {
		return nil
	}
	err := p.conn.close()
	p.conn = nil
	return err
}

// beat takes what has come and what has expired, and sends what is due.
func (p *Prober) beat() (found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil && !p.listen() {
		return false
	}
	for range maxReceived {
		r, ok := p.conn.receive()
		if !ok {
			break
		}
		found = p.take(r) || found
	}
	now := time.Now()
	found = p.monitor.Expire(now) || found
	for _, probe := range p.monitor.Due(now) {
		// A packet that can't be sent is lost like any other.
		peer := p.peers[probe.Peer]
		m := message{kind: kindProbe, way: probe.Way, nonce: p.nonce, seq: probe.Seq, node: p.node, summed: probe.Summed}
		p.sendBy(peer, m, probe.Size-headers(peer.To))
	}
	return found
}

// maxReceived is how many datagrams are taken at once: whoever sends more loses them.
const maxReceived = 1000

// listen opens the socket. It returns false if the address isn't there, as before the node's first
// block.
func (p *Prober) listen() bool {
	if !p.from.IsValid() {
		return false
	}
	err := p.inNode(func() (err error) {
		p.conn, err = openSocket(p.from, p.wanted())
		return err
	})
	return err == nil
}

// sendBy sends a message to a peer by its way, as a payload of a size or larger if it needs more.
// Packets by the way in use have their checksums only if they are summed, others always. The caller
// holds p.mu.
func (p *Prober) sendBy(peer Peer, m message, size int) {
	message := m.encode()
	if m.way == peer.Way && !m.summed {
		p.conn.send(message, size, netip.AddrPortFrom(peer.To, Port))
		return
	}
	i := slices.IndexFunc(peer.Paths, func(path backend.Path) bool { return path.Way == m.way })
	if i < 0 || p.from.Is4() != peer.To.Is4() {
		return
	}
	path := peer.Paths[i]
	link, err := p.linkIndex(path.Link)
	if err != nil {
		return
	}
	if path.Via.IsValid() {
		if path.MAC, err = p.neighbour(link, path.Via); err != nil {
			// Any packet to the neighbour makes the kernel ask for its MAC.
			_ = p.inNode(func() error {
				conn, err := net.Dial("udp", netip.AddrPortFrom(path.Via, Port).String())
				if err == nil {
					_, _ = conn.Write(nil)
					_ = conn.Close()
				}
				return nil
			})
			return
		}
	}
	to := &unix.SockaddrLinklayer{Protocol: ethertype(peer.To), Ifindex: link, Halen: 6}
	copy(to.Addr[:], path.MAC[:])
	_ = unix.Sendto(p.packet, datagram(p.from, peer.To, append(message, make([]byte, max(0, size-len(message)))...)), 0, to)
}

// take answers a probe or takes an answer. It reports whether this has changed what works. The
// caller holds p.mu.
func (p *Prober) take(r received) (found bool) {
	m, ok := parse(r.data)
	switch {
	case !ok:
	case m.kind == kindProbe && r.from.Port() == Port:
		p.answer(m, r)
	case m.kind == kindAnswer && m.nonce == p.nonce:
		found = p.monitor.Answer(m.seq, m.held, r.at)
	}
	return found
}

// answer answers a probe by the way by which it came. The way in use may be one that doesn't reach
// the peer, as when a NAT is between the nodes. A probe that is shorter than its answer, which no
// node sends, gets none: its source may be forged. The caller holds p.mu.
func (p *Prober) answer(m message, r received) {
	from := r.from.Addr()
	peer, known := p.peers[m.node]
	if !known || peer.To != from { // it may know this node sooner than the other way round
		peer = Peer{To: from, Way: m.way}
	}
	answer := message{kind: kindAnswer, way: m.way, nonce: m.nonce, seq: m.seq, held: time.Since(r.at), summed: m.summed}
	if len(r.data) >= answerLength {
		p.sendBy(peer, answer, 0)
	}
}
