package nameserver

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/dns/forward"
	"github.com/huskd/husk/internal/dns/zone"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var loopback = netip.MustParseAddr("127.0.0.1")

// ownLoopback returns a loopback address that no other test has, whose ports are all free. A client
// that doesn't choose its address has 127.0.0.1, which a server at such an address doesn't answer.
func ownLoopback() netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
}

// listening returns a server that listens at a port of the address, which cfg leaves open: the
// kernel's choice for UDP, unless another program has that port for TCP.
func listening(t testing.TB, cfg Config) *Server {
	t.Helper()
	var err error
	for range 20 {
		s := New(cfg)
		if err = s.Err(); err == nil {
			return s
		}
	}
	t.Fatal(err)
	return nil
}

// serve runs a server on the loopback interface and returns its address.
func serve(t testing.TB, change func(*Config)) (*Server, string) {
	t.Helper()
	var many []zone.Endpoint
	for i := range 200 {
		many = append(many, zone.Endpoint{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
	}
	log := slog.New(slog.DiscardHandler)
	cfg := Config{
		Address: netip.AddrPortFrom(loopback, 0),
		Zone: zone.New(zone.Config{Domain: "cluster.local"}, []zone.Service{
			{Namespace: "default", Name: "many", Endpoints: many},
			{Namespace: "default", Name: "out", ExternalName: "example.com"},
		}, []zone.Pod{{Namespace: "default", Name: "web", Addresses: []netip.Addr{netip.MustParseAddr("10.201.0.5")}}}),
		Forward: forward.New(log),
		Client:  func(netip.Addr) string { return "" },
		Log:     log,
	}
	if change != nil {
		change(&cfg)
	}
	s := listening(t, cfg)
	address := s.sockets.packets.LocalAddr().String()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return s, address
}

// serveUpstream runs a resolver that has one address for every name, and returns a Forwarder to it.
func serveUpstream(t testing.TB, wait <-chan struct{}) *forward.Forwarder {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started, done := make(chan struct{}), make(chan struct{})
	upstream := &dns.Server{PacketConn: packets, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		if wait != nil {
			<-wait
		}
		reply := new(dns.Msg).SetReply(query)
		rr, _ := dns.NewRR(query.Question[0].Name + " 60 A 192.0.2.1")
		reply.Answer = []dns.RR{rr}
		_ = w.WriteMsg(reply)
	})}
	go func() {
		_ = upstream.ActivateAndServe()
		close(done)
	}()
	<-started
	t.Cleanup(func() {
		_ = upstream.Shutdown()
		<-done
	})
	f := forward.New(slog.New(slog.DiscardHandler))
	f.SetResolvers([]netip.AddrPort{netip.MustParseAddrPort(packets.LocalAddr().String())})
	return f
}

// named makes clients of the addresses that it serves.
func named(serves func(netip.Addr) bool) func(netip.Addr) string {
	return func(a netip.Addr) string {
		if !serves(a) {
			return ""
		}
		return a.String()
	}
}

func exchange(t testing.TB, network, address string, m *dns.Msg) *dns.Msg {
	t.Helper()
	c := dns.Client{Net: network, Timeout: 10 * time.Second, UDPSize: 4096}
	reply, _, err := c.Exchange(m, address)
	if err != nil {
		t.Fatalf("%s %v: %v", network, m.Question, err)
	}
	return reply
}

func query(name string, kind uint16) *dns.Msg { return new(dns.Msg).SetQuestion(name, kind) }

// TestServe checks answers of the zone and of others by UDP and TCP.
func TestServe(t *testing.T) {
	forwarder := serveUpstream(t, nil)
	s, address := serve(t, func(c *Config) { c.Forward = forwarder })
	for _, network := range []string{"udp", "tcp"} {
		for name, want := range map[string]string{
			"web.default.svc.cluster.local.":  "A 10.201.0.5",
			"out.default.svc.cluster.local.":  "CNAME example.com. A 192.0.2.1",
			"Example.COM.":                    "A 192.0.2.1",
			"none.default.svc.cluster.local.": "",
		} {
			m := exchange(t, network, address, query(name, dns.TypeA))
			var got []string
			for _, rr := range m.Answer {
				got = append(got, dns.TypeToString[rr.Header().Rrtype], strings.TrimPrefix(rr.String(), rr.Header().String()))
			}
			if strings.Join(got, " ") != want || m.Question[0].Name != name || !m.RecursionAvailable || m.IsEdns0() != nil {
				t.Errorf("%s %s: %v, want %s", network, name, m, want)
			}
			if ours := strings.HasSuffix(name, "local."); m.Authoritative != ours || (m.Rcode == dns.RcodeNameError) != (want == "") {
				t.Errorf("%s %s: %v", network, name, m.MsgHdr)
			}
		}
	}
	s.SetZone(zone.New(zone.Config{Domain: "example.com"}, nil, nil))
	if m := exchange(t, "udp", address, query("a.example.com.", dns.TypeA)); m.Rcode != dns.RcodeNameError {
		t.Errorf("with another zone: %v", m)
	}
}

