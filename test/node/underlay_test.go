package node

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
)

// ping sends three packets of a size to an address, from a host, and reports how many came back.
func ping(t *testing.T, n *Node, to netip.Addr, size int, more ...string) int {
	t.Helper()
	header := 28
	if to.Is6() {
		header = 48
	}
	r := n.Run("ping", append([]string{"-n", "-c3", "-i0.02", "-W0.3", "-M", "do", "-s", fmt.Sprint(size - header), to.String()}, more...)...)
	var sent, received int
	for line := range strings.Lines(r.Stdout) {
		if k, _ := fmt.Sscanf(line, "%d packets transmitted, %d received", &sent, &received); k == 2 {
			return received
		}
	}
	if !strings.Contains(r.Stderr, "unreachable") {
		t.Fatalf("ping: %s%s", r.Stdout, r.Stderr)
	}
	return 0
}

// reach checks whether a reaches b with packets of a size, in all families that they have.
func reach(t *testing.T, a, b *Node, size int, want bool) {
	t.Helper()
	for _, p := range b.Uplink.Addresses {
		if want {
			// The kernel asks for an address again only a second after an answer was lost.
			Eventually(t, 10*time.Second, func() string {
				if ping(t, a, p.Addr(), size) == 0 {
					return fmt.Sprintf("%s doesn't reach %v of %s with %d bytes", a.name, p.Addr(), b.name, size)
				}
				return ""
			})
		} else if got := ping(t, a, p.Addr(), size); got > 0 {
			t.Errorf("%s reaches %v of %s with %d bytes", a.name, p.Addr(), b.name, size)
		}
	}
}

func TestUnderlay(t *testing.T) {
	t.Parallel()
	u := NewUnderlay(t)
	left, right := u.Segment(Media{}), u.Segment(Media{MTU: 9000})
	a, b, c := left.Node(), left.Node(), right.Node()
	if got := b.Must("hostname"); got != "n2\n" {
		t.Errorf("hostname %q", got)
	}
	for _, pair := range [][2]*Node{{a, b}, {b, a}, {a, c}, {c, a}, {c, b}} {
		reach(t, pair[0], pair[1], 1500, true)
	}
	t.Log("faults within a segment and through the router")
	for _, other := range []*Node{b, c} {
		u.Cut(a, other)
		reach(t, a, other, 1000, false)
		reach(t, other, a, 1000, false)
		u.Swallow(a, other, 1400)
		u.Heal(a, other)
		reach(t, a, other, 1500, true)
		u.Swallow(a, other, 1400)
		reach(t, a, other, 1400, true)
		reach(t, other, a, 1401, false)
		u.Heal(a, other)
		u.Drop(a, other, 0.5)
		if got := pingMany(t, a, other); got < 10 || got > 90 {
			t.Errorf("with half of the packets dropped each way, %d of 200 came back", got)
		}
	}
	reach(t, b, c, 1500, true) // is not concerned
	u.Heal(a, b)
	u.Heal(a, c)
	u.Isolate(a)
	reach(t, a, b, 1000, false)
	u.Join(a)
	reach(t, a, b, 1500, true)

	t.Log("MTU, addresses, reboot")
	a.Uplink.SetMTU(1300)
	reach(t, a, b, 1300, true)
	was := b.Uplink.Addresses
	b.Uplink.Renumber(func() { reach(t, a, b, 1300, true) })
	reach(t, a, b, 1300, true)
	for _, p := range was {
		if got := ping(t, a, p.Addr(), 1000); got > 0 {
			t.Errorf("%v still answers", p)
		}
	}
	b.Reboot()
	reach(t, a, b, 1300, true)
	reach(t, b, c, 1500, true)
	a.Uplink.Renumber(nil)
	reach(t, c, a, 1300, true)
}

func TestUnderlayDelay(t *testing.T) {
	t.Parallel()
	u := NewUnderlay(t)
	s := u.Segment(Media{})
	a, b := s.Node(), s.Node()
	reach(t, a, b, 1500, true)
	u.Delay(b, 50*time.Millisecond)
	reach(t, a, b, 1500, true)
	fastest := func() time.Duration {
		least := time.Hour
		for line := range strings.Lines(a.Must("ping", "-n", "-c5", "-i0.02", "-W5", b.Uplink.Addresses[0].Addr().String())) {
			var ms float64
			if _, after, ok := strings.Cut(line, "time="); ok {
				_, _ = fmt.Sscan(after, &ms)
				least = min(least, time.Duration(ms*float64(time.Millisecond)))
			}
		}
		return least
	}
	if got := fastest(); got < 100*time.Millisecond || got == time.Hour {
		t.Errorf("delayed by 50 ms each way, a reply takes %v", got)
	}
	// TCP sends packets without checksums and longer than the MTU to a link of the same host.
	u.Delay(b, time.Millisecond)
	streamTCP(t, a, b)
	u.Cut(a, b)
	reach(t, a, b, 1000, false)
	u.Heal(a, b)
	reach(t, a, b, 1000, true)
	u.Delay(b, 0)
	reach(t, a, b, 1500, true)
}

