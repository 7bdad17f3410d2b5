package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/service"
)

// kernel is what updates have made of the kernel.
type kernel struct {
	fronts     map[Key]*Front
	clusterIPs map[netip.Addr]bool
	local      map[netip.Addr]bool
}

func (k *kernel) apply(t *testing.T, u *Update) {
	t.Helper()
	for key, f := range u.Fronts {
		old := k.fronts[key]
		if f == nil && old == nil || f != nil && old != nil && f.equal(old) {
			t.Errorf("an update changes nothing at %v: %+v", key, f)
		}
		if k.fronts[key] = f; f == nil {
			delete(k.fronts, key)
		}
	}
	for to, from := range map[*map[netip.Addr]bool]map[netip.Addr]bool{&k.clusterIPs: u.ClusterIPs, &k.local: u.Local} {
		for a, present := range from {
			if (*to)[a] == present {
				t.Errorf("an update changes nothing at %v", a)
			}
			if (*to)[a] = present; !present {
				delete(*to, a)
			}
		}
	}
}

// decide does what the kernel does with a connection.
func (k *kernel) decide(f service.Flow) service.Decision {
	find := func(a netip.Addr) *Front { return k.fronts[Key{a, f.Protocol, f.Port}] }
	front := find(f.To)
	if front == nil && f.ToNode {
		everywhere := netip.IPv4Unspecified()
		if f.To.Is6() {
			everywhere = netip.IPv6Unspecified()
		}
		front = find(everywhere)
	}
	if front == nil {
		if k.clusterIPs[f.To] {
			return service.Decision{Verdict: service.Reject}
		}
		return service.Decision{Verdict: service.Other}
	}
	d := service.Decision{Service: front.Service, Port: front.Port, Affinity: front.Affinity}
	if len(front.Sources) > 0 && !slices.ContainsFunc(front.Sources, func(p netip.Prefix) bool { return p.Contains(f.From) }) {
		d.Verdict = service.Drop
		return d
	}
	lead := front.Inside
	if f.Origin == service.Outside {
		lead = front.Outside
	}
	d.Verdict, d.Masquerade = lead.Verdict, lead.Masquerade
	if d.Endpoints = slices.Clone(front.Endpoints(lead)); d.Verdict == service.Forward {
		d.Masquerade = d.Masquerade || f.Origin == service.LocalNode
	}
	slices.SortFunc(d.Endpoints, netip.AddrPort.Compare)
	return d
}

func TestCompiledIsWhatIsSpecified(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 14))
		c, k := New(), &kernel{map[Key]*Front{}, map[netip.Addr]bool{}, map[netip.Addr]bool{}}
		services, parts, node := map[string]*service.Service{}, map[string]*service.Slice{}, service.Node{}
		for range 25 {
			changes := service.Changes{Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
			if r.IntN(6) == 0 {
				changes.Node = &service.Node{Name: pick(r, "a", "b"), Zone: pick(r, "y", "z")}
				node = *changes.Node
			}
			for range r.IntN(3) {
				s := randomService(r)
				changes.Services[s.Key()] = pick(r, &s, &s, &s, nil)
			}
			for range r.IntN(4) {
				s := randomSlice(r)
				changes.Slices[s.Key()] = pick(r, &s, &s, &s, nil)
			}
			merge(services, changes.Services)
			merge(parts, changes.Slices)
			c.Change(changes)
			k.apply(t, c.Commit())
			w := service.World{Node: node}
			for _, s := range services {
				w.Services = append(w.Services, *s)
			}
			for _, s := range parts {
				w.Slices = append(w.Slices, *s)
			}
			for range 200 {
				f := randomFlow(r)
				want, got := w.Decide(f), k.decide(f)
				if got.Verdict == service.Reject && got.Service == "" {
					want.Service = "" // the kernel needs no name for other ports of a cluster IP
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("seed %d: %+v\ngot  %+v\nwant %+v", seed, f, got, want)
				}
			}
		}
		// All that has come goes.
		gone := service.Changes{Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
		for key := range services {
			gone.Services[key] = nil
		}
		for key := range parts {
			gone.Slices[key] = nil
		}
		c.Change(gone)
		k.apply(t, c.Commit())
		if n := len(k.fronts) + len(k.clusterIPs) + len(k.local) + len(c.services) + len(c.claims) + len(c.fronts); n != 0 {
			t.Fatalf("seed %d: %d things are left: %+v %+v", seed, n, k, c)
		}
	}
}

