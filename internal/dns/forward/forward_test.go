package forward

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// upstream is a resolver on the loopback interface.
type upstream struct {
	address netip.AddrPort
	asked   atomic.Int64
	byTCP   atomic.Int64
}

// serveUpstream serves what answer makes of a reply. It sends nothing if answer returns false.
func serveUpstream(t *testing.T, answer func(query, reply *dns.Msg) bool) *upstream {
	t.Helper()
	// Hardly another program has ports of this address.
	own := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
	listener, err := net.Listen("tcp", netip.AddrPortFrom(own, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{address: netip.MustParseAddrPort(listener.Addr().String())}
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		u.asked.Add(1)
		reply := new(dns.Msg).SetReply(query)
		if !answer(query, reply) {
			return
		}
		if _, tcp := w.RemoteAddr().(*net.TCPAddr); tcp {
			u.byTCP.Add(1)
		} else {
			reply.Truncate(messageSize)
		}
		_ = w.WriteMsg(reply)
	})
	for _, s := range []*dns.Server{{Listener: listener, Handler: handler}, {PacketConn: packets, Handler: handler}} {
		started, done := make(chan struct{}), make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() {
			_ = s.ActivateAndServe()
			close(done)
		}()
		<-started
		t.Cleanup(func() {
			_ = s.Shutdown()
			<-done
		})
	}
	return u
}

// records makes the records of zone file lines.
func records(t testing.TB, lines ...string) (out []dns.RR) {
	t.Helper()
	for _, line := range lines {
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, rr)
	}
	return out
}

func question(name string, kind uint16) Question {
	return Question{Question: dns.Question{Name: name, Qtype: kind, Qclass: dns.ClassINET}}
}

func newForwarder(to ...*upstream) *Forwarder {
	f := New(slog.New(slog.DiscardHandler))
	var list []netip.AddrPort
	for _, u := range to {
		list = append(list, u.address)
	}
	f.SetResolvers(list)
	return f
}

// TestResolve checks answers from a resolver and from the cache, and that equal questions at the
// same time are one.
func TestResolve(t *testing.T) {
	wait := make(chan struct{})
	u := serveUpstream(t, func(query, reply *dns.Msg) bool {
		<-wait
		reply.Answer = records(t, query.Question[0].Name+" 60 A 192.0.2.1")
		return true
	})
	f := newForwarder(u)
	answers := make(chan *dns.Msg)
	for range 20 {
		go func() { answers <- f.Resolve(t.Context(), question("Example.com.", dns.TypeA)) }()
	}
	close(wait)
	for range 20 {
		m := <-answers
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "192.0.2.1" {
			t.Fatalf("got %v", m)
		}
		m.Answer[0].Header().Ttl = 0 // nothing is shared
	}
	if m := f.Resolve(t.Context(), question("example.COM.", dns.TypeA)); len(m.Answer) != 1 || m.Answer[0].Header().Ttl == 0 {
		t.Errorf("from the cache: %v", m)
	}
	if n := u.asked.Load(); n != 1 {
		t.Errorf("the resolver was asked %d times, want once", n)
	}
	f.Resolve(t.Context(), question("example.com.", dns.TypeAAAA))
	f.SetResolvers(nil)
	f.SetResolvers([]netip.AddrPort{u.address})
	f.Resolve(t.Context(), question("example.com.", dns.TypeA))
	if n := u.asked.Load(); n != 3 {
		t.Errorf("with another type and after a change the resolver was asked %d times, want 3", n)
	}
}

// TestLongAnswer checks that a truncated answer is fetched by TCP.
func TestLongAnswer(t *testing.T) {
	u := serveUpstream(t, func(_, reply *dns.Msg) bool {
		for i := range 200 {
			reply.Answer = append(reply.Answer, records(t, fmt.Sprintf("long.example. 60 A 192.0.2.%d", i))...)
		}
		return true
	})
	if m := newForwarder(u).Resolve(t.Context(), question("long.example.", dns.TypeA)); len(m.Answer) != 200 || m.Truncated {
		t.Errorf("got %d records", len(m.Answer))
	}
	if u.byTCP.Load() != 1 {
		t.Error("not by TCP")
	}
}

