package connlimit

import (
	"errors"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nftable"
	"github.com/huskd/husk/internal/network/nlsock"
)

// The table, which exists only while a pod is refused. IPv6 has the same, with sets whose names end
// in 6.
//
//	set full4 { type ipv4_addr; flags dynamic, timeout; timeout 5m; counter }
//	set cut4 { type ipv4_addr; flags dynamic, timeout; timeout 5m; counter }
//	chain refuse { type nat hook prerouting priority dstnat - 2
//		ip saddr @full4 drop
//		ip daddr @cut4 drop
//	}
//
// A nat chain sees the first packet of each connection only, so open connections are as fast as
// before. A connection that was cut would begin anew with the next packet of the other end, as that
// end's: hence cut4. The elements expire, so that a pod isn't refused for ever by a huskd that has
// gone.
const (
	chainRefuse = "refuse"
	setFull     = "full"
	setCut      = "cut"
)

// expiry is when elements expire, and renewal how often they are made anew.
const expiry, renewal = 5 * time.Minute, time.Minute

const layout = "1"

// beforeServices comes before the chains of Services.
const beforeServices = -102

type family struct {
	proto    byte
	suffix   string
	src, dst uint32 // offsets in the header
	size     uint32 // of an address
	address  nftables.SetDatatype
}

var families = []family{
	{unix.NFPROTO_IPV4, "4", 12, 16, 4, nftables.TypeIPAddr},
	{unix.NFPROTO_IPV6, "6", 8, 24, 16, nftables.TypeIP6Addr},
}

// element is one of a set's, which are addresses.
type element struct {
	addr    netip.Addr
	packets uint64 // that were dropped
}

// Append appends the element to a list.
func (e element) Append(a nftable.Attributes, _ bool) nftable.Attributes {
	a, item := a.Begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
	return a.Key(string(e.addr.AsSlice()), "").End(item)
}

func parseElement(item []byte) (e element) {
	for typ, value := range nlsock.Attributes(item) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.addr, _ = netip.AddrFromSlice([]byte(nftable.ParseData(value)))
		case unix.NFTA_SET_ELEM_EXPR:
			e.packets, _ = nftable.ParseCounter(value)
		}
	}
	return e
}

// load replaces the table, in one transaction. Without addresses there is none.
func load(t *nftable.Table, full, cut []netip.Addr) error {
	request := []*nl.NetlinkRequest{nftable.Request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nftable.Attributes{}.Text(unix.NFTA_TABLE_NAME, t.Name)), t.Delete()}
	if len(full) == 0 {
		return t.Wrap(t.Conn.Transact(request...))
	}
	request = append(request, nftable.Request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nftable.Attributes{}.Text(unix.NFTA_TABLE_NAME, t.Name)))
	elements := map[string][]element{}
	for set, addresses := range map[string][]netip.Addr{setFull: full, setCut: cut} {
		for _, a := range addresses {
			name := set + families[0].suffix
			if a.Is6() {
				name = set + families[1].suffix
			}
			elements[name] = append(elements[name], element{addr: a})
		}
	}
	for _, f := range families {
		for _, name := range []string{setFull, setCut} {
			request = append(request, t.NewSet(nftable.Set{Name: name + f.suffix, Key: []nftables.SetDatatype{f.address}, Timeout: expiry, Counted: true}))
		}
	}
	request = append(request, nftable.AddElements(t, elements)...)
	request = append(request, t.NewChain(chainRefuse, &nftable.Hook{Kind: "nat", Number: unix.NF_INET_PRE_ROUTING, Priority: beforeServices}))
	for _, f := range families {
		for set, offset := range map[string]uint32{setFull: f.src, setCut: f.dst} {
			request = append(request, t.AppendRule(nftable.NewRule(chainRefuse, layout,
				&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: unix.NFT_REG_1}, &expr.Cmp{Register: unix.NFT_REG_1, Data: []byte{f.proto}},
				&expr.Payload{Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: f.size, DestRegister: unix.NFT_REG_1},
				&expr.Lookup{SourceRegister: unix.NFT_REG_1, SetName: set + f.suffix},
				&expr.Verdict{Kind: expr.VerdictDrop})))
		}
	}
	return t.Wrap(t.Conn.Transact(request...))
}

// dropped counts the packets that the table has dropped.
func dropped(t *nftable.Table) (n uint64, _ error) {
	for _, f := range families {
		for _, set := range []string{setFull, setCut} {
			all, err := nftable.Elements(t, set+f.suffix, parseElement)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return 0, t.Wrap(err)
			}
			for _, e := range all {
				n += e.packets
			}
		}
	}
	return n, nil
}