func merge[V any](to, from map[string]*V) {
	maps.Copy(to, from)
	maps.DeleteFunc(to, func(_ string, v *V) bool { return v == nil })
}

func pick[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func some[T any](r *rand.Rand, from ...T) (out []T) {
	for _, v := range from {
		if r.IntN(2) == 0 {
			out = append(out, v)
		}
	}
	return out
}

var addr = netip.MustParseAddr

func randomService(r *rand.Rand) service.Service {
	return service.Service{
		Namespace: "n", Name: pick(r, "s", "t", "u"),
		ClusterIPs:  some(r, addr("10.96.0.1"), addr("10.96.0.2"), addr("fd96::1")),
		ExternalIPs: some(r, addr("192.0.2.1"), addr("2001:db8::1")), LoadBalancerIPs: some(r, addr("192.0.2.1"), addr("192.0.2.2"), addr("2001:db8::2")),
		SourceRanges: some(r, netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("198.51.0.0/16"), netip.MustParsePrefix("::/0")),
		Ports: some(r, service.Port{Name: "a", Protocol: service.TCP, Port: 80, NodePort: pick[uint16](r, 0, 30000, 30001)},
			service.Port{Name: "b", Protocol: service.UDP, Port: 80, NodePort: 30000}, service.Port{Name: "c", Protocol: service.TCP, Port: 81}),
		Affinity: pick[time.Duration](r, 0, time.Hour), InternalLocal: pick(r, false, true), ExternalLocal: pick(r, false, true),
	}
}

func randomSlice(r *rand.Rand) service.Slice {
	s := service.Slice{
		Namespace: "n", Name: pick(r, "1", "2", "3", "4"), Service: pick(r, "s", "t", "u", ""),
		Ports: some(r, service.EndpointPort{Name: "a", Protocol: service.TCP, Port: 8080}, service.EndpointPort{Name: "b", Protocol: service.UDP, Port: 8080},
			service.EndpointPort{Name: "c", Protocol: service.TCP, Port: 8081}),
	}
	for i := range r.IntN(5) {
		e := service.Endpoint{Address: addr(fmt.Sprint("10.88.0.", i+1)), Node: pick(r, "a", "b", "")}
		if r.IntN(3) == 0 {
			e.Address = addr(fmt.Sprint("fd88::", i+1))
		}
		e.Ready, e.Serving = r.IntN(3) > 0, r.IntN(3) > 0
		e.Terminating = !e.Ready && r.IntN(2) == 0
		e.ForNodes, e.ForZones = pick(r, nil, []string{"a"}, []string{"b"}), pick(r, nil, []string{"y"}, []string{"z"})
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

func randomFlow(r *rand.Rand) service.Flow {
	f := service.Flow{
		From: addr(pick(r, "198.51.100.9", "198.51.3.9", "10.88.0.1", "192.0.2.2")), To: addr(pick(r, "10.96.0.1", "10.96.0.2", "192.0.2.1", "192.0.2.2", "192.168.0.1")),
		Protocol: pick(r, service.TCP, service.UDP), Port: pick[uint16](r, 80, 81, 30000, 30001, 9), Origin: pick(r, service.Outside, service.LocalNode, service.LocalPod),
	}
	f.ToNode = f.To == addr("192.168.0.1")
	if r.IntN(3) == 0 {
		f.From, f.To = addr(pick(r, "2001:db8::9", "2001:db8::2")), addr(pick(r, "fd96::1", "2001:db8::1", "2001:db8::2", "fd00::1"))
		f.ToNode = f.To == addr("fd00::1")
	}
	return f
}

func TestAnEndpointThatGoesMovesOneOther(t *testing.T) {
	at := func(n int) netip.AddrPort { return netip.AddrPortFrom(addr(fmt.Sprint("10.88.0.", n)), 80) }
	old := []netip.AddrPort{at(1), at(2), at(3), at(4)}
	if got, want := arrange(old, []netip.AddrPort{at(1), at(3), at(4)}), []netip.AddrPort{at(1), at(4), at(3)}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := arrange(old, []netip.AddrPort{at(0), at(1), at(2), at(3), at(4)}), append(old, at(0)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestEndedEndpoints(t *testing.T) {
	s := &service.Service{
		Namespace: "n", Name: "s", ClusterIPs: []netip.Addr{addr("10.96.0.1")},
		Ports: []service.Port{{Name: "t", Protocol: service.TCP, Port: 80}, {Name: "u", Protocol: service.UDP, Port: 80}},
	}
	slice := func(states ...bool) *service.Slice {
		out := &service.Slice{Namespace: "n", Name: "1", Service: "s", Ports: []service.EndpointPort{{Name: "t", Protocol: service.TCP, Port: 80}, {Name: "u", Protocol: service.UDP, Port: 80}}}
		for i, ready := range states {
			out.Endpoints = append(out.Endpoints, service.Endpoint{Address: addr(fmt.Sprint("10.88.0.", i+1)), Ready: ready})
		}
		return out
	}
	c := New()
	commit := func(slice *service.Slice) map[string]bool {
		c.Change(service.Changes{Services: map[string]*service.Service{"n/s": s}, Slices: map[string]*service.Slice{"n/1": slice}})
		out := map[string]bool{}
		for _, e := range c.Commit().Ended {
			out[fmt.Sprint(e.Key.Protocol, " ", e.Endpoint)] = true
		}
		return out
	}
	for _, step := range []struct {
		slice *service.Slice
		want  []string
	}{
		{nil, nil},
		{slice(true, true), []string{"UDP invalid AddrPort"}},
		{slice(true, false), []string{"UDP 10.88.0.2:80"}}, // its TCP connections go on
		{slice(true), []string{"TCP 10.88.0.2:80"}},        // it is gone
		{slice(), []string{"TCP 10.88.0.1:80", "UDP 10.88.0.1:80"}},
	} {
		got := commit(step.slice)
		if !slices.Equal(slices.Sorted(maps.Keys(got)), step.want) {
			t.Errorf("got %v, want %v", got, step.want)
		}
	}
}

func TestWhereNodePortsAre(t *testing.T) {
	prefix := netip.MustParsePrefix
	primary := &service.Node{Name: "n", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	for _, c := range []struct {
		configured []netip.Prefix
		node       *service.Node
		want       []netip.Prefix
	}{
		{nil, primary, []netip.Prefix{prefix("192.0.2.1/32"), prefix("2001:db8::1/128")}},
		{[]netip.Prefix{prefix("192.0.2.0/24"), prefix("192.0.2.0/25")}, primary, []netip.Prefix{prefix("192.0.2.0/24")}},
		{nil, &service.Node{Name: "n"}, []netip.Prefix{prefix("0.0.0.0/0"), prefix("::/0")}},
	} {
		compiler := New(c.configured...)
		compiler.Change(service.Changes{Node: c.node})
		if got := compiler.Commit().NodePorts; !slices.Equal(got, c.want) {
			t.Errorf("configured %v: at %v, want %v", c.configured, got, c.want)
		}
		if got := compiler.Commit().NodePorts; got != nil {
			t.Errorf("without a change: %v", got)
		}
	}
}
