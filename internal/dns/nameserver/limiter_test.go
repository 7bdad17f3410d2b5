package nameserver

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// TestLimiter checks the rate, that clients don't share it, and how too much begins and ends.
func TestLimiter(t *testing.T) {
	var log strings.Builder
	var began []string
	l := limiter{of: map[string]*asking{}, log: slog.New(slog.NewTextHandler(&log, nil)), began: func(client string) { began = append(began, client) }}
	now := time.Now()
	asks := func(client string, n int) (admitted int) {
		for range n {
			if l.admits(client, now) {
				admitted++
			}
		}
		return admitted
	}
	want := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d, want %d", what, got, want)
		}
	}
	want("a burst", asks("a", burst+500), burst)
	want("another client", asks("b", 10), 10)
	now = now.Add(100 * time.Millisecond)
	want("after 100 ms", asks("a", 500), Rate/10)
	now = now.Add(time.Hour)
	want("after an hour", asks("a", burst+1), burst)
	if !slices.Equal(began, []string{"a"}) || strings.Count(log.String(), "asks too much") != 1 || !strings.Contains(log.String(), "client=a") {
		t.Errorf("began %v, log\n%s", began, log.String())
	}
	if e := l.of["a"].excess; e.Client != "a" || e.Dropped != 500+400+1 || l.dropped != e.Dropped || l.answers != 2*burst+10+Rate/10 {
		t.Errorf("excess %+v, %d answers, %d dropped", e, l.answers, l.dropped)
	}
	now = now.Add(episodeTime - time.Millisecond)
	l.forget(now)
	if l.of["a"].excess.Since.IsZero() {
		t.Error("the excess ends early")
	}
	now = now.Add(time.Millisecond)
	l.forget(now)
	if len(l.of) != 0 || !strings.Contains(log.String(), "within the rate again") {
		t.Errorf("%d clients are remembered, log\n%s", len(l.of), log.String())
	}
	want("later", asks("a", burst+1), burst)
	if len(began) != 2 {
		t.Errorf("began %v", began)
	}
}

// TestFlood checks that a client's questions by UDP and TCP, from all of its addresses, share one
// rate, and that those of others are answered meanwhile.
func TestFlood(t *testing.T) {
	s, address := serve(t, func(c *Config) {
		c.Client = func(a netip.Addr) string {
			switch a.String() {
			case "127.0.0.2", "127.0.0.3":
				return "default/attacker"
			case "127.0.0.4":
				return "default/other"
			}
			return ""
		}
	})
	m, err := query("web.default.svc.cluster.local.", dns.TypeA).Pack()
	if err != nil {
		t.Fatal(err)
	}
	from := func(network, source string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(source)}}
		if network == "tcp" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(source)}
		}
		conn, err := d.Dial(network, address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	began := time.Now()
	flood := []net.Conn{from("udp", "127.0.0.2"), from("udp", "127.0.0.3")}
	other := dns.Conn{Conn: from("udp", "127.0.0.4")}
	strange := from("udp", "127.0.0.5")
	for i := range 20_000 {
		_, _ = flood[i%2].Write(m)
		if i%500 == 0 {
			_, _ = strange.Write(m)
			_ = other.SetDeadline(time.Now().Add(10 * time.Second))
			asked := query("web.default.svc.cluster.local.", dns.TypeA)
			if err := other.WriteMsg(asked); err != nil {
				t.Fatal(err)
			}
			if reply, err := other.ReadMsg(); err != nil || reply.Id != asked.Id || len(reply.Answer) != 1 {
				t.Fatalf("another client gets %v, %v", reply, err)
			}
		}
	}
	// A connection ends with a question too many.
	pipe := make([]byte, 0, 2*burst*(len(m)+2))
	for range 2 * burst {
		pipe = append(binary.BigEndian.AppendUint16(pipe, uint16(len(m))), m...)
	}
	var conns []net.Conn
	for range 4 {
		conn := from("tcp", "127.0.0.2")
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		go func() { _, _ = conn.Write(pipe) }()
		conns = append(conns, conn)
	}
	for _, conn := range conns {
		for b := make([]byte, 1<<16); ; {
			if _, err := conn.Read(b); isTimeout(err) {
				t.Fatal("a connection with questions too many stays open")
			} else if err != nil {
				break
			}
		}
	}
	usage := s.Usage()
	most := uint64(burst + 40 + Rate*time.Since(began).Seconds())
	if usage.Answers < burst || usage.Answers > most || usage.Dropped == 0 {
		t.Errorf("%d questions were answered, want at most %d; %d were not", usage.Answers, most, usage.Dropped)
	}
	if len(usage.Excesses) != 1 || usage.Excesses[0].Client != "default/attacker" || usage.Excesses[0].Dropped != usage.Dropped {
		t.Errorf("excesses %+v", usage.Excesses)
	}
}

// TestLongQuery checks that a connection ends with a query that is too long, whose memory it would
// take.
func TestLongQuery(t *testing.T) {
	_, address := serve(t, nil)
	for _, start := range []string{"\xff\xff", "\x10\x01"} {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = fmt.Fprint(conn, start)
		_ = conn.SetReadDeadline(time.Now().Add(idleTime / 2))
		if _, err := conn.Read(make([]byte, 1)); err == nil || isTimeout(err) {
			t.Errorf("a query that begins with %q: %v", start, err)
		}
		_ = conn.Close()
	}
}

// TestAmplification checks that an answer by UDP isn't much larger than its question makes room
// for, whatever it asks for.
func TestAmplification(t *testing.T) {
	_, address := serve(t, nil)
	for _, c := range []struct {
		name string
		kind uint16
		edns uint16
		max  int
	}{
		{"many.default.svc.cluster.local.", dns.TypeANY, 0, dns.MinMsgSize},
		{"many.default.svc.cluster.local.", dns.TypeANY, 65535, maxUDP},
		{"cluster.local.", dns.TypeANY, 65535, 300},
		{"cluster.local.", dns.TypeAXFR, 65535, 100},
		{"cluster.local.", dns.TypeIXFR, 65535, 100},
		{"svc.cluster.local.", dns.TypeANY, 65535, 200},
	} {
		m := query(c.name, c.kind)
		if c.edns > 0 {
			m.SetEdns0(c.edns, false)
		}
		raw, err := m.Pack()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := net.Dial("udp", address)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write(raw)
		_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := conn.Read(make([]byte, 1<<16))
		if err != nil || n > c.max {
			t.Errorf("%s %s: %d bytes, %v, want at most %d", c.name, dns.TypeToString[c.kind], n, err, c.max)
		}
		_ = conn.Close()
	}
}

// TestManyClients checks that many clients together, each within its own bound, leave others some.
func TestManyClients(t *testing.T) {
	var c clients
	for i := range 2 * maxOfAll / maxOfClient {
		for range 2 * maxOfClient {
			c.begin(fmt.Sprint("attacker", i))
		}
	}
	if most := maxOfAll + always*maxOfAll/maxOfClient; c.total < maxOfAll || c.total > most {
		t.Errorf("%d are in progress, want %d to %d", c.total, maxOfAll, most)
	}
	for i := range 2 * always {
		if got := c.begin("other"); got != (i < always) {
			t.Errorf("number %d of another client: %t", i, got)
		}
	}
	for range always {
		c.end("other")
	}
	if !c.begin("other") || c.of["other"] != 1 {
		t.Errorf("another client has %d in progress", c.of["other"])
	}
}
