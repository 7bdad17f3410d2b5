package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

func planOf(node Node, change func(*pod.Attachment)) Plan {
	a := pod.Attachment{Sandbox: strings.Repeat("0123456789abcdef", 4), Netns: "/run/netns/a", IfName: "eth0", Ports: []pod.PortMapping{{HostPort: 80, Port: 80}}}
	if change != nil {
		change(&a)
	}
	node.Instance = "be0f"
	return For(node, a, []netip.Prefix{netip.MustParsePrefix("10.1.0.9/16"), netip.MustParsePrefix("fd01::9/64")})
}

func TestRequestedMAC(t *testing.T) {
	derived := planOf(Node{}, nil).Veth.PodMAC
	if derived[0]&3 != 2 {
		t.Errorf("derived %v: not a local unicast address", derived)
	}
	p := planOf(Node{}, func(a *pod.Attachment) { a.MAC = "02:00:00:AA:bb:01" })
	if got := p.Veth.PodMAC.String(); got != "02:00:00:aa:bb:01" {
		t.Errorf("got %s", got)
	}
	for _, a := range p.Pod.Addresses {
		if a.Prefix.Addr().IsLinkLocalUnicast() && a.Prefix.Addr() != netip.MustParseAddr("fe80::ff:feaa:bb01") {
			t.Errorf("link-local address %v", a.Prefix)
		}
	}
	for _, bad := range []string{"0", "02:00:00:00:00", "02:00:00:00:00:zz", "03:00:00:00:00:01", "00:00:00:00:00:00", "2:0:0:0:0:1"} {
		if _, err := ParseMAC(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestRoutesInThePod(t *testing.T) {
	routes := func(p Plan) (out []string) {
		for _, r := range p.Pod.Routes {
			if r.Kind == Unicast {
				out = append(out, r.Dst.String()+" "+r.Via.String())
			}
		}
		return out
	}
	some := []Destination{
		{Dst: netip.MustParsePrefix("10.0.0.0/8")},
		{Dst: netip.MustParsePrefix("192.0.2.0/24"), Via: netip.MustParseAddr("10.1.0.7")},
		{Dst: netip.MustParsePrefix("fd00::/8")},
	}
	for _, c := range []struct {
		node Node
		want []string
	}{
		{Node{Mode: PTP}, []string{"169.254.1.1/32 invalid IP", "0.0.0.0/0 169.254.1.1", "::/0 fe80::1"}},
		{Node{Mode: Bridge}, []string{"0.0.0.0/0 10.1.0.1", "::/0 fd01::1"}},
		{Node{Mode: Bridge, Routes: some}, []string{"10.0.0.0/8 10.1.0.1", "192.0.2.0/24 10.1.0.7", "fd00::/8 fd01::1"}},
		{Node{Mode: PTP, Routes: some[:1]}, []string{"169.254.1.1/32 invalid IP", "10.0.0.0/8 169.254.1.1"}},
	} {
		p := planOf(c.node, nil)
		if got := routes(p); !slices.Equal(got, c.want) {
			t.Errorf("%+v: got %q, want %q", c.node, got, c.want)
		}
		if got := p.Attached("n").Gateways; len(got) != 2 {
			t.Errorf("%+v: gateways %v", c.node, got)
		}
	}
}

func TestBridgeName(t *testing.T) {
	for name, want := range map[string]string{"": "hkbrbe0f", "simplecni0": "simplecni0"} {
		p := planOf(Node{Mode: Bridge, Bridge: name}, nil)
		b := ForNode(BaseConfig{Instance: "be0f", Mode: Bridge, Bridge: name, Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
		if p.Veth.Bridge != want || b.Link.Name != want || b.Table.Bridge != want || b.Host.Addresses[0].Link != want {
			t.Errorf("%q: veth %s, base %+v", name, p.Veth.Bridge, b)
		}
	}
}

func TestHairpinCanBeOff(t *testing.T) {
	for off, want := range map[bool]int{false: 2, true: 0} {
		p := planOf(Node{Mode: Bridge, NoHairpin: off}, nil)
		n := 0
		for _, e := range p.Elements {
			if strings.HasPrefix(e.Set, Hairpin) {
				n++
			}
		}
		if n != want || p.Veth.Hairpin == off {
			t.Errorf("off %v: %d elements, port %v", off, n, p.Veth.Hairpin)
		}
	}
}

func TestBandwidth(t *testing.T) {
	for _, c := range []struct {
		asks pod.Bandwidth
		want Bandwidth
	}{
		{pod.Bandwidth{}, Bandwidth{}},
		{pod.Bandwidth{IngressBurst: 1000}, Bandwidth{}},
		{pod.Bandwidth{IngressRate: 1000}, Bandwidth{Link: "hkbe0f012345678", ToPod: Rate{1000, smallestBurst}}},
		{pod.Bandwidth{EgressRate: 1e9}, Bandwidth{Link: "hkbe0f012345678", IFB: "hfbe0f012345678", FromPod: Rate{1e9, 1e9 / burstPart}}},
		{pod.Bandwidth{IngressRate: 1e6, IngressBurst: 1e9, EgressRate: 2e6, EgressBurst: 1}, Bandwidth{
			Link: "hkbe0f012345678", ToPod: Rate{1e6, 1e9}, IFB: "hfbe0f012345678", FromPod: Rate{2e6, smallestBurst},
		}},
	} {
		if got := planOf(Node{}, func(a *pod.Attachment) { a.Bandwidth = c.asks }).Bandwidth; got != c.want {
			t.Errorf("%+v: got %+v, want %+v", c.asks, got, c.want)
		}
	}
}
