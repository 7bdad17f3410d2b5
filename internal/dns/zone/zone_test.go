package zone

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

func addresses(list ...string) (out []netip.Addr) {
	for _, a := range list {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func testZone() *Zone {
	https := []Port{{Name: "https", Protocol: "TCP", Number: 443}, {Protocol: "TCP", Number: 80}}
	return New(Config{
		Domain: "cluster.local", Server: netip.MustParseAddr("169.254.64.1"),
		Reverse: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
	}, []Service{
		{Namespace: "default", Name: "kubernetes", Addresses: addresses("10.3.0.1", "2001:db8::1"), Ports: https},
		{Namespace: "default", Name: "headless", Ports: https, Endpoints: []Endpoint{
			{Hostname: "my-pet", Addresses: addresses("10.3.0.100"), Ports: []Port{{"https", "TCP", 443}}},
			{Hostname: "my-pet", Addresses: addresses("2001:db8::1:1"), Ports: []Port{{"https", "TCP", 443}}},
			{Hostname: "my-pet-2", Addresses: addresses("10.3.0.101"), Ports: []Port{{"https", "TCP", 8443}}},
			{Addresses: addresses("10.3.0.102"), Ports: []Port{{"https", "TCP", 443}}},
			{Addresses: addresses("2001:db8::1:2"), Ports: []Port{{"https", "TCP", 443}}},
		}},
		{Namespace: "default", Name: "empty"},
		{Namespace: "default", Name: "foo", ExternalName: "WWW.example.com"},
		{Namespace: "default", Name: "near", ExternalName: "kubernetes.default.svc.cluster.local."},
		{Namespace: "default", Name: "loop", ExternalName: "loop2.default.svc.cluster.local"},
		{Namespace: "default", Name: "loop2", ExternalName: "loop.default.svc.cluster.local"},
		{Namespace: "default", Name: "bad", ExternalName: "a..b"},
		{Namespace: "other", Name: "web", Addresses: addresses("10.3.0.9")},
	}, []Pod{
		{Namespace: "default", Name: "web", Hostname: "web", Addresses: addresses("10.201.0.5", "fd00:1::5")},
		{Namespace: "default", Name: "kubernetes", Hostname: "kubernetes", Addresses: addresses("10.201.0.6")},
		{Namespace: "default", Name: "db-0", Hostname: "primary", Subdomain: "db", Addresses: addresses("10.201.0.7")},
		{Namespace: "default", Name: "pet", Hostname: "other", Subdomain: "headless", Addresses: addresses("10.3.0.100")},
		{Namespace: "default", Name: "my-pet.headless", Hostname: "x", Addresses: addresses("10.201.0.8")},
		{Namespace: "default", Name: strings.Repeat("a", 250), Hostname: "long", Addresses: addresses("10.201.0.9")},
	})
}

// TestSpecification checks the records of Kubernetes' DNS-based service discovery 1.1.0, section by
// section, and those of pods.
func TestSpecification(t *testing.T) {
	z := testZone()
	for _, c := range []struct{ section, question, want string }{
		{"2.2", "dns-version.cluster.local. TXT", `TXT "1.1.0"`},
		// Services with a cluster IP.
		{"2.3.1", "kubernetes.default.svc.cluster.local. A", "A 10.3.0.1"},
		{"2.3.1", "Kubernetes.Default.SVC.cluster.LOCAL. A", "A 10.3.0.1"},
		{"2.3.1", "kubernetes.default.svc.cluster.local. AAAA", "AAAA 2001:db8::1"},
		{"2.3.1", "kubernetes.default.svc.cluster.local. MX", "nodata"},
		{"2.3.1", "web.other.svc.cluster.local. AAAA", "nodata"},
		{"2.3.2", "_https._tcp.kubernetes.default.svc.cluster.local. SRV", "SRV 0 100 443 kubernetes.default.svc.cluster.local. | A 10.3.0.1 AAAA 2001:db8::1"},
		{"2.3.2", "_https._udp.kubernetes.default.svc.cluster.local. SRV", "nxdomain"},
		{"2.3.2", "_._tcp.kubernetes.default.svc.cluster.local. SRV", "nxdomain"},
		{"2.3.3", "1.0.3.10.in-addr.arpa. PTR", "PTR kubernetes.default.svc.cluster.local."},
		{"2.3.3", "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "PTR kubernetes.default.svc.cluster.local."},
		// Headless services.
		{"2.4.1", "headless.default.svc.cluster.local. A", "A 10.3.0.100 A 10.3.0.101 A 10.3.0.102"},
		{"2.4.1", "headless.default.svc.cluster.local. AAAA", "AAAA 2001:db8::1:1 AAAA 2001:db8::1:2"},
		{"2.4.1", "empty.default.svc.cluster.local. A", "nxdomain"},
		{"2.4.1", "my-pet.headless.default.svc.cluster.local. A", "A 10.3.0.100"},
		{"2.4.1", "my-pet.headless.default.svc.cluster.local. AAAA", "AAAA 2001:db8::1:1"},
		{"2.4.1", "10-3-0-102.headless.default.svc.cluster.local. A", "A 10.3.0.102"},
		{"2.4.1", "2001-db8--1-2.headless.default.svc.cluster.local. AAAA", "AAAA 2001:db8::1:2"},
		{"2.4.1", "nobody.headless.default.svc.cluster.local. A", "nxdomain"},
		{"2.4.2", "_https._tcp.headless.default.svc.cluster.local. SRV",
			"SRV 0 100 443 my-pet.headless.default.svc.cluster.local. " +
				"SRV 0 100 8443 my-pet-2.headless.default.svc.cluster.local. " +
				"SRV 0 100 443 10-3-0-102.headless.default.svc.cluster.local. " +
				"SRV 0 100 443 2001-db8--1-2.headless.default.svc.cluster.local. " +
				"| A 10.3.0.100 AAAA 2001:db8::1:1 A 10.3.0.101 A 10.3.0.102 AAAA 2001:db8::1:2"},
		{"2.4.3", "100.0.3.10.in-addr.arpa. PTR", "PTR my-pet.headless.default.svc.cluster.local."},
		{"2.4.3", "102.0.3.10.in-addr.arpa. PTR", "PTR 10-3-0-102.headless.default.svc.cluster.local."},
		{"2.4.3", "2.0.0.0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "PTR 2001-db8--1-2.headless.default.svc.cluster.local."},
		// External names.
		{"2.5", "foo.default.svc.cluster.local. A", "CNAME www.example.com. then www.example.com."},
		{"2.5", "foo.default.svc.cluster.local. CNAME", "CNAME www.example.com."},
		{"2.5", "near.default.svc.cluster.local. A", "CNAME kubernetes.default.svc.cluster.local. A 10.3.0.1"},
		{"2.5", "bad.default.svc.cluster.local. A", "nxdomain"},
		// Addresses of pods.
		{"2.6", "1-2-3-4.default.pod.cluster.local. A", "A 1.2.3.4"},
		{"2.6", "1-2-3-4.default.pod.cluster.local. AAAA", "nodata"},
		{"2.6", "2001-db8--5.default.pod.cluster.local. AAAA", "AAAA 2001:db8::5"},
		{"2.6", "1-2-3-400.default.pod.cluster.local. A", "nxdomain"},
		{"2.6", "01-2-3-4.default.pod.cluster.local. A", "nxdomain"},
		{"2.6", "1-2-3-4.pod.cluster.local. A", "nxdomain"},
		// Names of pods, which services precede.
		{"pods", "web.default.svc.cluster.local. A", "A 10.201.0.5"},
		{"pods", "web.default.pod.cluster.local. AAAA", "AAAA fd00:1::5"},
		{"pods", "kubernetes.default.pod.cluster.local. A", "A 10.201.0.6"},
		{"pods", "primary.db.default.svc.cluster.local. A", "A 10.201.0.7"},
		{"pods", "db-0.default.svc.cluster.local. A", "A 10.201.0.7"},
		{"pods", "other.headless.default.svc.cluster.local. A", "nxdomain"},
		{"pods", "5.0.201.10.in-addr.arpa. PTR", "PTR web.default.pod.cluster.local."},
		{"pods", "9.0.201.10.in-addr.arpa. PTR", "nxdomain"},
		// The zone itself, names between, and what is outside.
		{"zone", "cluster.local. NS", "NS ns.dns.cluster.local."},
		{"zone", "cluster.local. A", "nodata"},
		{"zone", "ns.dns.cluster.local. A", "A 169.254.64.1"},
		{"zone", "svc.cluster.local. A", "nodata"},
		{"zone", "default.svc.cluster.local. A", "nodata"},
		{"zone", "_tcp.headless.default.svc.cluster.local. SRV", "nodata"},
		{"zone", "none.svc.cluster.local. A", "nxdomain"},
		{"zone", "1.1.201.10.in-addr.arpa. PTR", "nxdomain"},
		{"zone", "5.0.201.10.in-addr.arpa. A", "nodata"},
		{"zone", "1.1.1.1.in-addr.arpa. PTR", "not here"},
		{"zone", "201.10.in-addr.arpa. NS", "not here"},
		{"zone", "example.com. A", "not here"},
		{"zone", "notcluster.local. A", "not here"},
		{"zone", ". NS", "not here"},
	} {
		if got := ask(t, z, c.question); got != c.want {
			t.Errorf("%s: %s:\n got %s\nwant %s", c.section, c.question, got, c.want)
		}
	}
	r, _ := z.Answer(dns.Question{Name: "loop.default.svc.cluster.local.", Qtype: dns.TypeA, Qclass: dns.ClassINET})
	if len(r.Answer) != maxAliases {
		t.Errorf("an alias of itself has %d records, want %d", len(r.Answer), maxAliases)
	}
}

// TestNamespacesKeepApart checks that no name of an object gives it names in another namespace, or
// outside of those of Services and pods.
func TestNamespacesKeepApart(t *testing.T) {
	names := []string{"web.default", "web.default.svc.cluster.local.", "default.svc", "_tcp.web.default", ".", "..", "a..b", "*", "ns.dns", "\\.default", "10-1-2-3"}
	var services []Service
	var pods []Pod
	for _, name := range names {
		at := addresses("10.9.9.9", "fd09::9")
		services = append(services, Service{Namespace: "evil", Name: name, Addresses: at}, Service{Namespace: "evil", Name: "h-" + name, Endpoints: []Endpoint{{Hostname: name, Addresses: at}}},
			Service{Namespace: "evil", Name: "e-" + name, ExternalName: name})
		pods = append(pods, Pod{Namespace: "evil", Name: name, Hostname: name, Subdomain: name, Addresses: at})
	}
	z := New(Config{Domain: "cluster.local"}, services, pods)
	for name, n := range z.nodes {
		own := strings.HasSuffix(name, ".evil.svc.cluster.local.") || strings.HasSuffix(name, ".evil.pod.cluster.local.")
		if !own && (len(n.addresses) > 0 || len(n.services) > 0 || n.alias != "") {
			t.Errorf("%s is a name of namespace evil: %+v", name, n)
		}
	}
	for address, names := range z.names {
		for _, name := range names {
			if !strings.Contains(name, ".evil.") {
				t.Errorf("%v has the name %s", address, name)
			}
		}
	}
}

// ask returns the answer to "NAME TYPE" without names and TTLs, which it checks.
func ask(t *testing.T, z *Zone, question string) string {
	t.Helper()
	name, kind, _ := strings.Cut(question, " ")
	r, ok := z.Answer(dns.Question{Name: name, Qtype: dns.StringToType[kind], Qclass: dns.ClassINET})
	if !ok {
		return "not here"
	}
	if len(r.Ns) > 0 && r.Ns[0].Header().Rrtype != dns.TypeSOA {
		t.Errorf("%s: the authority is %v, want a SOA", question, r.Ns)
	}
	switch {
	case r.Rcode == dns.RcodeNameError && len(r.Ns) == 1:
		return "nxdomain"
	case r.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[r.Rcode]
	case len(r.Answer) == 0 && len(r.Ns) == 1:
		return "nodata"
	}
	if r.Answer[0].Header().Name != name {
		t.Errorf("%s: the answer is about %s", question, r.Answer[0].Header().Name)
	}
	var words []string
	add := func(list []dns.RR) {
		for _, rr := range list {
			h := rr.Header()
			if h.Ttl != TTL || h.Class != dns.ClassINET {
				t.Errorf("%s: TTL or class of %v", question, rr)
			}
			words = append(words, dns.TypeToString[h.Rrtype], strings.TrimPrefix(rr.String(), h.String()))
		}
	}
	add(r.Answer)
	if len(r.Extra) > 0 {
		words = append(words, "|")
		add(r.Extra)
	}
	if r.Alias != "" {
		words = append(words, "then", r.Alias)
	}
	return strings.Join(words, " ")
}

// FuzzAnswer checks that every question gets an answer that can be sent, and that it is the same
// in any case of letters.
func FuzzAnswer(f *testing.F) {
	for _, name := range []string{"web.default.svc.cluster.local.", "1.0.3.10.in-addr.arpa.", "1-2-3-4.default.pod.cluster.local.", "a\\.b.cluster.local.", "."} {
		f.Add(name, dns.TypeA)
		f.Add(name, dns.TypeANY)
	}
	z := testZone()
	f.Fuzz(func(t *testing.T, name string, kind uint16) {
		var q dns.Msg
		q.SetQuestion(dns.Fqdn(name), kind)
		raw, err := q.Pack()
		if err != nil || q.Unpack(raw) != nil {
			t.Skip()
		}
		r, ok := z.Answer(q.Question[0])
		if !ok {
			return
		}
		answer := new(dns.Msg).SetRcode(&q, r.Rcode)
		answer.Answer, answer.Ns, answer.Extra = r.Answer, r.Ns, r.Extra
		if _, err := answer.Pack(); err != nil {
			t.Errorf("the answer to %q can't be sent: %v", name, err)
		}
		q.Question[0].Name = strings.ToUpper(q.Question[0].Name)
		if upper, ok := z.Answer(q.Question[0]); !ok || upper.Rcode != r.Rcode || len(upper.Answer) != len(r.Answer) {
			t.Errorf("%q in upper case: %v, want %v", name, upper, r)
		}
	})
}

func BenchmarkNew(b *testing.B) {
	var services []Service
	for i := range 1000 {
		s := Service{Namespace: "default", Name: fmt.Sprintf("s%d", i)}
		for j := range 10 {
			s.Endpoints = append(s.Endpoints, Endpoint{Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), byte(j)})}})
		}
		services = append(services, s)
	}
	for b.Loop() {
		New(Config{Domain: "cluster.local"}, slices.Clone(services), nil)
	}
}
