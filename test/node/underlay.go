package node

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
)

// Underlay is the network between several nodes: segments, and a router that is the default gateway
// on each. It is a network namespace, which ends with the test's process.
type Underlay struct {
	t        testing.TB
	ns       *namespace
	segments []*Segment
	uplinks  []*Uplink
	faults   map[pair]fault
	base     Inventory
}

// NewUnderlay returns an underlay without segments, which ends with the test. The test fails if
// something is left in it.
func NewUnderlay(t testing.TB) *Underlay {
	t.Helper()
	hosttest.Root(t)
	u := &Underlay{t: t, ns: newNamespace(t), faults: map[pair]fault{}}
	t.Cleanup(u.end)
	u.sysctl("net/ipv4/ip_forward", "1")
	u.sysctl("net/ipv6/conf/all/forwarding", "1")
	u.sysctl("net/ipv4/conf/all/rp_filter", "0")
	for _, family := range []string{"ip", "ip6", "arp"} {
		// Bridged packets don't pass the router's rules. Kernels without br_netfilter don't have it.
		_ = netns.Do(u.Net(), func() error { return netns.SetSysctl("net/bridge/bridge-nf-call-"+family+"tables", "0") })
	}
	return u
}

// end checks that nothing is left. The kernel removes the links of nodes that have ended in the
// background.
func (u *Underlay) end() {
	u.t.Helper()
	if u.t.Failed() {
		return
	}
	u.faults = nil
	u.nft(u.rules())
	Eventually(u.t, 10*time.Second, func() string {
		if left := u.inventory().since(u.base); len(left) > 0 {
			return "left in the underlay:\n  " + strings.Join(left, "\n  ")
		}
		return ""
	})
}

// Net returns the path of the underlay's network namespace, which is that of the router.
func (u *Underlay) Net() string { return u.ns.path }

func (u *Underlay) sysctl(name, value string) {
	u.t.Helper()
	if err := netns.Do(u.Net(), func() error { return netns.SetSysctl(name, value) }); err != nil {
		u.t.Fatal(err)
	}
}

// namespace is a network namespace that only a file descriptor of this process keeps, so that
// nothing is left of it when the process is killed.
type namespace struct {
	file *os.File
	path string
}

func newNamespace(t testing.TB) *namespace {
	t.Helper()
	var n namespace
	err := netns.OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("new network namespace: %w", err)
		}
		var err error
		n.file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
	t.Cleanup(func() { _ = n.file.Close() })
	batch(t, n.path, "link set lo up")
	return &n
}

// batch runs commands of ip(8) in a network namespace.
func batch(t testing.TB, path string, commands ...string) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+path, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("ip: %v: %s\n%s", err, out, strings.Join(commands, "\n"))
	}
}

// Media is what a segment is like.
type Media struct {
	NoIPv4, NoIPv6 bool
	// MTU is that of all links; 0 means 1500.
	MTU int
	// NAT means that hosts outside of the segment see the router's address in place of the nodes',
	// and can't begin connections to them.
	NAT bool
}

// Segment is a link that nodes share: a bridge.
type Segment struct {
	u      *Underlay
	number int
	media  Media
}

// Segment adds a segment. Its subnets are Prefixes.
func (u *Underlay) Segment(m Media) *Segment {
	u.t.Helper()
	if m.MTU == 0 {
		m.MTU = 1500
	}
	s := &Segment{u: u, number: len(u.segments) + 1, media: m}
	u.segments = append(u.segments, s)
	// With an address of its own, the bridge doesn't take that of the port that comes or goes.
	commands := []string{fmt.Sprintf("link add %s address 02:00:00:00:ff:%02x mtu %d type bridge mcast_snooping 0", s.link(), s.number, m.MTU)}
	for _, p := range s.at(254) {
		commands = append(commands, fmt.Sprintf("address add %v dev %s nodad", p, s.link()))
	}
	batch(u.t, u.Net(), append(commands, "link set "+s.link()+" up")...)
	if m.NAT {
		u.nft(s.nat())
	}
	u.sysctl("net/ipv6/conf/"+s.link()+"/accept_dad", "0")
	u.base = *u.inventory()
	return s
}

