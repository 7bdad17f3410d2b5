package conntrack

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/nlsock"
)

// rules make the kernel track connections in a namespace, which it does only while a rule needs it,
// and forward two hostPorts to pods.
const rules = `table inet t {
	chain output {
		type nat hook output priority -100
		ct state new meta l4proto udp ip daddr 10.9.0.1 udp dport 8080 dnat ip to 10.9.0.2:80
		ct state new meta l4proto udp ip daddr 10.9.0.1 udp dport 8081 dnat ip to 10.9.0.4:80
	}
}`

// entries lists the conntrack entries of the calling thread's namespace, as "udp A>B:port", where
// B:port is where the client sends to. vishvananda/netlink reads them independently of Forget.
func entries() (out []string, err error) {
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, err
		}
		for _, f := range flows {
			name := map[uint8]string{unix.IPPROTO_UDP: "udp", unix.IPPROTO_TCP: "tcp"}[f.Forward.Protocol]
			out = append(out, fmt.Sprintf("%s %v>%v:%d", name, f.Forward.SrcIP, f.Forward.DstIP, f.Forward.DstPort))
		}
	}
	slices.Sort(out)
	return out, nil
}

// difference describes how a list of entries differs from the wanted one.
func difference(got, want []string) string {
	count := map[string]int{}
	for _, e := range got {
		count[e]++
	}
	for _, e := range want {
		count[e]--
	}
	maps.DeleteFunc(count, func(_ string, n int) bool { return n == 0 })
	return fmt.Sprintf("additional (or, if negative, missing) entries: %v", count)
}

