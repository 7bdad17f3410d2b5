package policytable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// probe opens a connection and returns errDenied if it isn't answered, or doesn't arrive, in time.
func (l *lab) probe(f policy.Flow, timeout time.Duration) error {
	to := netip.AddrPortFrom(f.To, f.Port).String()
	return l.in(f.From, func() error {
		end := time.Now().Add(timeout)
		switch f.Protocol {
		case policy.TCP:
			d := dialer(f.From, "tcp", timeout)
			c, err := d.Dial("tcp", to)
			if err != nil {
				return timedOut(err)
			}
			return c.Close()
		case policy.UDP:
			d := dialer(f.From, "udp", patience)
			c, err := d.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			if _, err := c.Write([]byte("hello")); err != nil {
				return err
			}
			_ = c.SetDeadline(end)
			_, err = c.Read(make([]byte, 10))
			return timedOut(err)
		case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
			return ping(f, end)
		}
		return l.inject(f, end)
	})
}

var nextID atomic.Uint32

func ping(f policy.Flow, end time.Time) error {
	network, typ, reply := "ip4:icmp", icmp.Type(ipv4.ICMPTypeEcho), icmp.Type(ipv4.ICMPTypeEchoReply)
	if f.To.Is6() {
		network, typ, reply = "ip6:ipv6-icmp", ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	c, err := icmp.ListenPacket(network, f.From.String())
	if err != nil {
		return err
	}
	defer c.Close()
	id := int(nextID.Add(1) & 0xffff)
	msg := icmp.Message{Type: typ, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("hello")}}
	data, err := msg.Marshal(nil) // the kernel computes the checksum of ICMPv6
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(data, &net.IPAddr{IP: f.To.AsSlice()}); err != nil {
		return err
	}
	_ = c.SetDeadline(end)
	for buf := make([]byte, 1000); ; {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			return timedOut(err)
		}
		got, err := icmp.ParseMessage(int(f.Protocol), buf[:n])
		if echo, ok := got.Body.(*icmp.Echo); err == nil && ok && got.Type == reply && echo.ID == id {
			return nil
		}
	}
}