// TestSizes checks that an answer is as long as the client takes it, and complete by TCP.
func TestSizes(t *testing.T) {
	_, address := serve(t, nil)
	for _, c := range []struct {
		edns, max int
	}{{0, 512}, {100, 512}, {800, 800}, {4096, maxUDP}} {
		m := query("many.default.svc.cluster.local.", dns.TypeA)
		if c.edns > 0 {
			m.SetEdns0(uint16(c.edns), false)
		}
		reply := exchange(t, "udp", address, m)
		reply.Compress = true
		if n := reply.Len(); !reply.Truncated || n > c.max || n < c.max*3/4 || len(reply.Answer) == 0 || (reply.IsEdns0() != nil) != (c.edns > 0) {
			t.Errorf("with EDNS %d: %d bytes, truncated %t", c.edns, n, reply.Truncated)
		}
		if reply := exchange(t, "tcp", address, m); reply.Truncated || len(reply.Answer) != 200 {
			t.Errorf("by TCP: %d records", len(reply.Answer))
		}
	}
	first := map[string]bool{}
	for range 50 {
		first[exchange(t, "udp", address, query("many.default.svc.cluster.local.", dns.TypeA)).Answer[0].String()] = true
	}
	if len(first) < 2 {
		t.Error("the first address is always the same")
	}
}

// TestRefusals checks what the server doesn't do.
func TestRefusals(t *testing.T) {
	_, address := serve(t, nil)
	web := "web.default.svc.cluster.local."
	for name, c := range map[string]struct {
		change func(*dns.Msg)
		want   int
	}{
		"update":      {func(m *dns.Msg) { m.Opcode = dns.OpcodeUpdate }, dns.RcodeNotImplemented},
		"notify":      {func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify }, dns.RcodeNotImplemented},
		"transfer":    {func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAXFR }, dns.RcodeRefused},
		"class":       {func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS }, dns.RcodeRefused},
		"questions":   {func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) }, dns.RcodeFormatError},
		"EDNS 1":      {func(m *dns.Msg) { m.SetEdns0(1232, false).IsEdns0().SetVersion(1) }, dns.RcodeBadVers},
		"elsewhere":   {func(m *dns.Msg) { m.Question[0].Name, m.RecursionDesired = "example.com.", false }, dns.RcodeRefused},
		"no upstream": {func(m *dns.Msg) { m.Question[0].Name = "example.com." }, dns.RcodeServerFailure},
		"nothing":     {func(m *dns.Msg) { m.RecursionDesired = false }, dns.RcodeSuccess},
	} {
		m := query(web, dns.TypeA)
		c.change(m)
		if reply := exchange(t, "udp", address, m); reply.Rcode != c.want {
			t.Errorf("%s: %s, want %s", name, dns.RcodeToString[reply.Rcode], dns.RcodeToString[c.want])
		}
	}
}

// TestStrangers checks that only pods, and the node itself, get answers.
func TestStrangers(t *testing.T) {
	pods := netip.MustParsePrefix("127.0.0.2/32")
	_, address := serve(t, func(c *Config) { c.Client = named(pods.Contains) })
	for source, want := range map[string]bool{"127.0.0.1": true, "127.0.0.2": true, "127.0.0.3": false} {
		for _, network := range []string{"udp", "tcp"} {
			c := dns.Client{Net: network, Timeout: 10 * time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}}
			if network == "tcp" {
				c.Dialer.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
			}
			if !want {
				c.Timeout = 200 * time.Millisecond
			}
			if _, _, err := c.Exchange(query("web.default.svc.cluster.local.", dns.TypeA), address); (err == nil) != want {
				t.Errorf("%s from %s: %v, want an answer: %t", network, source, err, want)
			}
		}
	}
}

