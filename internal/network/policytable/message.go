package policytable

import (
	"encoding/binary"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// From linux/netfilter/nf_tables.h, newer than those of package unix.
const (
	tableOwner, tablePersist = 0x2, 0x4 // flags of a table

	setConcat     = 0x80 // flag of a set
	setDescConcat = 2
	setFieldLen   = 1
	setElemKeyEnd = 10
	setExpr       = 17

	ruleComment = 0 // libnftnl's type of user data
)

// attributes are netlink attributes, one after the other.
type attributes []byte

// begin appends the header of an attribute whose value follows, until end.
func (a attributes) begin(typ uint16) (attributes, int) {
	at := len(a)
	return binary.NativeEndian.AppendUint16(append(a, 0, 0), typ), at
}

func (a attributes) end(at int) attributes {
	binary.NativeEndian.PutUint16(a[at:], uint16(len(a)-at))
	for len(a)%unix.NLA_ALIGNTO != 0 {
		a = append(a, 0)
	}
	return a
}

func (a attributes) bytes(typ uint16, value []byte) attributes {
	a, at := a.begin(typ)
	return append(a, value...).end(at)
}

func (a attributes) nested(typ uint16, value []byte) attributes {
	return a.bytes(typ|unix.NLA_F_NESTED, value)
}

func (a attributes) text(typ uint16, value string) attributes {
	a, at := a.begin(typ)
	return append(append(a, value...), 0).end(at)
}

func (a attributes) number(typ uint16, value uint32) attributes {
	return a.bytes(typ, binary.BigEndian.AppendUint32(nil, value))
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func request(typ, flags int, a attributes) *nl.NetlinkRequest {
	req := nlsock.NftRequest(typ)
	req.Flags |= uint16(flags)
	req.RawData = a
	return req
}

func (k *kernelTable) newTable() *nl.NetlinkRequest {
	a := attributes{}.text(unix.NFTA_TABLE_NAME, k.name).number(unix.NFTA_TABLE_FLAGS, k.flags)
	return request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, a)
}

func (k *kernelTable) deleteTable() *nl.NetlinkRequest {
	return request(unix.NFT_MSG_DELTABLE, 0, attributes{}.text(unix.NFTA_TABLE_NAME, k.name))
}

func (k *kernelTable) newSet(s set, id uint32) *nl.NetlinkRequest {
	var magic uint32
	var fields attributes
	for _, f := range s.key {
		magic = magic<<6 | f.GetNFTMagic()
		fields = fields.nested(unix.NFTA_LIST_ELEM, attributes{}.number(setFieldLen, f.Bytes))
	}
	flags, order := uint32(0), uint32(2) // big endian
	if s.key[0] == nftables.TypeClassID || s.key[0] == nftables.TypeNFProto {
		order = 1
	}
	data := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, order)
	a := attributes{}.text(unix.NFTA_SET_TABLE, k.name).text(unix.NFTA_SET_NAME, s.name).
		number(unix.NFTA_SET_KEY_TYPE, magic).number(unix.NFTA_SET_KEY_LEN, s.size()).number(unix.NFTA_SET_ID, id)
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	switch s.value {
	case identityValue:
		flags |= unix.NFT_SET_MAP
		a = a.number(unix.NFTA_SET_DATA_TYPE, nftables.TypeClassID.GetNFTMagic()).number(unix.NFTA_SET_DATA_LEN, 4)
		data = userdata.AppendUint32(data, userdata.NFTNL_UDATA_SET_DATABYTEORDER, 1)
	case chainValue:
		flags |= unix.NFT_SET_MAP
		a = a.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	}
	if len(s.key) > 1 {
		flags |= setConcat
		a = a.nested(unix.NFTA_SET_DESC, attributes{}.nested(setDescConcat, fields))
	}
	if s.counted {
		a = a.nested(setExpr, attributes{}.text(unix.NFTA_EXPR_NAME, "counter"))
	}
	a = a.number(unix.NFTA_SET_FLAGS, flags).bytes(unix.NFTA_SET_USERDATA, data)
	return request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, a)
}

func (k *kernelTable) deleteSet(name string) *nl.NetlinkRequest {
	return request(unix.NFT_MSG_DELSET, 0, attributes{}.text(unix.NFTA_SET_TABLE, k.name).text(unix.NFTA_SET_NAME, name))
}

