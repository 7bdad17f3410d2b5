package placement

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func surroundings() *Surroundings {
	prefix := netip.MustParsePrefix
	return &Surroundings{
		Services: []netip.Prefix{prefix("10.203.0.0/16"), prefix("fd68:7573:6b80::/112")},
		Pods:     []netip.Prefix{prefix("10.201.0.0/16"), prefix("fd68:7573:6b00::/64")},
		Places: []Place{
			{Local, prefix("192.0.2.10/32"), "on eth0"},
			{Local, prefix("10.203.0.7/32"), "on docker0"},
			{Local, prefix("127.0.0.0/8"), "on lo"},
			{Local, prefix("2001:db8::10/128"), "on eth0"},
			{Network, prefix("192.0.2.0/24"), "of eth0"},
			{Network, prefix("2001:db8::/64"), "of eth0"},
			{Network, prefix("10.0.7.0/24"), "of vpn0"},
			{Broadcast, prefix("192.0.2.255/32"), "of eth0"},
			{Broadcast, prefix("2001:db8::/128"), "of eth0"},
			{Gateway, prefix("192.0.2.1/32"), "of eth0"},
			{Gateway, prefix("10.99.0.1/32"), "of eth0"},
			{Gateway, prefix("fd99::1/128"), "of eth0"},
			{Node, prefix("192.0.2.11/32"), "n2"},
			{Node, prefix("10.50.0.2/32"), "n3"},
			{Node, prefix("2001:db8::11/128"), "n2"},
			{Resolver, prefix("10.60.0.53/32"), "of this node"},
			{Resolver, prefix("fd68:7573:6b01::5/128"), "of pods"},
			{Local, prefix("fd68:7573:6b01::5/128"), "on lo"},
		},
	}
}

// TestAddresses checks both rules for each kind of address.
func TestAddresses(t *testing.T) {
	s := surroundings()
	for _, c := range []struct{ address, cluster, external string }{
		// Those of Services, and others that only lead away.
		{"10.203.0.9", "", "is in the subnet of Services, 10.203.0.0/16"},
		{"fd68:7573:6b80::9", "", "is in the subnet of Services, fd68:7573:6b80::/112"},
		{"10.96.0.10", "", ""},
		{"fd96::10", "", ""},
		{"8.8.8.8", "is neither private nor in service-subnets", ""},
		{"2606:4700::1111", "is neither private nor in service-subnets", ""},
		{"100.64.0.1", "is neither private nor in service-subnets", ""},
		// The node's own, which may have external IPs.
		{"192.0.2.10", "is an address of this node on eth0", ""},
		{"2001:db8::10", "is an address of this node on eth0", ""},
		{"10.203.0.7", "is an address of this node on docker0", "is in the subnet of Services, 10.203.0.0/16"},
		// Others' in the node's networks.
		{"192.0.2.77", "is in the network 192.0.2.0/24 of eth0", ""},
		{"2001:db8::77", "is in the network 2001:db8::/64 of eth0", ""},
		{"10.0.7.9", "is in the network 10.0.7.0/24 of vpn0", ""},
		{"192.0.2.255", "is a broadcast address of eth0", "is a broadcast address of eth0"},
		{"2001:db8::", "is a broadcast address of eth0", "is a broadcast address of eth0"},
		{"192.0.2.1", "is the address of a gateway of eth0", "is the address of a gateway of eth0"},
		{"10.99.0.1", "is the address of a gateway of eth0", "is the address of a gateway of eth0"},
		{"fd99::1", "is the address of a gateway of eth0", "is the address of a gateway of eth0"},
		{"192.0.2.11", "is an address of node n2", "is an address of node n2"},
		{"10.50.0.2", "is an address of node n3", "is an address of node n3"},
		{"2001:db8::11", "is an address of node n2", "is an address of node n2"},
		{"10.60.0.53", "is the address of a DNS server of this node", "is the address of a DNS server of this node"},
		{"fd68:7573:6b01::5", "is the address of a DNS server of pods", "is the address of a DNS server of pods"},
		{"10.201.3.4", "is in the subnet of pods, 10.201.0.0/16", "is in the subnet of pods, 10.201.0.0/16"},
		{"fd68:7573:6b00::4", "is in the subnet of pods, fd68:7573:6b00::/64", "is in the subnet of pods, fd68:7573:6b00::/64"},
		// Those that nobody can have.
		{"127.0.0.2", "is a loopback address", "is a loopback address"},
		{"::1", "is a loopback address", "is a loopback address"},
		{"169.254.169.254", "is a link-local address", "is a link-local address"},
		{"169.254.64.9", "is a link-local address", "is a link-local address"},
		{"fe80::1", "is a link-local address", "is a link-local address"},
		{"224.0.0.1", "is a multicast address", "is a multicast address"},
		{"ff02::1", "is a multicast address", "is a multicast address"},
		{"255.255.255.255", "is a reserved address", "is a reserved address"},
		{"0.0.0.0", "is an address of this network", "is an address of this network"},
		{"::", "is unspecified", "is unspecified"},
		{"fd00:ec2::254", "is an address of a cloud's own services", "is an address of a cloud's own services"},
		{"fd20:ce::254", "is an address of a cloud's own services", "is an address of a cloud's own services"},
		{"168.63.129.16", "is an address of a cloud's own services", "is an address of a cloud's own services"},
	} {
		a := netip.MustParseAddr(c.address)
		if got := s.ClusterIP(a); got != c.cluster {
			t.Errorf("clusterIP %v: got %q, want %q", a, got, c.cluster)
		}
		if got := s.ExternalIP(a); got != c.external {
			t.Errorf("externalIP %v: got %q, want %q", a, got, c.external)
		}
		if got, want := s.Local(a), slices.ContainsFunc(s.Places, func(p Place) bool { return p.Kind == Local && p.Prefix.Contains(a) }); got != want {
			t.Errorf("%v is local: %t", a, got)
		}
	}
}

func TestOverlaps(t *testing.T) {
	s := surroundings()
	s.Places = append(s.Places, Place{Network, netip.MustParsePrefix("10.0.0.0/8"), "of vpn1"}, Place{Broadcast, netip.MustParsePrefix("10.203.0.255/32"), "of vpn1"})
	if got, want := strings.Join(s.Overlaps(), "\n"), "service-subnets has 10.203.0.0/16, where the node has something else: 10.0.0.0/8 is in the network 10.0.0.0/8 of vpn1"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	s.Places = surroundings().Places
	if got, want := strings.Join(s.Overlaps(), "\n"), "service-subnets has 10.203.0.0/16, where the node has something else: 10.203.0.7/32 is an address of this node on docker0"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
