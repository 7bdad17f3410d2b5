package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/huskd/husk/internal/pod"
)

// Field is one part of a set's key or of a map's value.
type Field string

// The fields, each with the part of an Element that it stands for.
const (
	FieldLink     Field = "link"     // Element.Link
	FieldAddr     Field = "addr"     // Element.Addr
	FieldPeer     Field = "peer"     // Element.Peer
	FieldProtocol Field = "protocol" // Element.Protocol
	FieldPort     Field = "port"     // Element.Port
	FieldToAddr   Field = "toaddr"   // Element.To.Addr()
	FieldToPort   Field = "toport"   // Element.To.Port()
)

// Kinds of sets. There is one of each per family: pods4, pods6, …
const (
	Pods     = "pods"     // addresses of pods
	Sources  = "sources"  // addresses that a pod may send from, by ingress link
	Hairpin  = "hairpin"  // pods that may reach themselves through a hostPort
	Ports    = "ports"    // hostPorts on every address of the node
	AddrPort = "addrport" // hostPorts on one address of the node
)

// Kinds of sets of subnets, also one of each per family: blocks4, blocks6, …
const (
	Blocks = "blocks" // Table.Blocks
	Direct = "direct" // Table.Direct
	// Cluster is Table.Cluster.
	Cluster = "cluster"
)

// Set is a set of the table or, if it has a value, a map.
type Set struct {
	Kind  string
	Six   bool // of IPv6
	Key   []Field
	Value []Field
}

// Name of the set in the table.
func (s Set) Name() string { return setName(s.Kind, s.Six) }

func setName(kind string, six bool) string {
	if six {
		return kind + "6"
	}
	return kind + "4"
}

// Sets returns the sets of the table whose elements belong to pods.
func Sets() []Set {
	var out []Set
	for _, six := range []bool{false, true} {
		out = append(out,
			Set{Pods, six, []Field{FieldAddr}, nil},
			Set{Sources, six, []Field{FieldLink, FieldAddr}, nil},
			Set{Hairpin, six, []Field{FieldAddr, FieldPeer}, nil},
			Set{Ports, six, []Field{FieldProtocol, FieldPort}, []Field{FieldToAddr, FieldToPort}},
			Set{AddrPort, six, []Field{FieldAddr, FieldProtocol, FieldPort}, []Field{FieldToAddr, FieldToPort}})
	}
	return out
}

// Element is an element of a set. Which fields are set depends on the set's Kind.
type Element struct {
	Set      string
	Link     string
	Addr     netip.Addr
	Peer     netip.Addr
	Protocol pod.Protocol
	Port     uint16
	To       netip.AddrPort
}

// String returns the element as nft writes it.
func (e Element) String() string {
	var key []string
	if e.Link != "" {
		key = append(key, e.Link)
	}
	for _, a := range []netip.Addr{e.Addr, e.Peer} {
		if a.IsValid() {
			key = append(key, a.String())
		}
	}
	if e.Protocol != "" {
		key = append(key, string(e.Protocol), fmt.Sprint(e.Port))
	}
	s := strings.Join(key, " . ")
	if e.To.IsValid() {
		s += fmt.Sprintf(" : %v . %d", e.To.Addr(), e.To.Port())
	}
	return fmt.Sprintf("element %s { %s }", e.Set, s)
}

func elements(ingress string, a pod.Attachment, addresses []netip.Prefix) []Element {
	var out []Element
	for _, prefix := range addresses {
		addr := prefix.Addr()
		six := addr.Is6()
		out = append(out,
			Element{Set: setName(Pods, six), Addr: addr},
			Element{Set: setName(Sources, six), Link: ingress, Addr: addr})
		forwarded := false
		for _, m := range Mappings(a) {
			if !serves(m.HostIP, addr) {
				continue
			}
			e := Element{Set: setName(Ports, six), Protocol: m.Protocol, Port: m.HostPort, To: netip.AddrPortFrom(addr, m.Port)}
			if !allAddresses(m.HostIP) {
				e.Set, e.Addr = setName(AddrPort, six), m.HostIP
			}
			out = append(out, e)
			forwarded = true
		}
		if forwarded {
			out = append(out, Element{Set: setName(Hairpin, six), Addr: addr, Peer: addr})
		}
	}
	return out
}
