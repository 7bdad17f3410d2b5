package nftable

import (
	"encoding/binary"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// Attributes are netlink attributes, one after the other. Its methods append one.
type Attributes []byte

// Begin appends the header of an attribute whose value follows, until End is called with at.
func (a Attributes) Begin(typ uint16) (_ Attributes, at int) {
	at = len(a)
	return binary.NativeEndian.AppendUint16(append(a, 0, 0), typ), at
}

// End ends the attribute that began at an offset.
func (a Attributes) End(at int) Attributes {
	binary.NativeEndian.PutUint16(a[at:], uint16(len(a)-at))
	for len(a)%unix.NLA_ALIGNTO != 0 {
		a = append(a, 0)
	}
	return a
}

// Bytes appends an attribute with any value.
func (a Attributes) Bytes(typ uint16, value []byte) Attributes {
	a, at := a.Begin(typ)
	return append(a, value...).End(at)
}

// Nested appends an attribute whose value is attributes.
func (a Attributes) Nested(typ uint16, value []byte) Attributes {
	return a.Bytes(typ|unix.NLA_F_NESTED, value)
}

// Text appends a string.
func (a Attributes) Text(typ uint16, value string) Attributes {
	a, at := a.Begin(typ)
	return append(append(a, value...), 0).End(at)
}

// Number appends a number in the byte order of nftables.
func (a Attributes) Number(typ uint16, value uint32) Attributes {
	return a.Bytes(typ, binary.BigEndian.AppendUint32(nil, value))
}

// Key appends the key of an element, and its end if it is a range of a concatenation.
func (a Attributes) Key(first, last string) Attributes {
	a = a.Data(unix.NFTA_SET_ELEM_KEY, first)
	if last != "" {
		a = a.Data(SetElemKeyEnd, last)
	}
	return a
}

// Data appends the content of a register.
func (a Attributes) Data(typ uint16, value string) Attributes {
	a, at := a.Begin(typ | unix.NLA_F_NESTED)
	return a.Bytes(unix.NFTA_DATA_VALUE, []byte(value)).End(at)
}

// Verdict appends the verdict of an element; of one without a chain, chain is empty.
func (a Attributes) Verdict(typ uint16, code int32, chain string) Attributes {
	v := Attributes{}.Number(unix.NFTA_VERDICT_CODE, uint32(code))
	if chain != "" {
		v = v.Text(unix.NFTA_VERDICT_CHAIN, chain)
	}
	return a.Nested(typ, Attributes{}.Nested(unix.NFTA_DATA_VERDICT, v))
}

// Native returns a number as a register of 4 bytes has it.
func Native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Request returns a message of nftables for tables of family inet.
func Request(typ, flags int, a Attributes) *nl.NetlinkRequest {
	req := nlsock.NftRequest(typ)
	req.Flags |= uint16(flags)
	req.RawData = a
	return req
}

// Fields are the attributes of a message, as type and value.
func Fields(data []byte) func(func(uint16, []byte) bool) {
	const header = 4 // struct nfgenmsg
	return nlsock.Attributes(data[min(header, len(data)):])
}

// ParseNumber is the inverse of Attributes.Number. It returns 0 for a value of another size.
func ParseNumber(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// ParseData returns the content of a register, or "" if data is a verdict.
func ParseData(data []byte) string {
	for typ, value := range nlsock.Attributes(data) {
		if typ == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return ""
}

// ParseVerdict returns the chain of a verdict, or "" if it has none.
func ParseVerdict(data []byte) (chain string) {
	for _, value := range nlsock.Attributes(data) {
		for typ, value := range nlsock.Attributes(value) {
			if typ == unix.NFTA_VERDICT_CHAIN {
				chain = unix.ByteSliceToString(value)
			}
		}
	}
	return chain
}

// ParseCounter returns the packets of an expression, if it is a counter.
func ParseCounter(expr []byte) (packets uint64, ok bool) {
	const counterPackets = 2
	name := ""
	for typ, value := range nlsock.Attributes(expr) {
		if typ == unix.NFTA_EXPR_NAME {
			name = unix.ByteSliceToString(value)
		}
		if typ != unix.NFTA_EXPR_DATA || name != "counter" {
			continue
		}
		for typ, value := range nlsock.Attributes(value) {
			if typ == counterPackets && len(value) == 8 {
				return binary.BigEndian.Uint64(value), true
			}
		}
	}
	return 0, false
}
