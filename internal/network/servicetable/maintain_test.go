package servicetable

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
)

// othersChanges are changes that `nft` and firewalls make.
func othersChanges() [][]string {
	name := instance.ServiceTable()
	return [][]string{
		{"flush", "ruleset"},
		{"delete", "table", "inet", name},
		{"delete", "element", "inet", name, "inside4", "{ 10.96.0.1 . tcp . 80 }"},
		{"flush", "map", "inet", name, "all4"},
		{"add", "element", "inet", name, "clusterips4", "{ 192.0.2.99 }"},
		{"flush", "chain", "inet", name, "postrouting"},
		{"flush", "chain", "inet", name, "addr4-all-2-sticky-0a600001-6-80"},
		{"add", "rule", "inet", name, "inside", "drop"},
		{"add", "table", "inet", name, "{ flags dormant; }"},
	}
}

func TestWhatOthersChangeIsPutBack(t *testing.T) {
	l := newLab(t)
	l.table.kernel.Shared = true // as before Linux 6.9
	sticky := web()
	sticky.Affinity = time.Hour
	l.serve(here4)
	l.serve(other4)
	l.change(service.Changes{Node: here(), Services: one("n/web", sticky), Slices: one("n/1", sliceOf("web", "1", here4, other4))})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		l.table.Maintain(ctx, slog.New(slog.DiscardHandler))
		close(ended)
	}()
	stop := func() {
		cancel()
		<-ended
	}
	defer stop()
	for _, change := range othersChanges() {
		netnstest.Run(t, l.node, append([]string{"nft"}, change...)...)
		began := time.Now()
		for deadline := began.Add(20 * time.Second); ; time.Sleep(100 * time.Microsecond) {
			found, err := l.table.Verify()
			must(t, err)
			if len(found) == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("after nft %s: %v", change, found)
			}
		}
		t.Logf("nft %s: back after %v", change, time.Since(began))
		if got := l.get("tcp", "10.88.0.2", "10.96.0.1:80"); !strings.Contains(got, ":8080") {
			t.Errorf("after nft %s: %s", change, got)
		}
	}
	stop() // before open closes its sockets
	// While huskd runs, others can't change the table of a kernel that has owners.
	must(t, l.table.Teardown())
	l.open()
	l.compiler = compile.New()
	l.change(service.Changes{Node: here(), Services: one("n/web", sticky), Slices: one("n/1", sliceOf("web", "1", here4, other4))})
	for _, change := range othersChanges() {
		_, _ = netnstest.Try(l.node, append([]string{"nft"}, change...)...)
		l.clean()
	}
}

// client is a socket that asks an endpoint of a Service again and again.
type client struct {
	t testing.TB
	net.Conn
}

func (l *lab) client(network, from, to string) *client {
	l.t.Helper()
	out := &client{t: l.t}
	must(l.t, netns.Do(l.where[addr(from)], func() (err error) {
		out.Conn, err = net.Dial(network, to)
		return err
	}))
	l.t.Cleanup(func() { _ = out.Close() })
	return out
}

// ask returns the endpoint that answers, or nothing.
func (c *client) ask() string {
	_ = c.SetDeadline(time.Now().Add(2 * time.Second))
	_, _ = c.Write([]byte("x"))
	buf := make([]byte, 100)
	n, _ := c.Read(buf)
	endpoint, _, _ := strings.Cut(string(buf[:n]), " ")
	return endpoint
}

