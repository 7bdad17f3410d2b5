package forward

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const absent = "corp. 900 SOA ns.corp. mail.corp. 1 2 3 4 300"

// TestSlowName checks that a pod that keeps asking for a name that is slow doesn't decide whom
// other pods ask: only the first resolver knows the internal names, and it is asked first by every
// question.
func TestSlowName(t *testing.T) {
	t.Parallel()
	first := serveUpstream(t, func(query, reply *dns.Msg) bool {
		if strings.HasPrefix(query.Question[0].Name, "slow") {
			return false
		}
		reply.Answer = records(t, query.Question[0].Name+" 0 A 192.0.2.1")
		return true
	})
	second := serveUpstream(t, func(_, reply *dns.Msg) bool {
		reply.Rcode, reply.Ns = dns.RcodeNameError, records(t, absent)
		return true
	})
	f := newForwarder(first, second)
	done := make(chan struct{})
	var attackers sync.WaitGroup
	var slow atomic.Int64
	for i := range 4 {
		attackers.Go(func() {
			for n := 0; n < 100; n++ {
				select {
				case <-done:
					return
				default:
				}
				if m := f.Resolve(t.Context(), question(fmt.Sprintf("slow%d-%d.attacker.", i, n), dns.TypeA)); m.Rcode != dns.RcodeNameError {
					t.Errorf("a slow name: %v, want the second resolver's answer", m)
				}
				slow.Add(1)
			}
		})
	}
	after := 0 // names that were asked for when the first resolver had already been slow
	for end, n := time.Now().Add(time.Minute), 0; slow.Load() < 8 || after < 100; n++ {
		if slow.Load() > 0 {
			after++
		}
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
			if m := f.Resolve(t.Context(), question(fmt.Sprintf("n%d.corp.", n), kind)); m.Rcode != dns.RcodeSuccess || len(m.Answer) != 1 {
				t.Fatalf("after %d slow names, an internal name: %v", slow.Load(), m)
			}
		}
		if time.Now().After(end) {
			t.Fatalf("%d slow names have answers after a minute", slow.Load())
		}
		time.Sleep(5 * time.Millisecond)
	}
	close(done)
	attackers.Wait()
	if n := second.asked.Load(); n != slow.Load() {
		t.Errorf("the second resolver was asked %d times, want %d", n, slow.Load())
	}
	// What the second resolver says of a name that was slow once doesn't stay.
	if m := f.using.Load().cache.get(question("slow0-0.attacker.", dns.TypeA).key(), time.Now().Add(maxOtherNegative)); m != nil {
		t.Errorf("after %v, the cache still has %v", maxOtherNegative, m)
	}
}

// TestSilentResolver checks that a resolver that answers nobody comes last, and first again once it
// answers.
func TestSilentResolver(t *testing.T) {
	t.Parallel()
	var answers atomic.Bool
	first := serveUpstream(t, func(query, reply *dns.Msg) bool {
		reply.Answer = records(t, query.Question[0].Name+" 0 A 192.0.2.1")
		return answers.Load()
	})
	second := serveUpstream(t, func(query, reply *dns.Msg) bool {
		reply.Answer = records(t, query.Question[0].Name+" 0 A 192.0.2.2")
		return true
	})
	f := newForwarder(first, second)
	n := 0
	ask := func() string {
		n++
		m := f.Resolve(t.Context(), question(fmt.Sprintf("n%d.example.", n), dns.TypeA))
		if len(m.Answer) != 1 {
			t.Fatalf("got %v", m)
		}
		return m.Answer[0].(*dns.A).A.String()
	}
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	r := f.using.Load().list[0]
	until("the first resolver doesn't count as silent", func() bool { return ask() == "192.0.2.2" && r.silent(time.Now()) })
	for range 20 {
		if at := ask(); at != "192.0.2.2" {
			t.Errorf("while the first resolver is silent, %s answers", at)
		}
	}
	if got := f.Silent(); len(got) != 1 || got[0] != first.address {
		t.Errorf("silent are %v", got)
	}
	answers.Store(true)
	until("the first resolver is not asked first again", func() bool { return ask() == "192.0.2.1" })
	if r.lost = probesLost; r.silent(time.Now().Add(silentTime)) {
		t.Error("a resolver counts as silent although nobody has asked it for long")
	}
}

// TestForeignAnswers checks that an answer from elsewhere, with another ID, or to another question
// isn't taken, that each question goes out from a port of its own, with an ID of its own, and that
// an answer whose names refer to themselves is none.
func TestForeignAnswers(t *testing.T) {
	t.Parallel()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	elsewhere, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	ports, ids := map[string]bool{}, map[uint16]bool{}
	served := make(chan struct{})
	go func() {
		defer close(served)
		buffer := make([]byte, 4096)
		for {
			n, client, err := packets.ReadFrom(buffer)
			if err != nil {
				return
			}
			var query dns.Msg
			if query.Unpack(buffer[:n]) != nil {
				continue
			}
			ports[client.String()], ids[query.Id] = true, true
			name := query.Question[0].Name
			send := func(from net.PacketConn, address string, change func(*dns.Msg)) {
				reply := new(dns.Msg).SetReply(&query)
				reply.Answer = records(t, name+" 60 A "+address)
				change(reply)
				if raw, err := reply.Pack(); err == nil {
					_, _ = from.WriteTo(raw, client)
				}
			}
			send(elsewhere, "203.0.113.1", func(*dns.Msg) {})
			send(packets, "203.0.113.2", func(m *dns.Msg) { m.Id++ })
			switch {
			case strings.HasPrefix(name, "other"):
				send(packets, "203.0.113.3", func(m *dns.Msg) { m.Question[0].Name = "poisoned.example." })
			case strings.HasPrefix(name, "query"):
				send(packets, "203.0.113.4", func(m *dns.Msg) { m.Response = false })
			case strings.HasPrefix(name, "loop"):
				raw := []byte{byte(query.Id >> 8), byte(query.Id), 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1, 0xc0, 18, 0, 1, 0, 1}
				_, _ = packets.WriteTo(raw, client)
			default:
				send(packets, "192.0.2.1", func(*dns.Msg) {})
			}
		}
	}()
	f := newForwarder(&upstream{address: netip.MustParseAddrPort(packets.LocalAddr().String())})
	const asked = 50
	for i := range asked {
		m := f.Resolve(t.Context(), question(fmt.Sprintf("n%d.example.", i), dns.TypeA))
		if len(m.Answer) != 1 || m.Answer[0].(*dns.A).A.String() != "192.0.2.1" {
			t.Fatalf("got %v", m)
		}
	}
	for _, name := range []string{"other.example.", "query.example.", "loop.example."} {
		if m := f.Resolve(t.Context(), question(name, dns.TypeA)); m.Rcode != dns.RcodeServerFailure || len(m.Answer) > 0 {
			t.Errorf("%s: %v", name, m)
		}
	}
	_ = packets.Close()
	<-served
	if len(ports) < asked/2 || len(ids) < asked-5 {
		t.Errorf("%d questions came from %d ports with %d IDs", asked, len(ports), len(ids))
	}
}
