package explain

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/connlimit"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/pod"
)

// TestParseConnection checks what people may write.
func TestParseConnection(t *testing.T) {
	for _, c := range []struct {
		protocol string
		port     int32
		ok       bool
	}{{"tcp", 80, true}, {"sctp", 65535, true}, {"1", 0, true}, {"17", 53, true}, {"tcp", 0, false}, {"icmp", 0, false}, {"1", 80, false}, {"udp", 70000, false}, {"0", 0, false}} {
		if _, err := ParseConnection("a", "b", c.protocol, c.port); (err == nil) != c.ok || err != nil && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// lab is a node with two pods, web and db, in network namespaces.
type lab struct {
	*testing.T
	node    string
	web, db *network.End
	Explainer
}

func newLab(t *testing.T) *lab {
	hosttest.Root(t)
	dir := t.TempDir()
	l := &lab{T: t, node: filepath.Join(dir, "node")}
	netnstest.Make(t, l.node)
	for _, args := range []string{"link add up0 type veth peer name up1", "link set up1 up", "addr add 192.0.2.2/24 dev up0", "link set up0 up", "link set lo up", "route add default via 192.0.2.1"} {
		netnstest.IP(t, l.node, args)
	}
	n, err := network.Open(t.Context(), network.Config{
		Instance: "be7a", Dir: filepath.Join(dir, "journal"), Netns: l.node, Subnets: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")}, Masquerade: true, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Explainer = Explainer{Network: n, Connections: n.Connections}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	for i, name := range []string{"web", "db"} {
		ns := filepath.Join(dir, name)
		netnstest.Make(t, ns)
		a := pod.Attachment{Sandbox: strings.Repeat("ab"[i:i+1], pod.IDLength), Netns: ns, IfName: "eth0", Pod: pod.Ref{Namespace: "shop", Name: name, UID: name}}
		if name == "db" {
			a.Ports = []pod.PortMapping{{HostPort: 8080, Port: 5432, Protocol: pod.TCP}}
		}
		if _, err := n.Attach(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Detach(t.Context(), a); err != nil && t.Context().Err() == nil {
				t.Error(err)
			}
		})
	}
	l.web, l.db = n.Paths().Named("shop/web"), n.Paths().Named("shop/db")
	return l
}

// explain explains a connection by TCP and returns one text for each hop.
func (l *lab) explain(from, to string, port int32) (out []string) {
	l.Helper()
	c, err := ParseConnection(from, to, "tcp", port)
	if err != nil {
		l.Fatal(err)
	}
	hops, err := l.Explain(l.Context(), c)
	if err != nil {
		l.Fatal(err)
	}
	for _, h := range hops {
		text := h.Where + " " + string(h.Verdict) + ": " + h.Why
		if h.Difference != "" {
			text += " BUT " + h.Difference + " DO " + h.Remedy
		}
		out = append(out, text)
	}
	return out
}

// want checks that there are hops with the texts, in that order, and that no other one has a
// difference.
func (l *lab) want(what string, hops []string, texts ...string) {
	l.Helper()
	at := 0
	for _, h := range hops {
		if at < len(texts) && strings.Contains(h, texts[at]) {
			at++
		} else if strings.Contains(h, "BUT") {
			l.Errorf("%s: an unexpected difference: %s", what, h)
		}
	}
	if at < len(texts) {
		l.Errorf("%s: no hop %q in\n%s", what, texts[at], strings.Join(hops, "\n"))
	}
}

// TestRefusedPods explains why a pod begins no connections, and that it is reached.
func TestRefusedPods(t *testing.T) {
	l := newLab(t)
	l.Connections = func() (connlimit.Usage, error) {
		return connlimit.Usage{Refused: []connlimit.Refusal{{Pod: "shop/web", Held: 900, Limit: 500}}}, nil
	}
	l.want("from it", l.explain("shop/web", "shop/db", 5432), "pod shop/web fails: pod shop/web begins no connections: it holds 900 entries", "pod shop/db ok")
	l.want("to it", l.explain("shop/db", "shop/web", 80), "pod shop/db ok", "pod shop/web ok")
}

// TestServices follows connections to Services.
func TestServices(t *testing.T) {
	l := newLab(t)
	at := netip.MustParseAddr
	l.Services = func() service.World {
		return service.World{
			Services: []service.Service{
				{Namespace: "shop", Name: "store", ClusterIPs: []netip.Addr{at("10.96.0.1")}, Ports: []service.Port{{Protocol: service.TCP, Port: 80, NodePort: 30080}}},
				{Namespace: "shop", Name: "empty", ClusterIPs: []netip.Addr{at("10.96.0.2")}, Ports: []service.Port{{Protocol: service.TCP, Port: 80}}},
				{Namespace: "shop", Name: "headless"},
			},
			Slices: []service.Slice{{
				Namespace: "shop", Name: "store-1", Service: "store", Ports: []service.EndpointPort{{Protocol: service.TCP, Port: 5432}},
				Endpoints: []service.Endpoint{{Address: l.db.Addresses[0], Ready: true}, {Address: at("10.99.0.9"), Ready: true}},
			}},
		}
	}
	leads := "service shop/store ok: leads to " + l.db.Addresses[0].String() + ":5432, one of 2 endpoints"
	for what, hops := range map[string][]string{
		"by name": l.explain("shop/web", "shop/store", 80), "by address": l.explain("shop/web", "10.96.0.1", 80), "by node port": l.explain("shop/web", "192.0.2.2", 30080),
	} {
		l.want(what, hops, "pod shop/web ok", leads, "this node ok", "ok: by "+l.db.Plan.Veth.Host, "pod shop/db ok")
	}
	for _, c := range []struct {
		to   string
		port int32
		want string
	}{
		{"shop/empty", 80, "service shop/empty fails: no endpoint of it is ready"},
		{"shop/store", 81, "service shop/store fails: it has no port 81/TCP"},
	} {
		hops := l.explain("shop/web", c.to, c.port)
		l.want(c.to, hops, "pod shop/web ok", c.want)
		if len(hops) != 2 {
			t.Errorf("hops after the Service refuses: %q", hops)
		}
	}
	c, err := ParseConnection("shop/web", "shop/headless", "tcp", 80)
	if err == nil {
		_, err = l.Explain(t.Context(), c)
	}
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("a headless Service: %v", err)
	}
}

// TestHops follows connections in a real node, and what others have done to it.
func TestHops(t *testing.T) {
	l := newLab(t)
	web, db := l.web.Plan.Veth, l.db.Plan.Veth
	l.want("between pods", l.explain("shop/web", "shop/db", 5432),
		"pod shop/web ok", "this node ok", "ok: by "+db.Host, "pod shop/db ok")
	l.want("a host port", l.explain("shop/web", "192.0.2.2", 8080),
		"pod shop/web ok", "host port 8080 ok: forwarded to "+l.db.Addresses[0].String()+":5432 of shop/db", "ok: by "+db.Host, "pod shop/db ok")
	l.want("the node's own port", l.explain("shop/web", "192.0.2.2", 22),
		"pod shop/web ok", "this node ok: takes it itself: 192.0.2.2 is its own address")
	l.want("outside", l.explain("shop/web", "198.51.100.7", 443),
		"pod shop/web ok", "ok: outside of the pod network, by up0 via 192.0.2.1, with this node's address")
	l.want("from the node", l.explain("192.0.2.2", "shop/db", 5432), "ok: by "+db.Host, "pod shop/db ok")
	l.want("an address without a pod", l.explain("shop/web", "10.88.0.200", 80), "route to 10.88.0.200 fails")
	if _, err := l.Explain(t.Context(), Connection{From: "shop/none", To: "shop/db", Protocol: 6, Port: 1}); !errdefs.IsNotFound(err) {
		t.Errorf("a pod that isn't there: %v", err)
	}

	netnstest.Run(t, l.node, "nft", "delete element inet husk-be7a ports4 { tcp . 8080 }")
	if hops := l.explain("shop/web", "192.0.2.2", 8080); !strings.Contains(hops[1], "BUT element ports4 { tcp . 8080") {
		t.Errorf("the element of the host port is missing:\n%s", strings.Join(hops, "\n"))
	}

	netnstest.IP(t, l.node, "rule add to "+l.db.Addresses[0].String()+" lookup 99 pref 10")
	netnstest.IP(t, l.node, "route add 10.88.0.0/24 via 192.0.2.9 table 99 dev up0")
	l.want("another route", l.explain("shop/web", "shop/db", 5432),
		"BUT the kernel sends it by up0 via 192.0.2.9 DO another route precedes huskd's", "pod shop/db")
	netnstest.IP(t, l.node, "rule del pref 10")

	netnstest.IP(t, l.db.Plan.Netns, "route del default")
	l.want("a pod without its route", l.explain("shop/web", "shop/db", 5432), "pod shop/db ok: "+l.db.Addresses[0].String()+" by eth0 and "+db.Host)
	netnstest.IP(t, l.node, "link set "+web.Host+" down")
	hops := strings.Join(l.explain("shop/web", "shop/db", 5432), "\n")
	for _, text := range []string{"BUT link " + web.Host + ": down", "route 0.0.0.0/0 via 169.254.1.1 dev eth0 in " + l.db.Plan.Netns + ": missing"} {
		if !strings.Contains(hops, text) {
			t.Errorf("no %q in\n%s", text, hops)
		}
	}
}

// TestOtherNode follows a connection to another node's pod.
func TestOtherNode(t *testing.T) {
	l := newLab(t)
	block := netip.MustParsePrefix("10.89.0.0/24")
	route := plan.Route{Kind: plan.Unicast, Dst: block, Via: netip.MustParseAddr("192.0.2.3"), Link: "up0"}
	p := nodes.Peer{Name: "n2", Blocks: []netip.Prefix{block}, Way: backend.Direct, MTU: 1500, Routes: []plan.Route{route}, Plan: &backend.Peer{}}
	var missing []string
	l.Nodes = func() nodes.Status { return nodes.Status{Peers: []nodes.Peer{p}} }
	l.Verify = func(nodes.Status, nodes.Peer) ([]string, error) { return missing, nil }
	l.want("without the route", l.explain("shop/web", "10.89.0.7", 80),
		"route to 10.89.0.7 ok: to node n2 by direct: route 10.89.0.0/24 via 192.0.2.3 dev up0 BUT the kernel sends it by up0 via 192.0.2.1", "way to node n2 ok")
	netnstest.IP(t, l.node, "route add 10.89.0.0/24 via 192.0.2.3 dev up0")
	l.want("with the route", l.explain("shop/web", "10.89.0.7", 80), "pod shop/web ok", "route to 10.89.0.7 ok", "way to node n2 ok: direct, MTU 1500", "node n2 ok: has never answered")
	l.want("from the other node", l.explain("10.89.0.7", "shop/web", 80), "way from node n2 ok", "node n2 ok", "ok: by "+l.web.Link, "pod shop/web ok")
	missing = []string{"neighbour 10.89.0.0: missing"}
	l.want("the kernel lacks an object", l.explain("shop/web", "10.89.0.7", 80), "way to node n2 ok: direct, MTU 1500 BUT neighbour 10.89.0.0: missing")
	p.Way, p.Why = "", "it is not on a common link"
	l.want("no way", l.explain("shop/web", "10.89.0.7", 80), "route to 10.89.0.7 fails: no way to node n2: it is not on a common link")
}
