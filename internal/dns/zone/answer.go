package zone

import (
	"encoding/hex"
	"net/netip"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// maxAliases is how many aliases in the zone an answer follows.
const maxAliases = 8

// Answer answers a question. It returns false if the zone doesn't have the name: others may.
func (z *Zone) Answer(q dns.Question) (Reply, bool) {
	name := dns.CanonicalName(q.Name)
	if a, ok := addressOf(name); ok {
		return z.reverse(q, a)
	}
	if !dns.IsSubDomain(z.domain, name) {
		return Reply{}, false
	}
	var r Reply
	owner := q.Name // in the case of the question
	for range maxAliases {
		n := z.lookup(name)
		if n == nil {
			r.Rcode = dns.RcodeNameError
			break
		}
		if n.alias == "" || q.Qtype == dns.TypeCNAME || q.Qtype == dns.TypeANY {
			r.Answer = append(r.Answer, z.records(n, owner, name, q.Qtype)...)
			r.Extra = z.extra(n, q.Qtype)
			break
		}
		r.Answer = append(r.Answer, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: n.alias})
		owner, name = n.alias, n.alias
		if !dns.IsSubDomain(z.domain, name) {
			r.Alias = name
			return r, true
		}
	}
	if len(r.Answer) == 0 || r.Rcode != dns.RcodeSuccess {
		r.Ns = []dns.RR{z.soa(z.domain)}
	}
	return r, true
}

// lookup returns the node of a name, or nil. Names of the form A-B-C-D.NAMESPACE.pod.DOMAIN exist
// for all addresses.
func (z *Zone) lookup(name string) *node {
	if n := z.nodes[name]; n != nil {
		return n
	}
	above, ok := strings.CutSuffix(name, ".pod."+z.domain)
	label, namespace, two := strings.Cut(above, ".")
	if !ok || !two || namespace == "" || strings.Contains(namespace, ".") {
		return nil
	}
	if a, ok := undashed(label); ok {
		return &node{addresses: []netip.Addr{a}}
	}
	return nil
}

// reverse answers a question about the names of an address.
func (z *Zone) reverse(q dns.Question, a netip.Addr) (Reply, bool) {
	names, ok := z.names[a]
	if !ok && !slices.ContainsFunc(z.cfg.Reverse, func(p netip.Prefix) bool { return p.Contains(a) }) {
		return Reply{}, false
	}
	var r Reply
	if !ok {
		r.Rcode = dns.RcodeNameError
	}
	if q.Qtype == dns.TypePTR || q.Qtype == dns.TypeANY {
		for _, name := range names {
			r.Answer = append(r.Answer, &dns.PTR{Hdr: header(q.Name, dns.TypePTR), Ptr: name})
		}
	}
	if len(r.Answer) == 0 {
		_, parent, _ := strings.Cut(dns.CanonicalName(q.Name), ".")
		r.Ns = []dns.RR{z.soa(parent)}
	}
	return r, true
}

// records returns the node's records of a type.
func (z *Zone) records(n *node, owner, name string, kind uint16) (out []dns.RR) {
	wants := func(k uint16) bool { return kind == k || kind == dns.TypeANY }
	for _, a := range n.addresses {
		if rr := addressRecord(owner, a); wants(rr.Header().Rrtype) {
			out = append(out, rr)
		}
	}
	if wants(dns.TypeSRV) {
		for _, t := range n.services {
			out = append(out, &dns.SRV{Hdr: header(owner, dns.TypeSRV), Priority: 0, Weight: 100, Port: t.port, Target: t.name})
		}
	}
	if n.alias != "" && wants(dns.TypeCNAME) {
		out = append(out, &dns.CNAME{Hdr: header(owner, dns.TypeCNAME), Target: n.alias})
	}
	if n.text != "" && wants(dns.TypeTXT) {
		out = append(out, &dns.TXT{Hdr: header(owner, dns.TypeTXT), Txt: []string{n.text}})
	}
	if name == z.domain {
		if wants(dns.TypeSOA) {
			out = append(out, z.soa(owner))
		}
		if wants(dns.TypeNS) {
			out = append(out, &dns.NS{Hdr: header(owner, dns.TypeNS), Ns: z.nameServer()})
		}
	}
	return out
}

// extra returns the addresses of the targets of SRV records.
func (z *Zone) extra(n *node, kind uint16) (out []dns.RR) {
	if kind != dns.TypeSRV && kind != dns.TypeANY {
		return nil
	}
	seen := map[string]bool{}
	for _, t := range n.services {
		if seen[t.name] || z.nodes[t.name] == nil {
			continue
		}
		seen[t.name] = true
		for _, a := range z.nodes[t.name].addresses {
			out = append(out, addressRecord(t.name, a))
		}
	}
	return out
}

// soa returns the record that says how long the absence of names may be cached.
func (z *Zone) soa(owner string) dns.RR {
	return &dns.SOA{
		Hdr: header(owner, dns.TypeSOA), Ns: z.nameServer(), Mbox: "hostmaster." + z.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: TTL,
	}
}

func header(name string, kind uint16) dns.RR_Header {
	return dns.RR_Header{Name: name, Rrtype: kind, Class: dns.ClassINET, Ttl: TTL}
}

func addressRecord(name string, a netip.Addr) dns.RR {
	if a.Is4() {
		return &dns.A{Hdr: header(name, dns.TypeA), A: a.AsSlice()}
	}
	return &dns.AAAA{Hdr: header(name, dns.TypeAAAA), AAAA: a.AsSlice()}
}

// The domains of the names that stand for addresses.
const (
	arpa4 = ".in-addr.arpa."
	arpa6 = ".ip6.arpa."
)

// addressOf returns the address that a canonical name below arpa stands for.
func addressOf(name string) (netip.Addr, bool) {
	if text, ok := strings.CutSuffix(name, arpa4); ok {
		labels := strings.Split(text, ".")
		slices.Reverse(labels)
		a, err := netip.ParseAddr(strings.Join(labels, "."))
		return a, err == nil && a.Is4()
	}
	text, ok := strings.CutSuffix(name, arpa6)
	labels := strings.Split(text, ".")
	if !ok || len(labels) != 32 {
		return netip.Addr{}, false
	}
	slices.Reverse(labels)
	raw, err := hex.DecodeString(strings.Join(labels, ""))
	a, ok := netip.AddrFromSlice(raw)
	return a, err == nil && ok
}
