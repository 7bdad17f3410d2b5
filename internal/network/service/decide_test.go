package service

import (
	"net/netip"
	"reflect"
	"testing"
)

func TestDecide(t *testing.T) {
	addr, at := netip.MustParseAddr, netip.MustParseAddrPort
	cluster, external, balanced := addr("10.96.0.1"), addr("192.0.2.1"), addr("192.0.2.2")
	here, there, leaving := at("10.88.0.1:8080"), at("10.88.1.1:8080"), at("10.88.0.2:8080")
	ready := func(a netip.AddrPort, node string) Endpoint {
		return Endpoint{Address: a.Addr(), Node: node, Ready: true, Serving: true}
	}
	world := func(change func(*Service), endpoints ...Endpoint) *World {
		s := Service{
			Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{cluster}, ExternalIPs: []netip.Addr{external},
			LoadBalancerIPs: []netip.Addr{balanced}, Ports: []Port{{Name: "http", Protocol: TCP, Port: 80, NodePort: 30080}},
		}
		if change != nil {
			change(&s)
		}
		slice := Slice{Namespace: "default", Name: "web-1", Service: "web", Ports: []EndpointPort{{"http", TCP, 8080}}, Endpoints: endpoints}
		return &World{Services: []Service{s}, Slices: []Slice{slice}, Node: Node{Name: "a", Zone: "z"}}
	}
	both := []Endpoint{ready(here, "a"), ready(there, "b")}
	hinted := func(forNode, forZone string) []Endpoint {
		out := append([]Endpoint{}, both...)
		out[0].ForNodes, out[1].ForNodes = []string{"x"}, []string{forNode}
		out[0].ForZones, out[1].ForZones = []string{"x"}, []string{forZone}
		return out
	}
	gone := Endpoint{Address: leaving.Addr(), Node: "a", Serving: true, Terminating: true}
	internalLocal, externalLocal := func(s *Service) { s.InternalLocal = true }, func(s *Service) { s.ExternalLocal = true }
	ranges := func(s *Service) { s.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")} }
	to := func(a netip.Addr, port uint16, from Origin) Flow {
		return Flow{From: addr("203.0.113.9"), To: a, Protocol: TCP, Port: port, Origin: from}
	}
	nodePort := func(from Origin) Flow {
		f := to(addr("192.168.0.1"), 30080, from)
		f.ToNode = true
		return f
	}
	for name, c := range map[string]struct {
		w    *World
		f    Flow
		want Decision
	}{
		"a pod to a cluster IP":      {world(nil, both...), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}}},
		"the node to a cluster IP":   {world(nil, both...), to(cluster, 80, LocalNode), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}, Masquerade: true}},
		"outside to an external IP":  {world(nil, both...), to(external, 80, Outside), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}, Masquerade: true}},
		"outside to a node port":     {world(nil, both...), nodePort(Outside), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}, Masquerade: true}},
		"a pod to a node port":       {world(externalLocal, both...), nodePort(LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}}},
		"external, local":            {world(externalLocal, both...), nodePort(Outside), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here}}},
		"external, none here":        {world(externalLocal, both[1]), nodePort(Outside), Decision{Verdict: Drop}},
		"external, none here, a pod": {world(externalLocal, both[1]), nodePort(LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{there}}},
		"internal, local":            {world(internalLocal, both...), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here}}},
		"internal, none here":        {world(internalLocal, both[1]), to(cluster, 80, LocalPod), Decision{Verdict: Drop}},
		"no endpoints":               {world(externalLocal), nodePort(Outside), Decision{Verdict: Reject}},
		"only a leaving endpoint":    {world(nil, gone), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{leaving}}},
		"a leaving one, own":         {world(externalLocal, gone, both[1]), nodePort(Outside), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{leaving}}},
		"node hints":                 {world(nil, hinted("a", "x")...), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{there}}},
		"zone hints":                 {world(nil, hinted("x", "z")...), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{there}}},
		"hints for others":           {world(nil, hinted("x", "x")...), to(cluster, 80, LocalPod), Decision{Verdict: Forward, Endpoints: []netip.AddrPort{here, there}}},
		"a source out of range":      {world(ranges, both...), to(balanced, 80, Outside), Decision{Verdict: Drop}},
		"another port":               {world(nil, both...), to(cluster, 81, LocalPod), Decision{Verdict: Reject}},
		"another external port":      {world(nil, both...), to(external, 81, Outside), Decision{Verdict: Other}},
	} {
		got := c.w.Decide(c.f)
		if c.want.Verdict != Other {
			c.want.Service = "default/web"
		}
		if c.f.Port != 81 {
			c.want.Port = "http"
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
	}
}
