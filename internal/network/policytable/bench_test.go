package policytable

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// large is what a node with 110 pods has of a cluster with 10,000, in which each policy selects
// peers of its own: 220 profiles, which allow 70 classes each.
func large() *ruleset.Ruleset {
	rs := ruleset.New()
	for i := range 10_000 {
		rs.Identities[podAddr(i)] = ruleset.Identity(1 + i%1000)
	}
	for i := range 110 {
		p := ruleset.Pod{Addr: podAddr(i), Ingress: ruleset.ProfileID(fmt.Sprint("i", i)), Egress: ruleset.ProfileID(fmt.Sprint("e", i))}
		rs.Pods[p.Addr] = p
		for d, id := range map[policy.Direction]ruleset.ProfileID{policy.Ingress: p.Ingress, policy.Egress: p.Egress} {
			allow := map[ruleset.Match]struct{}{}
			for j := range 70 {
				allow[ruleset.Match{Identity: ruleset.Identity(1 + (i+j)%1000), Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 80}] = struct{}{}
			}
			rs.Profiles[id] = ruleset.Profile{ID: id, Direction: d, Allow: allow}
		}
	}
	return rs
}

func podAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 100, byte(i >> 8), byte(i)}) }

func benchTable(b *testing.B) *Table {
	b.Helper()
	path := filepath.Join(b.TempDir(), "node")
	netnstest.Make(b, path)
	table, err := Open(path, instance)
	must(b, err)
	b.Cleanup(func() { must(b, table.Close()) })
	return table
}

func BenchmarkLoad(b *testing.B) {
	for _, kind := range []string{"first", "again"} {
		b.Run(kind, func(b *testing.B) {
			table := benchTable(b)
			must(b, table.Load(large()))
			for b.Loop() {
				b.StopTimer()
				if kind == "first" {
					must(b, table.Teardown())
				}
				rs := large()
				b.StartTimer()
				must(b, table.Load(rs))
			}
		})
	}
}

func BenchmarkApply(b *testing.B) {
	table := benchTable(b)
	must(b, table.Load(large()))
	relabel := func(pods, n int) *ruleset.Update {
		u := &ruleset.Update{Identities: map[netip.Addr]ruleset.Identity{}}
		for i := range pods {
			u.Identities[podAddr(500+i)] = ruleset.Identity(1 + n%1000)
		}
		return u
	}
	added := ruleset.Pod{Addr: podAddr(200), Ingress: "i0", Egress: "e0"}
	fresh := ruleset.Profile{ID: "fresh", Direction: policy.Ingress, Allow: map[ruleset.Match]struct{}{
		{Identity: 5, Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 80}: {}, {Identity: 6, Protocol: ruleset.Every}: {}}}
	grow := []ruleset.Match{}
	for i := range 20 {
		grow = append(grow, ruleset.Match{Identity: ruleset.Identity(2000 + i), Protocol: ruleset.Protocol(policy.TCP), First: 443, Last: 443})
	}
	n := 0
	for _, c := range []struct {
		name     string
		do, undo func() *ruleset.Update
	}{
		{"label of a pod", func() *ruleset.Update { n++; return relabel(1, n) }, nil},
		{"labels of 1000 pods", func() *ruleset.Update { n++; return relabel(1000, n) }, nil},
		{"local pod", func() *ruleset.Update { return &ruleset.Update{SetPods: []ruleset.Pod{added}} },
			func() *ruleset.Update { return &ruleset.Update{RemovePods: []netip.Addr{added.Addr}} }},
		{"profile", func() *ruleset.Update { return &ruleset.Update{AddProfiles: []ruleset.Profile{fresh}} },
			func() *ruleset.Update { return &ruleset.Update{RemoveProfiles: []ruleset.ProfileID{"fresh"}} }},
		{"20 matches", func() *ruleset.Update {
			return &ruleset.Update{Allow: map[ruleset.ProfileID][]ruleset.Match{"i0": grow}}
		}, func() *ruleset.Update {
			return &ruleset.Update{Disallow: map[ruleset.ProfileID][]ruleset.Match{"i0": grow}}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				must(b, table.Apply(c.do()))
				if c.undo == nil {
					continue
				}
				b.StopTimer()
				must(b, table.Apply(c.undo()))
				must(b, table.Reap())
				b.StartTimer()
			}
			if table.unsure {
				b.Fatal("the kernel refused an update")
			}
		})
	}
	b.Run("reap 100 profiles", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			add, remove := &ruleset.Update{}, &ruleset.Update{}
			for i := range 100 {
				p := fresh
				p.ID = ruleset.ProfileID(fmt.Sprint("fresh", i))
				add.AddProfiles, remove.RemoveProfiles = append(add.AddProfiles, p), append(remove.RemoveProfiles, p.ID)
			}
			must(b, table.Apply(add))
			must(b, table.Apply(remove))
			b.StartTimer()
			must(b, table.Reap())
		}
	})
}

