package heartbeat

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/plan"
)

// host is a node made by hand: a namespace with an uplink, an address in a pod subnet, and a VXLAN
// link to the other one.
type host struct {
	path    string
	from    netip.Addr
	prober  *Prober
	changed chan struct{}
	other   string
}

// hosts returns two nodes on one wire, whose pod subnets are of a family, each watching the other.
func hosts(t *testing.T, six bool) (a, b *host) {
	t.Helper()
	const mtu = 1450
	subnets := [2]string{"10.201.1", "10.201.2"}
	pods := [2]string{"10.201.1.1", "10.201.2.1"}
	at := [2]string{"192.0.2.1", "192.0.2.2"}
	length, via := "/24", at
	if six {
		pods, via, length = [2]string{"fd68:0:0:1::1", "fd68:0:0:2::1"}, [2]string{"2001:db8::1", "2001:db8::2"}, "/64"
		subnets = [2]string{"fd68:0:0:1::", "fd68:0:0:2::"}
	} else {
		subnets[0], subnets[1] = subnets[0]+".0", subnets[1]+".0"
	}
	macs := [2]string{"02:00:00:00:00:01", "02:00:00:00:00:02"}
	var made [2]*host
	for i := range made {
		h := &host{path: filepath.Join(t.TempDir(), "net"), from: netip.MustParseAddr(pods[i]), changed: make(chan struct{}, 1)}
		netnstest.Make(t, h.path)
		made[i] = h
	}
	netnstest.IP(t, made[0].path, "link add eth0 type veth peer name eth0 netns "+made[1].path)
	for i, h := range made {
		ip := func(args string) { t.Helper(); netnstest.IP(t, h.path, args) }
		ip("link set lo up")
		ip("address add " + at[i] + "/24 dev eth0")
		ip("address add 2001:db8::" + string("12"[i]) + "/64 dev eth0 nodad")
		ip("link set eth0 up")
		ip("address add " + pods[i] + " dev lo nodad")
		ip("link add vx type vxlan id 1 local " + at[i] + " dstport 8472 nolearning")
		ip("link set vx address " + macs[i] + " mtu 1450 up")
		ip("neigh add " + subnets[1-i] + " lladdr " + macs[1-i] + " dev vx nud permanent")
		netnstest.Run(t, h.path, "bridge", "fdb", "append", macs[1-i], "dev", "vx", "dst", at[1-i])
		ip("route add " + subnets[1-i] + length + " via " + via[1-i] + " dev eth0 src " + pods[i])
		netnstest.Set(t, h.path, "net/ipv4/conf/vx/rp_filter", "0")
	}
	for i, h := range made {
		var err error
		if h.prober, err = Open(h.path, "n"+string("12"[i])); err != nil {
			t.Fatal(err)
		}
		h.other = "n" + string("21"[i])
		mac, _ := plan.ParseMAC(macs[1-i])
		h.prober.Watch(h.from, []Peer{{
			Name: "n" + string("21"[i]), To: made[1-i].from, From: []netip.Addr{made[1-i].from}, Way: backend.Direct, MTU: mtu,
			Paths: []backend.Path{
				{Way: backend.Direct, Link: "eth0", Via: netip.MustParseAddr(via[1-i])},
				{Way: backend.VXLAN, Link: "vx", MAC: mac},
			},
		}})
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- h.prober.Run(ctx, func() {
				select {
				case h.changed <- struct{}{}:
				default:
				}
			})
		}()
		t.Cleanup(func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if err := h.prober.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	return made[0], made[1]
}

func (h *host) eventually(t *testing.T, what string, ok func(Health) bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		health := h.prober.Health()[h.other]
		if ok(health) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: the health is %+v", what, health)
		}
	}
}

// drop makes a node drop what the rule matches.
func (h *host) drop(t *testing.T, rule string) {
	t.Helper()
	netnstest.Run(t, h.path, "nft", "add table inet cut; add chain inet cut in { type filter hook prerouting priority raw; }; add rule inet cut in "+rule+" drop")
}

func (h *host) heal(t *testing.T) {
	t.Helper()
	netnstest.Run(t, h.path, "nft", "delete table inet cut")
}

func TestProber(t *testing.T) {
	for _, c := range []struct {
		name, pods string
		six        bool
	}{{"IPv4", "ip saddr 10.201.0.0/16", false}, {"IPv6", "ip6 saddr fd68::/16", true}} {
		t.Run(c.name, func(t *testing.T) {
			a, b := hosts(t, c.six)
			a.eventually(t, "both up", func(h Health) bool { return h.Answered && h.RTT > 0 && h.RTT < tick/2 })
			b.eventually(t, "both up", func(h Health) bool { return h.Answered })

			// A network that drops packets of addresses that it doesn't know, as clouds do.
			b.drop(t, "iifname eth0 "+c.pods)
			a.eventually(t, "direct packets are dropped", func(h Health) bool { return slices.Equal(h.Broken, []backend.Way{backend.Direct}) })
			select {
			case <-a.changed:
			case <-time.After(10 * time.Second):
				t.Error("the change wasn't announced")
			}
		})
	}
}

func TestProberFindsBlackHole(t *testing.T) {
	a, b := hosts(t, false)
	a.eventually(t, "both up", func(h Health) bool { return h.Answered })
	b.drop(t, "meta length > 1390")
	a.eventually(t, "packets above 1390 bytes vanish", func(h Health) bool { return h.Limit == 1370 })
	b.heal(t)
	a.eventually(t, "all packets pass", func(h Health) bool { return h.Limit == 0 })
}

func TestMessage(t *testing.T) {
	m := message{kind: kindProbe, way: backend.WireGuard, nonce: [8]byte{1, 2}, seq: 7, node: "n1"}
	data := append(m.encode(), make([]byte, 100)...)
	answer := message{kind: kindAnswer, way: backend.Direct, nonce: [8]byte{1, 2}, seq: 7, held: 40 * time.Millisecond}
	earlier := answer // of an earlier version
	earlier.held = 0
	for want, data := range map[message][]byte{m: data, answer: answer.encode(), earlier: answer.encode()[:header]} {
		if got, ok := parse(data); !ok || got != want {
			t.Errorf("%q is read as %+v, %v; want %+v", data, got, ok, want)
		}
	}
	for _, bad := range [][]byte{nil, data[:header-1], data[:header+1], append([]byte("hub\x02"), data[4:]...), append([]byte("hub\x01\x01\x09"), data[6:]...)} {
		if got, ok := parse(bad); ok {
			t.Errorf("%q is taken for the message %+v", bad, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message{kind: kindAnswer, way: backend.Direct, node: "n1"}.encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		m, ok := parse(data)
		if !ok {
			return
		}
		if again, ok := parse(m.encode()); !ok || again != m {
			t.Errorf("%+v became %+v, %v", m, again, ok)
		}
	})
}
