package node

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
)

// Delay makes each packet to and from a node take that much longer; 0 ends it. The kernels that
// tests run on needn't have netem: a goroutine copies the packets between the node's port and a
// TAP device, which takes the port's place in the bridge.
func (u *Underlay) Delay(n *Node, by time.Duration) {
	u.t.Helper()
	l := n.Uplink
	l.copier(u).by.Store(int64(by))
}

// BreakChecksums makes a node's network card get the checksums of packets inside UDP packets wrong:
// what leaves the node encapsulated and without its checksum, which the card should fill in, is
// lost. false ends it.
func (u *Underlay) BreakChecksums(n *Node, broken bool) {
	u.t.Helper()
	n.Uplink.copier(u).badSums.Store(broken)
}

// Reorder lets a share of the packets to and from a node be overtaken by the packets of the next
// two milliseconds, and by one at least if any comes in the next patience. The share is 0 to 1.
func (u *Underlay) Reorder(n *Node, share float64) {
	u.t.Helper()
	n.Uplink.copier(u).late.Store(int64(share * 1000))
}

// lateness is how much later than others the packets come that are overtaken, and patience how long
// they wait for a packet that overtakes them: a busy machine sends few.
const (
	lateness = 2 * time.Millisecond
	patience = 50 * time.Millisecond
)

// copier returns what copies the packets of an uplink.
func (l *Uplink) copier(u *Underlay) *delay {
	u.t.Helper()
	if l.delay == nil {
		l.delay = u.newDelay(l)
	}
	return l.delay
}

// delay copies packets between a node's port and a TAP device.
type delay struct {
	by       atomic.Int64
	badSums  atomic.Bool  // see BreakChecksums
	late     atomic.Int64 // of a thousand packets, how many are overtaken
	port     *os.File     // a packet socket
	tap      *os.File
	finished sync.WaitGroup
}

// virtioHeader is the length of the header that the kernel writes before each packet on both sides.
// It says which checksums are missing and how long packets have to be divided.
const virtioHeader = 10

func (u *Underlay) newDelay(l *Uplink) *delay {
	u.t.Helper()
	d := &delay{}
	tap := "t" + l.Name()
	err := netns.Do(u.Net(), func() (err error) {
		d.tap, err = openTAP(tap)
		return err
	})
	if err != nil {
		u.t.Fatal(err)
	}
	u.t.Cleanup(d.close)
	// A virtio header can't describe packets that are to be divided inside a tunnel, and the kernel
	// would drop them. The node divides all of them itself.
	batch(u.t, l.Net, "link set up0 gso_max_segs 1")
	// The router itself must take no packets from the port, such as requests for its MAC.
	u.sysctl("net/ipv6/conf/"+l.Name()+"/disable_ipv6", "1")
	batch(u.t, u.Net(), fmt.Sprintf("link set %s nomaster promisc on arp off", l.Name()), fmt.Sprintf("link set %s mtu %d master %s up", tap, l.Segment.media.MTU, l.Segment.link()))
	err = netns.Do(u.Net(), func() (err error) {
		d.port, err = openPort(l.Name())
		return err
	})
	if err != nil {
		u.t.Fatal(err)
	}
	for _, way := range [][2]*os.File{{d.port, d.tap}, {d.tap, d.port}} {
		d.finished.Go(func() { d.copy(way[0], way[1]) })
	}
	return d
}

func (d *delay) close() {
	_ = d.tap.Close()
	if d.port != nil {
		_ = d.port.Close()
	}
	d.finished.Wait()
}

type delayed struct {
	due    time.Time
	packet []byte
}

// copy copies packets, in their order but for those that are to be late, until a file is closed.
func (d *delay) copy(from, to *os.File) {
	queue := make(chan delayed, 10000)
	defer close(queue)
	d.finished.Go(func() { d.send(queue, to) })
	for buf := make([]byte, virtioHeader+65536+100); ; {
		k, err := from.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || k <= virtioHeader || from == d.port && d.badSums.Load() && lacksInner(buf[:k]) {
			continue
		}
		select {
		case queue <- delayed{time.Now().Add(time.Duration(d.by.Load())), append([]byte(nil), buf[:k]...)}:
		default: // full: lost
		}
	}
}

// send writes the packets of a queue as they fall due. What the other side doesn't take is lost.
func (d *delay) send(queue <-chan delayed, to *os.File) {
	var held []delayed // to be overtaken; due is when they were held
	release := func(after time.Duration) {
		for len(held) > 0 && time.Since(held[0].due) >= after {
			_, _ = to.Write(held[0].packet)
			held = held[1:]
		}
	}
	tick := time.NewTicker(patience / 2)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			release(patience)
		case p, ok := <-queue:
			if !ok {
				return
			}
			time.Sleep(time.Until(p.due))
			if rand.Int64N(1000) < d.late.Load() {
				held = append(held, delayed{time.Now(), p.packet})
				continue
			}
			_, _ = to.Write(p.packet)
			release(lateness)
		}
	}
}

// lacksInner reports whether a packet with a virtio header lacks the checksum of one inside it.
func lacksInner(p []byte) bool {
	const (
		needsChecksum = 1               // VIRTIO_NET_HDR_F_NEEDS_CSUM
		outer         = 14 + 40 + 8 + 8 // bytes before an inner packet at most
	)
	return p[0]&needsChecksum != 0 && int(binary.NativeEndian.Uint16(p[6:])) > outer
}

// openTAP makes a TAP device with virtio headers in the thread's network namespace.
func openTAP(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("open /dev/net/tun: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err == nil {
		err = unix.IoctlSetInt(fd, unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4|unix.TUN_F_TSO6)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("TAP device %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openPort opens a packet socket on a link in the thread's network namespace, with virtio headers.
func openPort(name string) (*os.File, error) {
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network byte order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		err = unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, request)
	}
	for _, option := range []int{unix.PACKET_VNET_HDR, unix.PACKET_IGNORE_OUTGOING} {
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_PACKET, option, 1)
		}
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: int(request.Uint32())})
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("packet socket on %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
