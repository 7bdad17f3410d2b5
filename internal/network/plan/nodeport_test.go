package plan

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestRefuses(t *testing.T) {
	addr := netip.MustParseAddr
	table := Table{NodePorts: NodePorts(true), Routers: []netip.Addr{addr("192.0.2.254")},
		Nodes: &Nodes{Self: []netip.Addr{addr("192.0.2.1")}, Others: []netip.Addr{addr("192.0.2.2")}}}
	unknown := table
	unknown.Nodes = nil
	pod := Packet{From: addr("10.1.1.2"), FromPod: true, Protocol: udp, Port: VXLANPort}
	from := func(from, to string, protocol uint8, port uint16) Packet {
		return Packet{From: addr(from), To: addr(to), Protocol: protocol, Port: port, Local: true}
	}
	to := func(p Packet, to string, local bool) Packet {
		p.To, p.Local = addr(to), local
		return p
	}
	for _, c := range []struct {
		name   string
		table  Table
		packet Packet
		want   string
	}{
		{"a pod to its node", table, to(pod, "192.0.2.1", true), "nodes talk to each other by port 8472, which pods"},
		{"a pod to another address of its node", table, to(pod, "192.0.2.77", true), "nodes talk"},
		{"a pod to its node, which knows no others", unknown, to(pod, "192.0.2.1", true), "nodes talk"},
		{"a pod to another node", table, to(pod, "192.0.2.2", false), "nodes talk"},
		{"a pod to outside", table, to(pod, "192.0.2.3", false), ""},
		{"a pod to another node by IPIP", table, Packet{From: pod.From, FromPod: true, To: addr("192.0.2.2"), Protocol: ipip}, "nodes talk to each other by protocol 4,"},
		{"a pod to a router by BGP", table, Packet{From: pod.From, FromPod: true, To: addr("192.0.2.254"), Protocol: tcp, Port: BGPPort}, "nodes talk to each other by port 179,"},
		{"a pod to a router by VXLAN", table, to(pod, "192.0.2.254", false), ""},
		{"a node", table, from("192.0.2.2", "192.0.2.1", udp, VXLANPort), ""},
		{"a node to another address", table, from("192.0.2.2", "192.0.2.77", udp, VXLANPort), "packets to port 8472 are taken only from nodes"},
		{"a host", table, from("192.0.2.3", "192.0.2.1", udp, VXLANPort), "packets to port 8472"},
		{"a host to a port of none", table, from("192.0.2.3", "192.0.2.1", tcp, VXLANPort), ""},
		{"a host by WireGuard", table, from("192.0.2.3", "192.0.2.1", udp, WireGuardPort), ""},
		{"a host by BGP", table, from("192.0.2.3", "192.0.2.1", tcp, BGPPort), "packets to port 179"},
		{"a router by BGP", table, from("192.0.2.254", "192.0.2.1", tcp, BGPPort), ""},
		{"a router by VXLAN", table, from("192.0.2.254", "192.0.2.1", udp, VXLANPort), "packets to port 8472"},
		{"a host to a node that knows no others", unknown, from("192.0.2.3", "192.0.2.1", udp, VXLANPort), ""},
	} {
		if got := c.table.Refuses(c.packet); !strings.HasPrefix(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	if slices.ContainsFunc(NodePorts(false), func(p NodePort) bool { return p.Port == BGPPort || p.Port == BFDPort }) {
		t.Error("without BGP, its ports aren't free")
	}
}

func TestNodesOf(t *testing.T) {
	n := &Nodes{Self: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}, Others: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Links: []string{"eth0", "eth1"}}
	if got := NodesOf(n.Elements()); !got.Equal(n) {
		t.Errorf("%+v, want %+v", got, n)
	}
	if got := NodesOf((&Nodes{Others: n.Others}).Elements()); got != nil {
		t.Errorf("without an address of the node: %+v", got)
	}
	if got := (*Nodes)(nil).Elements(); got != nil {
		t.Errorf("of none: %v", got)
	}
}
