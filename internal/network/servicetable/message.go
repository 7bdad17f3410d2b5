package servicetable

import (
	"encoding/binary"
	"fmt"

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

func (a attributes) data(typ uint16, value string) attributes {
	a, at := a.begin(typ | unix.NLA_F_NESTED)
	return a.bytes(unix.NFTA_DATA_VALUE, []byte(value)).end(at)
}

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

func magic(types []nftables.SetDatatype) (n uint32) {
	for _, t := range types {
		n = n<<6 | t.GetNFTMagic()
	}
	return n
}

func (k *kernelTable) newSet(s set, id uint32) *nl.NetlinkRequest {
	var fields attributes
	for _, f := range s.key {
		fields = fields.nested(unix.NFTA_LIST_ELEM, attributes{}.number(setFieldLen, f.Bytes))
	}
	const bigEndian = 2
	data := userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian)
	a := attributes{}.text(unix.NFTA_SET_TABLE, k.name).text(unix.NFTA_SET_NAME, s.name).
		number(unix.NFTA_SET_KEY_TYPE, magic(s.key)).number(unix.NFTA_SET_KEY_LEN, width(s.key)).number(unix.NFTA_SET_ID, id)
	var flags uint32
	if s.interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if s.dynamic {
		flags |= unix.NFT_SET_EVAL | unix.NFT_SET_TIMEOUT
		a = a.bytes(unix.NFTA_SET_TIMEOUT, binary.BigEndian.AppendUint64(nil, affinityTimeout))
	}
	switch {
	case s.verdicts:
		flags |= unix.NFT_SET_MAP
		a = a.number(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
	case s.data != nil:
		flags |= unix.NFT_SET_MAP
		a = a.number(unix.NFTA_SET_DATA_TYPE, magic(s.data)).number(unix.NFTA_SET_DATA_LEN, width(s.data))
		data = userdata.AppendUint32(data, userdata.NFTNL_UDATA_SET_DATABYTEORDER, bigEndian)
	}
	if len(s.key) > 1 {
		flags |= setConcat
		a = a.nested(unix.NFTA_SET_DESC, attributes{}.nested(setDescConcat, fields))
	}
	a = a.number(unix.NFTA_SET_FLAGS, flags).bytes(unix.NFTA_SET_USERDATA, data)
	return request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, a)
}

// affinityTimeout is the default of elements, in ms. Rules add them with their own.
const affinityTimeout = 3 * 60 * 60 * 1000

