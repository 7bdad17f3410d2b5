package datapath

import (
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// What an address may send to the node's DNS server: datagrams and beginnings of connections, a
// second. The rest is dropped before it wakes huskd and before it takes the place of others'
// datagrams in the socket's buffer. The server itself counts questions, and answers fewer, so that
// it knows who asks too many: see package nameserver.
const (
	questionRate  = 2000
	questionBurst = 2000
	// askingTime is how long an address that asks nothing is remembered: longer than it takes to
	// have its burst again.
	askingTime = 10 * time.Second
	maxAsking  = 65536
	dnsPort    = 53
)

const asking = "asking"

// questionSets returns the sets of the addresses that ask. Their IDs begin at id, see podSet.
func questionSets(t *nftables.Table, id uint32) (out []*nftables.Set) {
	for _, f := range families {
		out = append(out, &nftables.Set{
			Table: t, ID: id, Name: asking + f.suffix, KeyType: f.address, KeyByteOrder: binaryutil.BigEndian,
			Dynamic: true, HasTimeout: true, Timeout: askingTime, Size: maxAsking,
		})
		id++
	}
	return out
}

// questionRules returns the rules that limit what is sent to the DNS server at an address.
func questionRules(server netip.Addr) (out [][]expr.Any) {
	f := families[0]
	if server.Is6() {
		f = families[1]
	}
	limit := match{f.load(f.src, reg1), &expr.Dynset{
		SrcRegKey: reg1, SetName: asking + f.suffix, Operation: unix.NFT_DYNSET_OP_UPDATE,
		Exprs: []expr.Any{&expr.Limit{Type: expr.LimitTypePkts, Rate: questionRate, Unit: expr.LimitTimeSecond, Burst: questionBurst, Over: true}},
	}}
	const syn = 2
	begins := match{
		&expr.Payload{Base: expr.PayloadBaseTransportHeader, Offset: 13, Len: 1, DestRegister: reg1},
		&expr.Bitwise{SourceRegister: reg1, DestRegister: reg1, Len: 1, Mask: []byte{syn}, Xor: []byte{0}},
		equal(reg1, []byte{syn}),
	}
	to := f.within(f.dst, netip.PrefixFrom(server, server.BitLen()))
	drop := verdict(expr.VerdictDrop, "")
	return [][]expr.Any{
		rule(f.is(), to, toPort(unix.IPPROTO_UDP, dnsPort), limit, drop),
		rule(f.is(), to, toPort(unix.IPPROTO_TCP, dnsPort), begins, limit, drop),
	}
}