func (s *Segment) link() string { return fmt.Sprint("br", s.number) }

// Prefixes returns the segment's subnets.
func (s *Segment) Prefixes() (out []netip.Prefix) {
	for _, p := range s.at(0) {
		out = append(out, p.Masked())
	}
	return out
}

// at returns the addresses of the host with a number, with the lengths of the subnets. That of the
// router is 254.
func (s *Segment) at(number int) (out []netip.Prefix) {
	if !s.media.NoIPv4 {
		out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 18, byte(s.number), byte(number)}), 24))
	}
	if !s.media.NoIPv6 {
		out = append(out, netip.MustParsePrefix(fmt.Sprintf("2001:db8:18:%x::%x/64", s.number, number)))
	}
	return out
}

func (s *Segment) nat() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet nat%d {\n chain forward { type filter hook forward priority 0; oifname %q iifname != %q ct state new drop; }\n", s.number, s.link(), s.link())
	b.WriteString(" chain postrouting { type nat hook postrouting priority 100;\n")
	for _, p := range s.Prefixes() {
		family := map[bool]string{false: "ip", true: "ip6"}[p.Addr().Is6()]
		fmt.Fprintf(&b, "  %s saddr %v oifname != %q masquerade\n", family, p, s.link())
	}
	return b.String() + " }\n}\n"
}

