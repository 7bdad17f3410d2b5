package nftable

import (
	"encoding/binary"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// From linux/netfilter/nf_tables.h, newer than those of package unix.
const (
	setConcat     = 0x80 // flag of a set
	setDescConcat = 2
	setFieldLen   = 1
	SetElemKeyEnd = 10
	setExpr       = 17
)

// Set is one of a table's: a set, or a map if its elements have values.
type Set struct {
	Name string
	// Key has the types of a key, which is a concatenation of several.
	Key []nftables.SetDatatype
	// The elements of a map have data of these types, or a verdict.
	Data     []nftables.SetDatatype
	Verdicts bool
	Interval bool
	Counted  bool // each element counts the packets that match it
	// Timeout, unless 0, is after which elements that rules add expire.
	Timeout time.Duration
}

// width is the size of a key or value in bytes. In a concatenation, each part fills registers of 4
// bytes.
func width(types []nftables.SetDatatype) (size uint32) {
	if len(types) == 1 {
		return types[0].Bytes
	}
	for _, t := range types {
		size += (t.Bytes + 3) &^ 3
	}
	return size
}

// KeySize is the size of a key in bytes.
func (s Set) KeySize() uint32 { return width(s.Key) }

func magic(types []nftables.SetDatatype) (n uint32) {
	for _, t := range types {
		n = n<<6 | t.GetNFTMagic()
	}
	return n
}

// byteOrder is how nft shows a key or value. What only the node knows has its byte order.
func byteOrder(types []nftables.SetDatatype) uint32 {
	const host, bigEndian = 1, 2
	if types[0] == nftables.TypeClassID || types[0] == nftables.TypeNFProto {
		return host
	}
	return bigEndian
}

// NewSet returns the message that makes a set.
func (t *Table) NewSet(s Set) *nl.NetlinkRequest {
	t.sets++
	var fields Attributes
	for _, f := range s.Key {
		fields = fields.Nested(unix.NFTA_LIST_ELEM, Attributes{}.Number(setFieldLen, f.Bytes))
	}
	data := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, byteOrder(s.Key))
	a := Attributes{}.Text(unix.NFTA_SET_TABLE, t.Name).Text(unix.NFTA_SET_NAME, s.Name).
		Number(unix.NFTA_SET_KEY_TYPE, magic(s.Key)).Number(unix.NFTA_SET_KEY_LEN, width(s.Key)).Number(unix.NFTA_SET_ID, t.sets)
	var flags uint32
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.Timeout > 0 {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
		a = a.Bytes(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, uint64(s.Timeout.Milliseconds())))
	}
	switch {
	case s.Verdicts:
		flags |= unix.NFT_SET_MAP
		a = a.Number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case s.Data != nil:
		flags |= unix.NFT_SET_MAP
		a = a.Number(unix.NFTA_SET_DATA_TYPE, magic(s.Data)).Number(unix.NFTA_SET_DATA_LEN, width(s.Data))
		data = userdata.AppendUint32(data, userdata.NFTNL_UDATA_SET_DATABYTEORDER, byteOrder(s.Data))
	}
	if len(s.Key) > 1 {
		flags |= setConcat
		a = a.Nested(unix.NFTA_SET_DESC, Attributes{}.Nested(setDescConcat, fields))
	}
	if s.Counted {
		a = a.Nested(setExpr, Attributes{}.Text(unix.NFTA_EXPR_NAME, "counter"))
	}
	a = a.Number(unix.NFTA_SET_FLAGS, flags).Bytes(unix.NFTA_SET_USERDATA, data)
	return Request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, a)
}

// DeleteSet returns the message that deletes a set.
func (t *Table) DeleteSet(name string) *nl.NetlinkRequest {
	return Request(unix.NFT_MSG_DELSET, 0, Attributes{}.Text(unix.NFTA_SET_TABLE, t.Name).Text(unix.NFTA_SET_NAME, name))
}

// Element is one of a set's.
type Element interface {
	// Append appends the element to a list, with its value or without.
	Append(list Attributes, valued bool) Attributes
}

// listSize is about how long a list of elements may be: it is an attribute, which has at most 64
// KiB.
const listSize = 48 << 10

// AddElements returns the messages that add elements to sets, by the names of those.
func AddElements[E Element](t *Table, bySet map[string][]E) []*nl.NetlinkRequest {
	return changeElements(t, unix.NFT_MSG_NEWSETELEM, bySet)
}

// DeleteElements returns the messages that delete elements of sets, by the names of those.
func DeleteElements[E Element](t *Table, bySet map[string][]E) []*nl.NetlinkRequest {
	return changeElements(t, unix.NFT_MSG_DELSETELEM, bySet)
}

func changeElements[E Element](t *Table, verb int, bySet map[string][]E) (out []*nl.NetlinkRequest) {
	for name, elements := range bySet {
		for len(elements) > 0 {
			a := Attributes{}.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name).Text(unix.NFTA_SET_ELEM_LIST_SET, name)
			a, list := a.Begin(unix.NFTA_SET_ELEM_LIST_ELEMENTS | unix.NLA_F_NESTED)
			for len(elements) > 0 && len(a) < listSize {
				a = elements[0].Append(a, verb == unix.NFT_MSG_NEWSETELEM)
				elements = elements[1:]
			}
			out = append(out, Request(verb, unix.NLM_F_CREATE, a.End(list)))
		}
	}
	return out
}

// Elements returns the items of a set's list, parsed by parse.
func Elements[E any](t *Table, set string, parse func(item []byte) E) (out []E, _ error) {
	a := Attributes{}.Text(unix.NFTA_SET_ELEM_LIST_TABLE, t.Name).Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	// A list that changed while it was read is read again.
	parts, err := nlsock.List(t.Conn, Request(unix.NFT_MSG_GETSETELEM, 0, a), func(data []byte) (part []E, _ bool) {
		for typ, value := range Fields(data) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, item := range nlsock.Attributes(value) {
				part = append(part, parse(item))
			}
		}
		return part, true
	})
	for _, part := range parts {
		out = append(out, part...)
	}
	return out, err
}