// TestFailures checks that other resolvers are asked after one that is silent, dead or refuses.
func TestFailures(t *testing.T) {
	t.Parallel()
	silent := serveUpstream(t, func(_, _ *dns.Msg) bool { return false })
	refusing := serveUpstream(t, func(_, reply *dns.Msg) bool {
		reply.Rcode = dns.RcodeRefused
		return true
	})
	liar := serveUpstream(t, func(_, reply *dns.Msg) bool {
		reply.Question[0].Name = "other."
		return true
	})
	good := serveUpstream(t, func(query, reply *dns.Msg) bool {
		reply.Answer = records(t, query.Question[0].Name+" 0 A 192.0.2.1")
		return true
	})
	dead := &upstream{address: netip.MustParseAddrPort("127.0.0.1:1")}
	f := newForwarder(dead, refusing, liar, good)
	for range 3 {
		if m := f.Resolve(t.Context(), question("example.com.", dns.TypeA)); len(m.Answer) != 1 {
			t.Fatalf("got %v", m)
		}
	}
	if n := refusing.asked.Load(); n != 3 {
		t.Errorf("the resolver that refuses was asked %d times, want 3", n)
	}
	f = newForwarder(refusing)
	for range 2 {
		if m := f.Resolve(t.Context(), question("example.com.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("without other resolvers: %v", m)
		}
	}
	if n := refusing.asked.Load(); n != 4 {
		t.Errorf("a failure isn't cached: asked %d times, want 4", n)
	}
	if m := newForwarder().Resolve(t.Context(), question("example.com.", dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("without resolvers: %v", m)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	newForwarder(silent).Resolve(ctx, question("example.com.", dns.TypeA))
	if ctx.Err() == nil {
		t.Error("a question ended before its context")
	}
}

// TestWithoutEDNS checks a resolver that knows no EDNS.
func TestWithoutEDNS(t *testing.T) {
	u := serveUpstream(t, func(query, reply *dns.Msg) bool {
		if query.IsEdns0() != nil {
			reply.Rcode = dns.RcodeFormatError
			return true
		}
		reply.Answer = records(t, "example.com. 60 A 192.0.2.1")
		return true
	})
	if m := newForwarder(u).Resolve(t.Context(), question("example.com.", dns.TypeA)); len(m.Answer) != 1 {
		t.Errorf("got %v", m)
	}
}

// TestCache checks lifetimes, TTLs and the bound.
func TestCache(t *testing.T) {
	soa := "example. 900 SOA ns.example. mail.example. 1 2 3 4 30"
	message := func(rcode int, answer, ns []dns.RR) *dns.Msg {
		m := new(dns.Msg).SetQuestion("a.example.", dns.TypeA)
		m.Rcode, m.Answer, m.Ns = rcode, answer, ns
		return m
	}
	for name, c := range map[string]struct {
		m            *dns.Msg
		want, second time.Duration // of the first resolver, and of another
	}{
		"answer":             {message(0, records(t, "a.example. 60 A 192.0.2.1", "a.example. 20 A 192.0.2.2"), nil), 20 * time.Second, 20 * time.Second},
		"long":               {message(0, records(t, "a.example. 86400 A 192.0.2.1"), nil), maxTime, maxOther},
		"none":               {message(0, records(t, "a.example. 0 A 192.0.2.1"), nil), 0, 0},
		"no name":            {message(dns.RcodeNameError, nil, records(t, strings.Replace(soa, " 30", " 20", 1))), 20 * time.Second, maxOtherNegative},
		"no records":         {message(0, nil, records(t, soa)), 30 * time.Second, maxOtherNegative},
		"alias to nothing":   {message(0, records(t, "a.example. 10 CNAME b.example."), records(t, soa)), 10 * time.Second, maxOtherNegative},
		"no name, short SOA": {message(dns.RcodeNameError, nil, records(t, strings.Replace(soa, " 900", " 3", 1))), 3 * time.Second, maxOtherNegative},
		"no name, long":      {message(dns.RcodeNameError, nil, records(t, strings.Replace(soa, " 30", " 3000", 1))), maxNegative, maxOtherNegative},
		"no name and no SOA": {message(dns.RcodeNameError, nil, nil), 0, 0},
		"failure":            {message(dns.RcodeServerFailure, nil, nil), failureTime, failureTime},
	} {
		if got, second := lifetimeOf(c.m, true), lifetimeOf(c.m, false); got != c.want || second != c.second {
			t.Errorf("%s: %v and %v, want %v and %v", name, got, second, c.want, c.second)
		}
	}

	c, now := newCache(10_000), time.Now()
	m := message(0, records(t, "a.example. 60 A 192.0.2.1"), nil)
	c.put("a", m, time.Minute, now)
	if got := c.get("a", now.Add(45*time.Second)); got == nil || got.Answer[0].Header().Ttl != 15 {
		t.Errorf("after 45 s: %v", got)
	}
	if got := c.get("a", now.Add(60*time.Second)); got != nil || c.size != 0 {
		t.Errorf("after 60 s: %v, %d bytes", got, c.size)
	}
	c.put("a", m, time.Minute, now)
	for i := range 1000 {
		c.put(fmt.Sprint(i), m, time.Minute, now)
		c.get("a", now)
	}
	if c.size > c.max || c.size < c.max/2 || c.order.Len() != len(c.entries) {
		t.Errorf("the cache has %d bytes of %d in %d and %d entries", c.size, c.max, c.order.Len(), len(c.entries))
	}
	if c.get("a", now) == nil || c.get("1", now) != nil {
		t.Error("not the least used entries were removed")
	}
}

// TestFollow checks that the resolvers are those of the file, when it is replaced, when a link
// leads elsewhere, and behind the stub of systemd-resolved. The server's own address is left out.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	f := New(slog.New(slog.DiscardHandler))
	own := netip.MustParseAddr("169.254.64.1")
	link := filepath.Join(dir, "etc/resolv.conf")
	write("etc/other", "")
	if err := os.Symlink(write("run/a", "# comment\nnameserver 192.0.2.1\nnameserver nonsense\nnameserver 192.0.2.1\nnameserver 169.254.64.1\nnameserver fe80::1%lo\n"), link); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.Follow(ctx, Files{Main: link, BehindStub: filepath.Join(dir, "systemd/real")}, own)
	}()
	defer func() {
		cancel()
		<-done
	}()
	wants := func(want ...string) {
		t.Helper()
		var got []string
		for end := time.Now().Add(readTime / 2); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			got = nil
			for _, r := range f.Resolvers() {
				got = append(got, r.String())
			}
			if slices.Equal(got, want) {
				return
			}
		}
		t.Fatalf("the resolvers are %q, want %q", got, want)
	}
	wants("192.0.2.1:53", "[fe80::1%lo]:53")
	write("run/a", "nameserver 192.0.2.2\n")
	wants("192.0.2.2:53")
	write("systemd/real", "nameserver 192.0.2.4\n")
	write("run/a", "nameserver 127.0.0.53\n")
	wants("192.0.2.4:53")
	write("systemd/real", "nameserver 192.0.2.5\n")
	wants("192.0.2.5:53")
	write("etc/resolv.conf", "nameserver 127.0.0.1\n")
	wants("127.0.0.1:53")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	write("etc/other", "x")
	wants("127.0.0.1:53")
}

// FuzzResolvers checks that no resolv.conf makes the parser fail.
func FuzzResolvers(f *testing.F) {
	f.Add([]byte("nameserver 192.0.2.1\nsearch a b\noptions ndots:5\n"))
	f.Fuzz(func(t *testing.T, content []byte) {
		for _, a := range resolversOf(content) {
			if !a.IsValid() {
				t.Errorf("%q has an invalid resolver", content)
			}
		}
	})
}