// nft runs a script of nft(8) in the underlay.
func (u *Underlay) nft(script string) {
	u.t.Helper()
	cmd := exec.Command("nsenter", "--net="+u.Net(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		u.t.Fatalf("nft: %v: %s\n%s", err, out, script)
	}
}

// Uplink is a host's link to a segment, up0 on the host.
type Uplink struct {
	Segment *Segment
	// Number is unique in the underlay. The host is called n<Number>.
	Number int
	// Net is the path of the host's network namespace.
	Net string
	// Addresses are those of the link, with the lengths of the segment's subnets.
	Addresses []netip.Prefix

	delay *delay
}

// Name returns the host's name.
func (l *Uplink) Name() string { return fmt.Sprint("n", l.Number) }

func (s *Segment) uplink() *Uplink {
	l := &Uplink{Segment: s, Number: len(s.u.uplinks) + 1}
	l.Addresses = s.at(l.Number)
	s.u.uplinks = append(s.u.uplinks, l)
	return l
}

// Node starts a node on the segment, which ends with the test. Its name is that of its uplink.
func (s *Segment) Node() *Node {
	s.u.t.Helper()
	l := s.uplink()
	return newNode(s.u.t, l.Name(), l)
}

// Host adds a host to the segment that is only a network namespace. The router may not answer it at
// once.
func (s *Segment) Host() *Uplink {
	s.u.t.Helper()
	l := s.uplink()
	l.plug(newNamespace(s.u.t).path)
	return l
}

// plug connects the host, in the network namespace at path, to the segment. A Delay ends.
func (l *Uplink) plug(path string) {
	s, t := l.Segment, l.Segment.u.t
	t.Helper()
	l.Net = path
	if l.delay != nil {
		l.delay.close()
		l.delay = nil
	}
	// After a reboot, the kernel removes the old namespace and its end of the link in the background.
	_ = exec.Command("nsenter", "--net="+s.u.Net(), "ip", "link", "del", l.Name()).Run()
	// As on a real host, the MAC is the same after a reboot.
	batch(t, path, fmt.Sprintf("link add up0 address 02:00:00:00:00:%02x mtu %d type veth peer name %s mtu %d", l.Number, s.media.MTU, l.Name(), s.media.MTU),
		fmt.Sprintf("link set %s netns %s", l.Name(), s.u.Net()))
	batch(t, s.u.Net(), fmt.Sprintf("link set %s master %s up", l.Name(), s.link()))
	err := netns.Do(path, func() error {
		for name, value := range map[string]string{
			// A new namespace inherits the host's ip_forward. Reset it: a fresh host doesn't forward.
			"net/ipv4/ip_forward":          "0",
			"net/ipv6/conf/up0/accept_dad": "0",
			// What systemd sets.
			"net/ipv4/conf/all/rp_filter":     "2",
			"net/ipv4/conf/default/rp_filter": "2",
			// Removing an address mustn't remove the newer ones of its subnet.
			"net/ipv4/conf/up0/promote_secondaries": "1",
		} {
			if err := netns.SetSysctl(name, value); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	commands := []string{"link set up0 up"}
	for _, a := range l.Addresses {
		commands = append(commands, fmt.Sprintf("address add %v dev up0 nodad", a))
	}
	for _, router := range s.at(254) {
		commands = append(commands, fmt.Sprintf("route add default via %v dev up0", router.Addr()))
	}
	batch(t, path, commands...)
}

// settle waits for what the kernel does later: it adds the link-local route, which would look like
// something that the test left, and tells the bridge that it has a carrier, without which the
// router doesn't answer by IPv6.
func (l *Uplink) settle() {
	t := l.Segment.u.t
	t.Helper()
	Eventually(t, 10*time.Second, func() string {
		out, err := exec.Command("nsenter", "--net="+l.Net, "ip", "-6", "route", "show", "fe80::/64", "dev", "up0").Output()
		if err != nil || len(out) == 0 {
			return "up0 has no link-local route"
		}
		for _, router := range l.Segment.at(254) {
			if err := exec.Command("nsenter", "--net="+l.Net, "ping", "-c1", "-W1", router.Addr().String()).Run(); err != nil {
				return fmt.Sprintf("no answer from the router at %v", router.Addr())
			}
		}
		return ""
	})
}

// Renumber gives the host other addresses. With overlap, which may be nil, it has both while
// overlap runs.
func (l *Uplink) Renumber(overlap func()) {
	t := l.Segment.u.t
	t.Helper()
	was := l.Addresses
	next := slices.Max(hosts(was)) + 100
	if next > 253 {
		next -= 200
	}
	l.Addresses = l.Segment.at(next)
	var add, remove []string
	for i := range was {
		add = append(add, fmt.Sprintf("address add %v dev up0 nodad", l.Addresses[i]))
		remove = append(remove, fmt.Sprintf("address del %v dev up0", was[i]))
	}
	if overlap != nil {
		batch(t, l.Net, add...)
		overlap()
		batch(t, l.Net, remove...)
		return
	}
	batch(t, l.Net, append(remove, add...)...)
	// The default route goes with the last address of a subnet.
	for _, router := range l.Segment.at(254) {
		batch(t, l.Net, fmt.Sprintf("route replace default via %v dev up0", router.Addr()))
	}
}

// hosts returns the last byte of each address.
func hosts(prefixes []netip.Prefix) (out []int) {
	for _, p := range prefixes {
		b := p.Addr().AsSlice()
		out = append(out, int(b[len(b)-1]))
	}
	return out
}

// SetMTU changes the MTU of the host's link, as an administrator does who does it right: on both
// ends.
func (l *Uplink) SetMTU(mtu int) {
	l.Segment.u.t.Helper()
	batch(l.Segment.u.t, l.Net, fmt.Sprintf("link set up0 mtu %d", mtu))
	batch(l.Segment.u.t, l.Segment.u.Net(), fmt.Sprintf("link set %s mtu %d", l.Name(), mtu))
}

// inventory lists what is in the underlay.
func (u *Underlay) inventory() *Inventory {
	u.t.Helper()
	inv := &Inventory{}
	if err := netns.Do(u.Net(), func() error { return inv.takeNetwork() }); err != nil {
		u.t.Fatal(err)
	}
	// The kernel adds them when the bridge has a carrier.
	inv.Routes = slices.DeleteFunc(inv.Routes, func(r string) bool { return strings.Contains(r, "Dst: fe80::/64 ") })
	for _, list := range inv.lists() {
		sort.Strings(*list)
	}
	return inv
}