func TestUnderlayReorder(t *testing.T) {
	t.Parallel()
	u := NewUnderlay(t)
	s := u.Segment(Media{})
	a, b := s.Node(), s.Node()
	reach(t, a, b, 1500, true)
	overtaken := func() (count, replies int) {
		last := 0
		for line := range strings.Lines(a.Must("ping", "-n", "-c200", "-i0.002", "-W5", b.Uplink.Addresses[0].Addr().String())) {
			var seq int
			if _, after, ok := strings.Cut(line, "icmp_seq="); ok {
				_, _ = fmt.Sscan(after, &seq)
				replies++
				if seq < last {
					count++
				}
				last = max(last, seq)
			}
		}
		return count, replies
	}
	u.Reorder(b, 0.3)
	if count, replies := overtaken(); count == 0 || replies != 200 {
		t.Errorf("%d of %d replies were overtaken", count, replies)
	}
	streamTCP(t, a, b)
	u.Reorder(b, 0)
	if count, replies := overtaken(); count > 0 || replies != 200 {
		t.Errorf("without reordering, %d of %d replies were overtaken", count, replies)
	}
}

// streamTCP sends a megabyte from a to b.
func streamTCP(t *testing.T, a, b *Node) {
	t.Helper()
	var l net.Listener
	err := netns.Do(b.Net(), func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(b.Uplink.Addresses[0].Addr(), 0).String())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan int64, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		k, _ := io.Copy(io.Discard, c)
		_ = c.Close()
		received <- k
	}()
	err = netns.Do(a.Net(), func() error {
		c, err := net.DialTimeout("tcp", l.Addr().String(), 5*time.Second)
		if err != nil {
			return err
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		_, err = c.Write(make([]byte, 1<<20))
		return errors.Join(err, c.Close())
	})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case k := <-received:
		if k != 1<<20 {
			t.Errorf("%d bytes received", k)
		}
	case <-time.After(20 * time.Second):
		t.Error("TCP doesn't arrive")
	}
}

// pingMany sends 200 packets and returns how many came back.
func pingMany(t *testing.T, a, b *Node) int {
	t.Helper()
	return ping(t, a, b.Uplink.Addresses[0].Addr(), 1000, "-c200", "-i0.002")
}

func TestUnderlayFamiliesAndNAT(t *testing.T) {
	t.Parallel()
	u := NewUnderlay(t)
	four, six := u.Segment(Media{NoIPv6: true}), u.Segment(Media{NoIPv4: true})
	dual, behind := u.Segment(Media{}), u.Segment(Media{NAT: true})
	a, b, c, d := four.Node(), six.Node(), dual.Node(), behind.Node()
	reach(t, c, a, 1500, true)
	reach(t, c, b, 1500, true)
	if len(a.Uplink.Addresses) != 1 || !a.Uplink.Addresses[0].Addr().Is4() || len(b.Uplink.Addresses) != 1 || !b.Uplink.Addresses[0].Addr().Is6() {
		t.Errorf("addresses %v and %v", a.Uplink.Addresses, b.Uplink.Addresses)
	}
	reach(t, d, c, 1500, true)
	reach(t, c, d, 1500, false)
	reach(t, b, d, 1500, false)
}

// TestUnderlayLeavesNothing counts what a lab could leave on the host: a test that ends while nodes
// run, and in the middle of faults.
func TestUnderlayLeavesNothing(t *testing.T) {
	count := func() string {
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		return fmt.Sprintf("%d mounts of nodes", strings.Count(string(mounts), prefix))
	}
	before := count()
	var dir string
	t.Run("lab", func(t *testing.T) {
		u := NewUnderlay(t)
		s := u.Segment(Media{})
		a, b := s.Node(), s.Node()
		dir = a.Dir
		s.Host()
		u.Cut(a, b)
	})
	if after := count(); after != before {
		t.Errorf("%s, before %s", after, before)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("%s: %v", dir, err)
	}
}