// newChain makes a chain; those named forward and input are called for forwarded packets and for
// those to the node.
func (k *kernelTable) newChain(name string) *nl.NetlinkRequest {
	a := attributes{}.text(unix.NFTA_CHAIN_TABLE, k.name).text(unix.NFTA_CHAIN_NAME, name)
	if number, base := map[string]uint32{chainForward: unix.NF_INET_FORWARD, chainInput: unix.NF_INET_LOCAL_IN}[name]; base {
		const beforeFilter = -1
		priority := int32(beforeFilter)
		hook := attributes{}.number(unix.NFTA_HOOK_HOOKNUM, number).number(unix.NFTA_HOOK_PRIORITY, uint32(priority))
		a = a.nested(unix.NFTA_CHAIN_HOOK, hook).text(unix.NFTA_CHAIN_TYPE, "filter").number(unix.NFTA_CHAIN_POLICY, 1)
	}
	return request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, a)
}

// deleteChain deletes a chain and its rules.
func (k *kernelTable) deleteChain(name string) []*nl.NetlinkRequest {
	return []*nl.NetlinkRequest{
		request(unix.NFT_MSG_DELRULE, 0, attributes{}.text(unix.NFTA_RULE_TABLE, k.name).text(unix.NFTA_RULE_CHAIN, name)),
		request(unix.NFT_MSG_DELCHAIN, 0, attributes{}.text(unix.NFTA_CHAIN_TABLE, k.name).text(unix.NFTA_CHAIN_NAME, name)),
	}
}

// newRule adds a rule to its chain, at the end (unix.NLM_F_APPEND) or the start.
func (k *kernelTable) newRule(r rule, flags int) *nl.NetlinkRequest {
	a := attributes{}.text(unix.NFTA_RULE_TABLE, k.name).text(unix.NFTA_RULE_CHAIN, r.chain).
		nested(unix.NFTA_RULE_EXPRESSIONS, r.exprs).
		bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, ruleComment, r.comment))
	return request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|flags, a)
}

// listSize is about how long a list of elements may be: it is an attribute, which has at most 64
// KiB.
const listSize = 48 << 10

// change returns the messages that add or delete elements of sets.
func (k *kernelTable) change(verb int, bySet map[string][]element) (out []*nl.NetlinkRequest) {
	for name, elements := range bySet {
		for len(elements) > 0 {
			a := attributes{}.text(unix.NFTA_SET_ELEM_LIST_TABLE, k.name).text(unix.NFTA_SET_ELEM_LIST_SET, name)
			a, list := a.begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED)
			for len(elements) > 0 && len(a) < listSize {
				a = elements[0].append(a, verb == unix.NFT_MSG_NEWSETELEM)
				elements = elements[1:]
			}
			out = append(out, request(verb, unix.NLM_F_CREATE, a.end(list)))
		}
	}
	return out
}

// append adds an element to a list, with its value or without.
func (e element) append(a attributes, valued bool) attributes {
	a, item := a.begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
	a = a.data(unix.NFTA_SET_ELEM_KEY, e.key)
	if e.form == concatRange {
		a = a.data(setElemKeyEnd, e.last)
	}
	switch {
	case !valued:
	case e.value == chainValue:
		verdict := int32(unix.NFT_JUMP)
		a = a.nested(unix.NFTA_SET_ELEM_DATA, attributes{}.nested(unix.NFTA_DATA_VERDICT,
			attributes{}.number(unix.NFTA_VERDICT_CODE, uint32(verdict)).text(unix.NFTA_VERDICT_CHAIN, e.chain)))
	case e.value == identityValue:
		a = a.data(unix.NFTA_SET_ELEM_DATA, string(native(e.identity)))
	}
	a = a.end(item)
	if e.form != interval {
		return a
	}
	// The end of an interval is an element of its own: the first address behind it, unless it ends
	// with the last address of all.
	behind := []byte(e.last)
	for i := len(behind) - 1; i >= 0; i-- {
		if behind[i]++; behind[i] != 0 {
			a, item = a.begin(unix.NFTA_LIST_ELEM | unix.NLA_F_NESTED)
			a = a.data(unix.NFTA_SET_ELEM_KEY, string(behind))
			return a.number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END).end(item)
		}
	}
	return a
}

func (a attributes) data(typ uint16, value string) attributes {
	a, at := a.begin(typ | unix.NLA_F_NESTED)
	return a.bytes(unix.NFTA_DATA_VALUE, []byte(value)).end(at)
}