// inject sends a packet that no socket can send, and waits until it has arrived.
func (l *lab) inject(f policy.Flow, end time.Time) error {
	id := nextID.Add(1)
	packet := binary.BigEndian.AppendUint32([]byte("probe"), id)
	if f.Protocol == policy.SCTP {
		packet = sctpInit(uint16(10000+id%50000), f.Port, id)
	}
	network := fmt.Sprintf("ip4:%d", f.Protocol)
	if f.To.Is6() {
		network = fmt.Sprintf("ip6:%d", f.Protocol)
	}
	c, err := net.DialIP(network, &net.IPAddr{IP: f.From.AsSlice()}, &net.IPAddr{IP: f.To.AsSlice()})
	if err != nil {
		return err
	}
	defer c.Close()
	for {
		if _, err := c.Write(packet); err != nil {
			return err
		}
		for range 50 {
			if _, ok := l.listen.LoadAndDelete(string(packet)); ok {
				return nil
			}
			if time.Now().After(end) {
				return errDenied
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// sctpInit is a packet with an INIT chunk (RFC 9260, 3.3.2).
func sctpInit(from, to uint16, tag uint32) []byte {
	b := make([]byte, 12, 32)
	binary.BigEndian.PutUint16(b, from)
	binary.BigEndian.PutUint16(b[2:], to)
	b = append(b, 1, 0, 0, 20)
	b = binary.BigEndian.AppendUint32(b, tag)   // initiate tag
	b = binary.BigEndian.AppendUint32(b, 65536) // window
	b = append(b, 0, 1, 0, 1)                   // streams
	b = binary.BigEndian.AppendUint32(b, 1)     // TSN
	binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// probes returns flows between the addresses of a lab.
func probes(r *rand.Rand, n int) (out []policy.Flow) {
	all := slices.Concat(locals, far, own)
	up := r.IntN(2) == 0
	for len(out) < n {
		f := policy.Flow{From: all[r.IntN(len(all))], To: all[r.IntN(len(all))]}
		f.ToNode = slices.Contains(own, f.To)
		if f.From == f.To || f.From.Is4() != f.To.Is4() || isFar(f.From) && (isFar(f.To) || f.ToNode) || slices.Contains(own, f.From) {
			continue
		}
		switch r.IntN(6) {
		case 0, 1:
			f.Protocol = policy.TCP
		case 2:
			f.Protocol = policy.UDP
		case 3:
			f.Protocol = policy.SCTP
		case 4:
			f.Protocol = unix.IPPROTO_ICMP
			if f.To.Is6() {
				f.Protocol = unix.IPPROTO_ICMPV6
			}
		case 5:
			// To conntrack, all packets between two addresses are one connection.
			if f.Protocol = 253; f.From.Less(f.To) != up && !f.ToNode {
				f.From, f.To = f.To, f.From
			}
		}
		if f.Protocol.HasPorts() {
			f.Port = servedPorts[r.IntN(len(servedPorts))]
		}
		out = append(out, f)
	}
	return out
}

func isFar(a netip.Addr) bool {
	for _, b := range far {
		if a == b {
			return true
		}
	}
	return false
}

// judge probes all flows at the same time and compares with what a ruleset allows.
func (l *lab) judge(t *Table, r *ruleset.Ruleset, flows []policy.Flow) {
	l.t.Helper()
	l.forget(t)
	var wait sync.WaitGroup
	for _, f := range flows {
		wait.Go(func() {
			allowed, timeout := expect(r, f), brevity
			if allowed {
				timeout = patience
			}
			switch err := l.probe(f, timeout); {
			case err != nil && !errors.Is(err, errDenied):
				l.t.Errorf("%+v: %v", f, err)
			case (err == nil) != allowed:
				l.t.Errorf("%+v: kernel allows %v, ruleset %v", f, err == nil, allowed)
			}
		})
	}
	wait.Wait()
}

// forget makes every packet a new connection's.
func (l *lab) forget(t *Table) {
	l.t.Helper()
	_, err := conntrack.End(t.kernel.Conn, func(conntrack.Connection) bool { return true })
	must(l.t, err)
}

// expect is what the kernel should do: pods that the ruleset doesn't have reach only the node.
func expect(r *ruleset.Ruleset, f policy.Flow) bool {
	if f.ToNode {
		return r.Allows(f)
	}
	for _, a := range []netip.Addr{f.From, f.To} {
		if _, ok := r.Pods[a]; !ok && !isFar(a) {
			return false
		}
	}
	return r.Allows(f)
}

// random returns a ruleset about the addresses of a lab. The last local pod isn't in it.
func random(r *rand.Rand) *ruleset.Ruleset {
	rs := ruleset.New()
	for i, a := range locals {
		rs.Identities[a] = ruleset.FirstPod + ruleset.Identity(i%4)
	}
	for _, a := range far[:2] {
		rs.Identities[a] = ruleset.FirstPod + ruleset.Identity(r.IntN(6))
	}
	for _, a := range far[4:6] {
		rs.Identities[a] = ruleset.FirstPod + ruleset.Identity(r.IntN(6))
	}
	for _, n := range [][2]string{{"10.77.0.0", "10.77.0.255"}, {"fd77::", "fd77::ff"}, {"10.99.0.0", "10.99.0.255"}, {"192.0.2.0", "192.0.2.6"}, {"192.0.2.7", "192.0.2.127"}, {"240.0.0.0", "255.255.255.255"}, {"2001:db8::", "2001:db8::6"}, {"2001:db8::7", "2001:db8::ffff"}, {"fe00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"}} {
		if r.IntN(4) > 0 {
			first, last := netip.MustParseAddr(n[0]), netip.MustParseAddr(n[1])
			rs.Ranges[first] = ruleset.Range{First: first, Last: last, Identity: ruleset.Identity(1 + r.IntN(4))}
		}
	}
	ids := map[policy.Direction][]ruleset.ProfileID{policy.Ingress: {""}, policy.Egress: {""}}
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for range 1 + r.IntN(4) {
			p := ruleset.Profile{ID: ruleset.ProfileID(fmt.Sprintf("p%x", r.Uint32())), Direction: d, Allow: randomAllow(r)}
			rs.Profiles[p.ID] = p
			ids[d] = append(ids[d], p.ID)
		}
	}
	pick := func(d policy.Direction) ruleset.ProfileID { return ids[d][r.IntN(len(ids[d]))] }
	for i, a := range locals {
		if i%4 < 3 {
			rs.Pods[a] = ruleset.Pod{Addr: a, Ingress: pick(policy.Ingress), Egress: pick(policy.Egress), Node: pick(policy.Egress)}
		}
	}
	return rs
}

// randomAllow returns what a profile allows, to identities and, less often, to groups.
func randomAllow(r *rand.Rand) map[ruleset.Match]struct{} {
	out := map[ruleset.Match]struct{}{}
	add := func(id ruleset.Identity) {
		for _, m := range randomMatches(r) {
			m.Identity = id
			out[m] = struct{}{}
		}
	}
	for n := range ruleset.Identity(6) {
		add(n)
		add(ruleset.FirstPod + n)
	}
	for _, g := range []ruleset.Identity{ruleset.AllIPv4, ruleset.AllIPv6, ruleset.PodsIPv4, ruleset.PodsIPv6} {
		if r.IntN(4) == 0 {
			add(g)
		}
	}
	return out
}

// randomMatches returns matches that don't overlap.
func randomMatches(r *rand.Rand) (out []ruleset.Match) {
	switch r.IntN(6) {
	case 0:
		return []ruleset.Match{{Protocol: ruleset.Every}}
	case 1:
		return nil
	}
	if r.IntN(2) == 0 {
		out = append(out, ruleset.Match{Protocol: ruleset.Other})
	}
	for _, p := range []policy.Protocol{policy.TCP, policy.UDP, policy.SCTP} {
		if r.IntN(4) == 0 {
			out = append(out, ruleset.Match{Protocol: ruleset.Protocol(p), Last: 65535})
			continue
		}
		for at := 70 + r.IntN(12); r.IntN(4) > 0 && at < 60000; {
			last := at + []int{0, 1, 7, 8, 9, 30, 5000}[r.IntN(7)]
			out = append(out, ruleset.Match{Protocol: ruleset.Protocol(p), First: uint16(at), Last: uint16(last)})
			at = last + 1 + []int{1, 5, 7000}[r.IntN(3)]
		}
	}
	return out
}

// TestTruth compares what the kernel does with packets with what the ruleset says, after a load
// and after updates.
func TestTruth(t *testing.T) {
	l := newLab(t)
	l.serve()
	table := l.open()
	for round := range uint64(6) {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, round))
		t.Logf("seed %d, round %d", seed, round)
		rs := random(r)
		if round%2 == 0 {
			must(t, table.Load(rs))
		} else {
			must(t, table.Apply(between(table.wanted, rs)))
		}
		l.judge(table, rs, probes(r, 300))
		if t.Failed() {
			t.Log(l.nft("list", "table", "inet", table.kernel.Name))
			return
		}
	}
}