func (k *kernelTable) newChain(name string) *nl.NetlinkRequest {
	a := attributes{}.text(unix.NFTA_CHAIN_TABLE, k.name).text(unix.NFTA_CHAIN_NAME, name)
	if h, ok := hooks[name]; ok {
		where := attributes{}.number(unix.NFTA_HOOK_HOOKNUM, h.number).number(unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
		a = a.nested(unix.NFTA_CHAIN_HOOK, where).text(unix.NFTA_CHAIN_TYPE, h.kind).number(unix.NFTA_CHAIN_POLICY, 1)
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

func (k *kernelTable) newRule(r rule) *nl.NetlinkRequest {
	a := attributes{}.text(unix.NFTA_RULE_TABLE, k.name).text(unix.NFTA_RULE_CHAIN, r.chain).
		nested(unix.NFTA_RULE_EXPRESSIONS, r.exprs).
		bytes(unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, ruleComment, r.comment))
	return request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, a)
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
	if e.last != "" {
		a = a.data(setElemKeyEnd, e.last)
	}
	switch {
	case !valued:
	case e.verdict == dropped:
		a = a.nested(unix.NFTA_SET_ELEM_DATA, attributes{}.nested(unix.NFTA_DATA_VERDICT, attributes{}.number(unix.NFTA_VERDICT_CODE, 0)))
	case e.verdict != "":
		code := int32(unix.NFT_GOTO)
		a = a.nested(unix.NFTA_SET_ELEM_DATA, attributes{}.nested(unix.NFTA_DATA_VERDICT,
			attributes{}.number(unix.NFTA_VERDICT_CODE, uint32(code)).text(unix.NFTA_VERDICT_CHAIN, e.verdict)))
	case e.value != "":
		a = a.data(unix.NFTA_SET_ELEM_DATA, e.value)
	}
	return a.end(item)
}

// found is what the kernel has.
type found struct {
	exists   bool
	flags    uint32
	sets     map[string]bool
	chains   map[string][]string // the comments of their rules
	contents contents
}

// fields are the attributes of a message.
func fields(data []byte) func(func(uint16, []byte) bool) {
	const header = 4 // struct nfgenmsg
	return nlsock.Attributes(data[min(header, len(data)):])
}

// list reads a list, of which parse takes the items of this table.
func (k *kernelTable) list(typ int, a attributes, parse func(data []byte)) error {
	// A list that changed while it was read is read again.
	all, err := nlsock.List(k.conn, request(typ, 0, a), func(data []byte) ([]byte, bool) { return append([]byte{}, data...), true })
	for _, data := range all {
		parse(data)
	}
	return err
}

// find returns the table without its chains and sets.
func (k *kernelTable) find() (*found, error) {
	f := &found{sets: map[string]bool{}, chains: map[string][]string{}, contents: contents{}}
	get := k.conn.Do(request(unix.NFT_MSG_GETTABLE, 0, attributes{}.text(unix.NFTA_TABLE_NAME, k.name)))[0]
	if isMissing(get.Err) {
		return f, nil
	}
	if get.Err != nil {
		return nil, get.Err
	}
	f.exists = true
	for typ, value := range fields(get.Data) {
		if typ == unix.NFTA_TABLE_FLAGS && len(value) == 4 {
			f.flags = binary.BigEndian.Uint32(value)
		}
	}
	return f, nil
}

// read returns all that the kernel has.
func (k *kernelTable) read() (*found, error) {
	f, err := k.find()
	if err != nil || !f.exists {
		return f, err
	}
	err = k.list(unix.NFT_MSG_GETCHAIN, nil, func(data []byte) {
		var table, name string
		for typ, value := range fields(data) {
			switch typ {
			case unix.NFTA_CHAIN_TABLE:
				table = unix.ByteSliceToString(value)
			case unix.NFTA_CHAIN_NAME:
				name = unix.ByteSliceToString(value)
			}
		}
		if table == k.name {
			f.chains[name] = nil
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	err = k.list(unix.NFT_MSG_GETRULE, attributes{}.text(unix.NFTA_RULE_TABLE, k.name), func(data []byte) {
		var table, chain, says string
		for typ, value := range fields(data) {
			switch typ {
			case unix.NFTA_RULE_TABLE:
				table = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_USERDATA:
				says = comment(value)
			}
		}
		if table == k.name {
			f.chains[chain] = append(f.chains[chain], says)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	for _, s := range sets() {
		if s.dynamic {
			continue
		}
		all, err := k.elements(s.name)
		if isMissing(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list set %s: %w", s.name, err)
		}
		f.contents[s.name] = make(map[string]element, len(all))
		for _, e := range all {
			f.contents.add(s.name, e)
		}
		f.sets[s.name] = true
	}
	return f, nil
}

// elements lists those of a set.
func (k *kernelTable) elements(set string) (out []element, err error) {
	a := attributes{}.text(unix.NFTA_SET_ELEM_LIST_TABLE, k.name).text(unix.NFTA_SET_ELEM_LIST_SET, set)
	err = k.list(unix.NFT_MSG_GETSETELEM, a, func(data []byte) {
		for typ, value := range fields(data) {
			if typ != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				continue
			}
			for _, item := range nlsock.Attributes(value) {
				out = append(out, parseElement(item))
			}
		}
	})
	return out, err
}

// comment returns the comment in a rule's user data.
func comment(data []byte) string {
	for len(data) >= 2 && len(data) >= 2+int(data[1]) {
		value := data[2 : 2+int(data[1])]
		if data[0] == ruleComment {
			return unix.ByteSliceToString(value)
		}
		data = data[2+len(value):]
	}
	return ""
}

func parseElement(item []byte) (e element) {
	for typ, value := range nlsock.Attributes(item) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = dataValue(value)
		case setElemKeyEnd:
			e.last = dataValue(value)
		case unix.NFTA_SET_ELEM_DATA:
			if e.value = dataValue(value); e.value != "" {
				continue
			}
			e.verdict = dropped
			for _, value := range nlsock.Attributes(value) {
				for typ, value := range nlsock.Attributes(value) {
					if typ == unix.NFTA_VERDICT_CHAIN {
						e.verdict = unix.ByteSliceToString(value)
					}
				}
			}
		}
	}
	return e
}

func dataValue(data []byte) string {
	for typ, value := range nlsock.Attributes(data) {
		if typ == unix.NFTA_DATA_VALUE {
			return string(value)
		}
	}
	return ""
}
