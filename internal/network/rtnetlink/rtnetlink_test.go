package rtnetlink

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
)

// TestRoute parses what was encoded: a request has the form of the kernel's messages.
func TestRoute(t *testing.T) {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix
	for name, c := range map[string]struct {
		route plan.Route
		hops  []Hop
	}{
		"to a link":            {plan.Route{Kind: plan.Unicast, Dst: prefix("10.1.0.0/16")}, []Hop{{Link: 3}}},
		"by a gateway":         {plan.Route{Kind: plan.Unicast, Dst: prefix("10.1.0.0/16"), Metric: 7, MTU: 1400, Source: addr("10.9.0.1")}, []Hop{{3, addr("192.0.2.1")}}},
		"IPv4 by IPv6":         {plan.Route{Kind: plan.Unicast, Dst: prefix("10.1.0.0/16")}, []Hop{{3, addr("2001:db8::1")}}},
		"IPv6":                 {plan.Route{Kind: plan.Unicast, Dst: prefix("fd00::/64"), Source: addr("fd01::1")}, []Hop{{3, addr("fe80::1")}}},
		"by several gateways":  {plan.Route{Kind: plan.Unicast, Dst: prefix("10.1.0.0/16")}, []Hop{{3, addr("192.0.2.1")}, {4, addr("2001:db8::1")}, {3, addr("192.0.2.2")}}},
		"several, of IPv6":     {plan.Route{Kind: plan.Unicast, Dst: prefix("fd00::/64")}, []Hop{{3, addr("fe80::1")}, {4, addr("fe80::1")}}},
		"the default route":    {plan.Route{Kind: plan.Unicast, Dst: prefix("0.0.0.0/0")}, []Hop{{3, addr("192.0.2.1")}}},
		"the default of IPv6":  {plan.Route{Kind: plan.Unicast, Dst: prefix("::/0")}, []Hop{{3, addr("fe80::1")}}},
		"an unreachable route": {plan.Route{Kind: plan.Unreachable, Dst: prefix("fd00::/64"), Metric: 9}, []Hop{{}}},
		"a local route":        {plan.Route{Kind: plan.Local, Dst: prefix("::1/128"), Metric: 9}, []Hop{{Link: 3}}},
	} {
		t.Run(name, func(t *testing.T) {
			req := RouteBy(unix.RTM_NEWROUTE, unix.NLM_F_EXCL, c.route, c.hops...)
			got, ok := ParseRoute(req.Serialize()[unix.SizeofNlMsghdr:])
			table := unix.RT_TABLE_MAIN
			if c.route.Kind == plan.Local {
				table = unix.RT_TABLE_LOCAL
			}
			want := KernelRoute{Route: c.route, Protocol: plan.Protocol, Table: table, Hops: c.hops}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); !ok || diff != "" {
				t.Error(ok, diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	hops := []Hop{{3, netip.MustParseAddr("192.0.2.1")}, {4, netip.MustParseAddr("2001:db8::1")}}
	r := plan.Route{Kind: plan.Unicast, Dst: netip.MustParsePrefix("10.1.0.0/16"), MTU: 1400}
	f.Add(RouteBy(unix.RTM_NEWROUTE, 0, r, hops...).Serialize()[unix.SizeofNlMsghdr:])
	f.Add(GetLink("eth0", 3).Serialize()[unix.SizeofNlMsghdr:])
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = ParseRoute(data)
		_, _ = ParseLink(data)
	})
}