// BenchmarkEndFlows reads and judges 20,000 connections of a pod, one of which is ended.
func BenchmarkEndFlows(b *testing.B) {
	l := newLab(b)
	table := l.open()
	rs := large()
	for i, a := range []netip.Addr{locals[0], far[0]} {
		rs.Identities[a] = ruleset.Identity(3000 + i)
	}
	for i := range 1000 {
		first := netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})
		rs.Ranges[first] = ruleset.Range{First: first, Last: first, Identity: 4000}
	}
	rs.Profiles["i0"].Allow[ruleset.Match{Identity: 3001, Protocol: ruleset.Protocol(policy.UDP), Last: 65535}] = struct{}{}
	rs.Pods[locals[0]] = ruleset.Pod{Addr: locals[0], Ingress: "i0"}
	must(b, table.Load(rs))
	send := func(port int) error {
		c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(far[0], uint16(port))), net.UDPAddrFromAddrPort(netip.AddrPortFrom(locals[0], 9)))
		if err != nil {
			return err
		}
		_, _ = c.Write([]byte("x")) // an error is about an earlier one
		return c.Close()
	}
	must(b, l.in(far[0], func() error {
		for i := range 20_000 {
			if err := send(2000 + i); err != nil {
				return err
			}
		}
		return nil
	}))
	for b.Loop() {
		table.stale = true
		_, err := table.EndFlows()
		must(b, err)
	}
}

// BenchmarkPackets measures a request and its response over TCP, on an open connection (RR) and on
// a new one (CRR), between two local pods.
func BenchmarkPackets(b *testing.B) {
	l := newLab(b)
	client, server := locals[0], locals[1]
	var listener net.Listener
	must(b, l.in(server, func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(server, 80).String())
		return err
	}))
	b.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 1)
				for {
					if _, err := c.Read(buf); err != nil {
						return
					}
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			}()
		}
	}()
	dial := func() net.Conn {
		d := dialer(client, "tcp", patience)
		c, err := d.Dial("tcp", listener.Addr().String())
		must(b, err)
		return c
	}
	ask := func(c net.Conn) {
		buf := []byte("x")
		_, err := c.Write(buf)
		must(b, err)
		_, err = c.Read(buf)
		must(b, err)
	}
	// The tenth percentile doesn't depend much on what else the machine does.
	timed := func(b *testing.B, fn func()) {
		var took []time.Duration
		for b.Loop() {
			begin := time.Now()
			fn()
			took = append(took, time.Since(begin))
		}
		slices.Sort(took)
		b.ReportMetric(float64(took[len(took)/10].Nanoseconds())/1e3, "µs-p10")
	}
	measure := func(b *testing.B, name string) {
		b.Run(name+"/RR", func(b *testing.B) {
			must(b, l.in(client, func() error {
				c := dial()
				defer c.Close()
				timed(b, func() { ask(c) })
				return nil
			}))
		})
		b.Run(name+"/CRR", func(b *testing.B) {
			must(b, l.in(client, func() error {
				timed(b, func() {
					c := dial()
					ask(c)
					must(b, c.(*net.TCPConn).SetLinger(0))
					must(b, c.Close())
				})
				return nil
			}))
		})
	}
	l.nft("add table inet t; add chain inet t c { type filter hook forward priority 0; }; add rule inet t c ct state established accept")
	measure(b, "conntrack only")
	table := l.open()
	for _, policies := range []int{1, 1000} {
		rs := ruleset.New()
		if policies > 1 {
			rs = large()
		}
		for i, a := range []netip.Addr{client, server} {
			rs.Identities[a] = ruleset.Identity(5000 + i)
		}
		rs.Pods[client] = ruleset.Pod{Addr: client, Egress: "client"}
		rs.Pods[server] = ruleset.Pod{Addr: server, Ingress: "server"}
		for id, who := range map[ruleset.ProfileID]ruleset.Identity{"client": 5001, "server": 5000} {
			p := ruleset.Profile{ID: id, Direction: policy.Ingress, Allow: map[ruleset.Match]struct{}{}}
			if id == "client" {
				p.Direction = policy.Egress
			}
			for i := range policies {
				p.Allow[ruleset.Match{Identity: ruleset.Identity(i), Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 80}] = struct{}{}
			}
			p.Allow[ruleset.Match{Identity: who, Protocol: ruleset.Protocol(policy.TCP), First: 80, Last: 80}] = struct{}{}
			rs.Profiles[id] = p
		}
		must(b, table.Load(rs))
		measure(b, fmt.Sprint(policies, " policies"))
	}
}