// TestBounds checks that one client's questions and connections don't leave others without.
func TestBounds(t *testing.T) {
	wait := make(chan struct{})
	forwarder := serveUpstream(t, wait)
	other := netip.MustParseAddr("127.0.0.2")
	s, address := serve(t, func(c *Config) {
		c.Forward, c.Client = forwarder, named(func(a netip.Addr) bool { return a == other })
	})
	results := make(chan int)
	const asked = maxOfClient + 20
	for i := range asked {
		go func() {
			reply, _, err := (&dns.Client{Timeout: 20 * time.Second}).Exchange(query(fmt.Sprintf("n%d.example.com.", i), dns.TypeA), address)
			if err != nil {
				results <- -1
				return
			}
			results <- reply.Rcode
		}()
	}
	for range asked - maxOfClient {
		if code := <-results; code != dns.RcodeServerFailure {
			t.Errorf("a question too many: %d", code)
		}
	}
	if m := exchange(t, "udp", address, query("web.default.svc.cluster.local.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("a name of the zone meanwhile: %v", m)
	}
	if !s.clients.begin(other.String()) {
		t.Error("another client can't ask")
	}
	s.clients.end(other.String())
	close(wait)
	for range maxOfClient {
		if code := <-results; code != dns.RcodeSuccess {
			t.Errorf("a question: %d", code)
		}
	}

	var open []net.Conn
	for range maxOfClient + 5 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, conn)
	}
	last := open[len(open)-1]
	_ = last.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, err := last.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("a connection too many: %v, want that it is closed", err)
	}
	c := dns.Client{Net: "tcp", Dialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: other.AsSlice()}}}
	if _, _, err := c.Exchange(query("web.default.svc.cluster.local.", dns.TypeA), address); err != nil {
		t.Errorf("another client: %v", err)
	}
	for _, conn := range open {
		_ = conn.Close()
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.connections.mu.Lock()
		left := s.connections.total
		s.connections.mu.Unlock()
		if left == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d connections are still counted", left)
		}
	}
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error)
	return ok && timeout.Timeout()
}

// TestPortTaken checks that a server whose port another program has says so, and listens when the
// port is free.
func TestPortTaken(t *testing.T) {
	taken, err := net.Listen("tcp", netip.AddrPortFrom(ownLoopback(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s := New(Config{Address: netip.MustParseAddrPort(taken.Addr().String()), Log: slog.New(slog.DiscardHandler)})
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	_ = taken.Close()
	for end := time.Now().Add(3 * listenTime); s.Err() != nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(s.Err())
		}
	}
	cancel()
	<-done
}

// TestNeverRun checks that a server that isn't run can be closed.
func TestNeverRun(t *testing.T) {
	for range 2 {
		listening(t, Config{Address: netip.AddrPortFrom(ownLoopback(), 0), Log: slog.New(slog.DiscardHandler)}).Close()
	}
}

// TestAbsentAddress checks that the server listens although the node doesn't have the address yet.
func TestAbsentAddress(t *testing.T) {
	serve(t, func(c *Config) {
		c.Address = netip.AddrPortFrom(netip.MustParseAddr("192.0.2.77"), 0)
	})
}

// FuzzQuery checks that no packet makes the server fail, and that a valid query gets an answer.
func FuzzQuery(f *testing.F) {
	for _, m := range []*dns.Msg{query("web.default.svc.cluster.local.", dns.TypeA), query(".", dns.TypeANY), query("many.default.svc.cluster.local.", dns.TypeSRV).SetEdns0(1232, true)} {
		raw, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	s := listening(f, Config{
		Address: netip.AddrPortFrom(loopback, 0),
		Zone:    zone.New(zone.Config{Domain: "cluster.local"}, nil, []zone.Pod{{Namespace: "default", Name: "web", Addresses: []netip.Addr{loopback}}}),
		Forward: forward.New(slog.New(slog.DiscardHandler)),
		Log:     slog.New(slog.DiscardHandler),
	})
	s.Close()
	f.Fuzz(func(t *testing.T, raw []byte) {
		var m dns.Msg
		if m.Unpack(raw) != nil {
			return
		}
		reply := s.answer(t.Context(), "default/web", &m)
		if (reply == nil) != m.Response {
			t.Fatalf("the answer to %v is %v", m, reply)
		}
		if reply == nil {
			return
		}
		reply.Truncate(dns.MinMsgSize)
		if _, err := reply.Pack(); err != nil {
			t.Errorf("the answer to %v can't be sent: %v", m, err)
		}
	})
}