// TestForget tracks real connections and checks exactly which entries Forget deletes. It needs a
// kernel with NF_CT_NETLINK, which Forget itself needs.
func TestForget(t *testing.T) {
	path := t.TempDir() + "/net"
	netnstest.Make(t, path)
	for i := range 4 {
		netnstest.IP(t, path, fmt.Sprintf("address add 10.9.0.%d/32 dev lo", i+1))
		netnstest.IP(t, path, fmt.Sprintf("address add fd09::%d/128 dev lo nodad", i+1))
	}
	// The kernel adds the routes of IPv6 addresses in the background.
	for end := time.Now().Add(10 * time.Second); strings.Count(netnstest.IP(t, path, "-6 route show table local"), "local fd09::") < 4; {
		if time.Now().After(end) {
			t.Fatal("the IPv6 addresses have no routes")
		}
		time.Sleep(time.Millisecond)
	}
	netnstest.Run(t, path, "nft", rules)

	udp := func(from, to string) error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(from)), net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
		if err != nil {
			return err
		}
		defer c.Close()
		_, err = c.Write([]byte("hello"))
		return err
	}
	var gone, kept []string
	err := netns.Do(path, func() error {
		for _, flow := range []struct {
			from, to string
			kept     bool
		}{
			{"10.9.0.2:0", "10.9.0.3:53", false},     // from the pod
			{"10.9.0.3:0", "10.9.0.2:53", false},     // to the pod
			{"10.9.0.3:0", "10.9.0.1:8080", false},   // to the pod's hostPort: only the reply has its address
			{"[fd09::2]:0", "[fd09::3]:53", false},   // from the pod, IPv6
			{"10.9.0.3:0", "10.9.0.1:9090", false},   // to the node itself, past a hostPort
			{"10.9.0.3:0", "10.9.0.1:8081", true},    // to that hostPort, and forwarded to another pod
			{"10.9.0.3:0", "10.9.0.4:53", true},      // between other pods
			{"10.9.0.3:0", "10.9.0.1:53", true},      // to another port of the node
			{"[fd09::3]:0", "[fd09::4]:53", true},    // between other pods, IPv6
			{"10.9.0.3:9090", "10.9.0.1:9091", true}, // from a port of the same number
		} {
			if err := udp(flow.from, flow.to); err != nil {
				return err
			}
			from := netip.MustParseAddrPort(flow.from).Addr()
			to := netip.MustParseAddrPort(flow.to)
			entry := fmt.Sprintf("udp %v>%v:%d", from, to.Addr(), to.Port())
			if flow.kept {
				kept = append(kept, entry)
			} else {
				gone = append(gone, entry)
			}
		}
		// More than are deleted in one batch.
		for i := range 100 {
			if err := udp(fmt.Sprintf("10.9.0.2:%d", 20_000+i), "10.9.0.4:53"); err != nil {
				return err
			}
			gone = append(gone, "udp 10.9.0.2>10.9.0.4:53")
		}
		// TCP clients connect again, so their entries on a hostPort may stay.
		l, err := net.Listen("tcp", "10.9.0.1:9090")
		if err != nil {
			return err
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		kept = append(kept, "tcp 10.9.0.1>10.9.0.1:9090")

		all := append(slices.Clone(gone), kept...)
		slices.Sort(all)
		if got, err := entries(); err != nil || !slices.Equal(got, all) {
			return fmt.Errorf("before: %v, %s", err, difference(got, all))
		}
		s, err := nlsock.Dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer s.Close()
		flows := Flows{
			Pods:  []netip.Addr{netip.MustParseAddr("10.9.0.2"), netip.MustParseAddr("fd09::2")},
			Ports: []uint16{9090, 8081},
		}
		slices.Sort(kept)
		for range 2 { // the second time finds nothing to delete
			if err := Forget(s, flows); err != nil {
				return err
			}
			if got, err := entries(); err != nil || !slices.Equal(got, kept) {
				return fmt.Errorf("after: %v, %s", err, difference(got, kept))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestForgetNothing(t *testing.T) {
	if err := Forget(nil, Flows{}); err != nil {
		t.Errorf("no flows: %v", err)
	}
}

// FuzzParse checks that malformed answers from a socket don't crash the parser.
func FuzzParse(f *testing.F) {
	f.Add([]byte{})
	entry := nl.NewRtAttr(ctaTupleOrig|unix.NLA_F_NESTED, nil)
	entry.AddRtAttr(ctaTupleIP|unix.NLA_F_NESTED, nil).AddRtAttr(1, []byte{1, 2, 3, 4})
	entry.AddRtAttr(ctaTupleProto|unix.NLA_F_NESTED, nil).AddRtAttr(ctaProtoNum, []byte{17})
	f.Add(append([]byte{2, 0, 0, 0}, entry.Serialize()...))
	f.Fuzz(func(_ *testing.T, data []byte) {
		_ = deletion(data, func(tracked) bool { return true })
		_ = parseTuple(data)
	})
}

// TestEnd checks as what connection each entry is judged, and that those that are denied end.
func TestEnd(t *testing.T) {
	path := t.TempDir() + "/net"
	netnstest.Make(t, path)
	for i := range 3 {
		netnstest.IP(t, path, fmt.Sprintf("address add 10.9.0.%d/32 dev lo", i+1))
	}
	netnstest.Run(t, path, "nft", rules)
	send := func(to string) {
		t.Helper()
		must(t, netns.Do(path, func() error {
			c, err := net.DialUDP("udp", &net.UDPAddr{IP: net.IPv4(10, 9, 0, 3), Port: 4000}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
			if err != nil {
				return err
			}
			_, err = c.Write([]byte("hello"))
			return errors.Join(err, c.Close())
		}))
	}
	var c *nlsock.Conn
	must(t, netns.Do(path, func() (err error) {
		c, err = nlsock.Dial(unix.NETLINK_NETFILTER)
		return err
	}))
	defer c.Close()
	send("10.9.0.1:8080")
	send("10.9.0.2:53")
	from := netip.MustParseAddr("10.9.0.3")
	translated := Connection{from, netip.MustParseAddr("10.9.0.2"), unix.IPPROTO_UDP, 80}
	direct := Connection{from, netip.MustParseAddr("10.9.0.2"), unix.IPPROTO_UDP, 53}
	for _, want := range [][]Connection{{translated, direct}, {direct}} {
		var got []Connection
		n, err := End(c, func(e Connection) bool {
			got = append(got, e)
			return e == translated
		})
		must(t, err)
		slices.SortFunc(got, func(a, b Connection) int { return int(b.Port) - int(a.Port) })
		if !slices.Equal(got, want) || n != len(want)-1 {
			t.Errorf("ended %d of %v, want %v", n, got, want)
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestLasting checks which entries count: not those that the kernel drops when the table is full.
func TestLasting(t *testing.T) {
	path := t.TempDir() + "/net"
	netnstest.Make(t, path)
	netnstest.IP(t, path, "address add 10.9.0.1/32 dev lo")
	netnstest.IP(t, path, "address add 10.9.0.3/32 dev lo")
	netnstest.Run(t, path, "nft", rules)
	from := netip.MustParseAddr("10.9.0.3")
	must(t, netns.Do(path, func() error {
		c, err := nlsock.Dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer c.Close()
		expect := func(what string, entries, lasting int) {
			t.Helper()
			size, err := SizeOf(c)
			must(t, err)
			got, err := Lasting(c)
			must(t, err)
			if size.Entries != entries || size.Max == 0 || got[from] != lasting {
				t.Errorf("%s: %d lasting entries of %+v, want %d of %d", what, got[from], size, lasting, entries)
			}
		}
		dial := func(network, to string) net.Conn {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: from.AsSlice()}}
			if network == "udp" {
				d.LocalAddr = &net.UDPAddr{IP: from.AsSlice()}
			}
			conn, err := d.Dial(network, to)
			must(t, err)
			return conn
		}
		server, err := net.Listen("tcp", "10.9.0.1:0")
		if err != nil {
			return err
		}
		defer server.Close()
		question := dial("udp", "10.9.0.1:53")
		_, err = question.Write([]byte("?"))
		must(t, errors.Join(err, question.Close()))
		expect("a datagram", 1, 0)
		for range 3 {
			client := dial("tcp", server.Addr().String())
			defer client.Close()
			accepted, err := server.Accept()
			must(t, err)
			defer accepted.Close()
		}
		expect("and three connections", 4, 3)
		n, err := Surplus(c, map[netip.Addr]int{from: 2, netip.MustParseAddr("10.9.0.1"): 5})
		if n != 2 || err != nil {
			t.Errorf("deleted %d, %v", n, err)
		}
		expect("without two", 2, 1)
		closed := dial("tcp", server.Addr().String())
		accepted, err := server.Accept()
		must(t, errors.Join(err, closed.Close(), accepted.Close()))
		expect("and a closed one", 3, 1)
		return nil
	}))
}