// Endpoints that went while huskd didn't run still have connections.
func TestConnectionsOfBeforeLeaveEndpointsThatAreGone(t *testing.T) {
	l := newLab(t)
	l.serve(here4)
	l.serve(other4)
	gone := web()
	gone.Name, gone.ClusterIPs, gone.ExternalIPs, gone.LoadBalancerIPs = "gone", []netip.Addr{addr("10.96.0.9")}, nil, nil
	for i := range gone.Ports {
		gone.Ports[i].NodePort = 0
	}
	l.change(service.Changes{
		Node: here(), Services: map[string]*service.Service{"n/web": web(), "n/gone": gone},
		Slices: map[string]*service.Slice{"n/1": sliceOf("web", "1", here4), "n/2": sliceOf("gone", "2", here4)},
	})
	must(t, end(l, 0))
	const pod = "10.88.0.2"
	toNode, toIP, toGone := l.client("udp", "192.0.2.7", "192.168.0.1:30080"), l.client("udp", pod, "10.96.0.1:80"), l.client("udp", pod, "10.96.0.9:80")
	for _, c := range []*client{toNode, toIP, toGone} {
		if got := c.ask(); got != here4.String() {
			t.Fatalf("answer of %q", got)
		}
	}
	stays := l.client("udp", pod, here4.String())
	if got := stays.ask(); got != here4.String() {
		t.Fatalf("answer of %q", got)
	}
	l.client("tcp", pod, "10.96.0.1:80") // its entry would let it hang

	must(t, l.table.Close())
	l.compiler = compile.New()
	l.open()
	l.change(service.Changes{Node: here(), Services: one("n/web", web()), Slices: one("n/1", sliceOf("web", "1", other4))})
	must(t, end(l, 4))
	must(t, end(l, 0))
	for _, c := range []*client{toNode, toIP} {
		if got := c.ask(); got != other4.String() {
			t.Errorf("afterwards, answer of %q", got)
		}
	}
	if got := stays.ask(); got != here4.String() {
		t.Errorf("afterwards, the endpoint itself answers %q", got)
	}

	// A client whose packets went nowhere for want of rules.
	must(t, l.table.Teardown())
	lost := l.client("udp", "192.0.2.7", "198.51.100.1:80")
	_ = lost.SetDeadline(time.Now().Add(time.Millisecond))
	_, _ = lost.Write([]byte("x"))
	l.compiler = compile.New()
	l.change(service.Changes{Node: here(), Services: one("n/web", web()), Slices: one("n/1", sliceOf("web", "1", other4))})
	if _, err := l.table.End(nil); err != nil {
		t.Fatal(err)
	}
	if got := lost.ask(); got != other4.String() {
		t.Errorf("of a client that was lost, answer of %q", got)
	}
}

func end(l *lab, want int) error {
	n, err := l.table.End(nil)
	if err == nil && n != want {
		err = fmt.Errorf("ended %d connections, want %d", n, want)
	}
	return err
}

func TestNodePortsAreAtTheNodesAddresses(t *testing.T) {
	l := newLab(t)
	l.serve(here4)
	netnstest.IP(t, l.node, "addr add 192.168.1.1/32 dev up0")
	check := func(when string, primary, second bool) {
		t.Helper()
		l.clean()
		for to, want := range map[string]bool{"192.168.0.1": primary, "192.168.1.1": second} {
			for _, from := range []string{"192.0.2.7", "10.88.0.2"} {
				if got := l.get("tcp", from, to+":30080"); strings.HasPrefix(got, here4.String()) != want {
					t.Errorf("%s, from %s to %s: %s", when, from, to, got)
				}
			}
		}
	}
	changes := service.Changes{Node: here(), Services: one("n/web", web()), Slices: one("n/1", sliceOf("web", "1", here4))}
	l.change(changes)
	check("at the primary address", true, false)
	l.change(service.Changes{Node: &service.Node{Name: "here", Addresses: []netip.Addr{addr("192.168.1.1")}}})
	check("after it changed", false, true)
	l.change(service.Changes{Slices: one[service.Slice]("n/1", nil)})
	for to, want := range map[string]string{"192.168.1.1:30080": "refused", "192.168.0.1:30080": "refused"} {
		if got := l.get("tcp", "192.0.2.7", to); got != want {
			t.Errorf("without endpoints, %s: %s", to, got)
		}
	}
	for prefix, want := range map[string][2]bool{"192.168.0.0/16": {true, true}, "192.168.0.0/24": {true, false}, "0.0.0.0/0": {true, true}, "fd00::/8": {false, false}} {
		l.compiler = compile.New(netip.MustParsePrefix(prefix))
		must(t, l.table.Teardown())
		must(t, l.table.Close())
		l.open()
		l.change(changes)
		check("in "+prefix, want[0], want[1])
	}
}
