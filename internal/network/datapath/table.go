package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// chunk is how many elements go into one message: the list of elements is a netlink attribute,
// which has at most 64 KiB.
const chunk = 400

// chunks is how many messages go into one batch, which must fit into the socket's send buffer.
const chunks = 4

// table is the instance's nftables table.
type table struct {
	d       *Datapath
	nft     *nftables.Table
	sets    map[string]plan.Set
	nfts    map[string]*nftables.Set
	changes *nlsock.Conn // for elements; five times as fast as the library

	mu   sync.Mutex // Invariant: guards conn, which collects a batch before it sends it.
	conn *nftables.Conn
}

func openTable(d *Datapath) (*table, error) {
	t := &table{
		d:    d,
		nft:  &nftables.Table{Family: nftables.TableFamilyINet, Name: d.instance.Table()},
		sets: map[string]plan.Set{},
		nfts: map[string]*nftables.Set{},
	}
	for i, s := range append(plan.Sets(), plan.NodeSets()...) {
		t.sets[s.Name()], t.nfts[s.Name()] = s, podSet(t.nft, s, uint32(i+1))
	}
	err := d.InNode(func() (err error) {
		t.changes, err = nlsock.Dial(unix.NETLINK_NETFILTER)
		return err
	})
	return t, errors.Join(err, t.reopen())
}

// reopen opens a new socket: after an error, the old one may have unread answers.
func (t *table) reopen() error {
	if t.conn != nil {
		_ = t.conn.CloseLasting()
	}
	return t.d.InNode(func() (err error) {
		t.conn, err = nftables.New(nftables.AsLasting())
		return err
	})
}

func (t *table) close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	if t.changes != nil {
		errs = append(errs, t.changes.Close())
	}
	if t.conn != nil {
		errs = append(errs, t.conn.CloseLasting())
	}
	return errors.Join(errs...)
}

// batch sends what fill puts into the connection, as one transaction.
func (t *table) batch(fill func(*nftables.Conn) error) error {
	err := fill(t.conn)
	if err == nil {
		err = t.conn.Flush()
	}
	if err != nil {
		err = errors.Join(err, t.reopen())
	}
	return err
}

func (t *table) wrap(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("nftables table inet %s: %w", t.nft.Name, err)
}

// ensure makes the table with its sets, chains and rules in one transaction, so that packets never
// see part of it. Existing elements of pods stay. If another version of Husk made the table
// differently, it is made again with them, or without those if that fails.
func (t *table) ensure(p plan.Table) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.checkOwner(p.Owner); err != nil {
		return err
	}
	fill := func(c *nftables.Conn) error {
		c.AddTable(t.nft)
		for _, s := range append(plan.Sets(), plan.NodeSets()...) {
			if err := c.AddSet(t.nfts[s.Name()], nil); err != nil {
				return err
			}
		}
		for _, s := range subnetSets(t.nft, p, uint32(len(t.nfts)+1)) {
			if err := c.AddSet(s.Set, nil); err != nil {
				return err
			}
			c.FlushSet(s.Set)
			if err := c.SetAddElements(s.Set, s.elements); err != nil {
				return err
			}
		}
		for _, counter := range counters(t.nft) {
			c.AddObj(counter)
		}
		for _, s := range questionSets(t.nft, uint32(len(t.nfts)+100)) {
			if err := c.AddSet(s, nil); err != nil {
				return err
			}
		}
		byChain := rules(p)
		all := chains(t.nft, p)
		for _, chain := range all {
			c.AddChain(chain)
			c.FlushChain(chain)
		}
		for _, chain := range all {
			for _, exprs := range byChain[chain.Name] {
				c.AddRule(&nftables.Rule{Table: t.nft, Chain: chain, Exprs: exprs})
			}
		}
		return nil
	}
	err := t.batch(fill)
	if err == nil || errors.Is(err, unix.EPERM) {
		return t.wrap(err)
	}
	elements, listErr := t.listLocked(plan.Sets())
	replace := func(c *nftables.Conn) error {
		c.AddTable(t.nft) // otherwise deleting fails if there is none
		c.DelTable(t.nft)
		return fill(c)
	}
	if listErr == nil && t.batch(func(c *nftables.Conn) error { return errors.Join(replace(c), t.refill(c, elements)) }) == nil {
		return nil
	}
	return t.wrap(t.batch(replace))
}

// refill adds elements to the sets of a table that is made again, in the same transaction.
func (t *table) refill(c *nftables.Conn, elements []plan.Element) error {
	bySet := map[string][]nftables.SetElement{}
	for _, e := range elements {
		key, value := t.encode(e)
		bySet[e.Set] = append(bySet[e.Set], nftables.SetElement{Key: key, Val: value})
	}
	for set, all := range bySet {
		for part := range slices.Chunk(all, chunk) {
			if err := c.SetAddElements(t.nfts[set], part); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkOwner returns an error if the table exists and has another owner.
func (t *table) checkOwner(owner string) error {
	if owner == "" || !t.existsLocked() {
		return nil
	}
	all, err := t.conn.ListChainsOfTableFamily(t.nft.Family)
	if err != nil {
		return t.wrap(errors.Join(err, t.reopen()))
	}
	for _, c := range all {
		if c.Table.Name == t.nft.Name && c.Name == ownerPrefix+owner {
			return nil
		}
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("nftables table inet %s belongs to another network, whose directory has the same four digits: use another name or directory", t.nft.Name))
}

// exists reports whether the table exists. `nft flush ruleset`, with which nftables.service starts,
// removes all tables.
func (t *table) exists() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.existsLocked()
}

func (t *table) existsLocked() bool {
	_, err := t.conn.ListTableOfFamily(t.nft.Name, t.nft.Family)
	if err != nil {
		_ = t.reopen()
	}
	return err == nil
}

// otherInstances counts the instances of Husk on the node beside this one. An instance may have
// tables of policies and Services too, whose names are longer.
func (t *table) otherInstances() (n int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tables, err := t.conn.ListTablesOfFamily(t.nft.Family)
	if err != nil {
		return 0, t.wrap(errors.Join(err, t.reopen()))
	}
	for _, other := range tables {
		if id, ok := strings.CutPrefix(other.Name, "husk-"); ok && !strings.Contains(id, "-") && other.Name != t.nft.Name {
			n++
		}
	}
	return n, nil
}

func (t *table) drop() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.wrap(t.batch(func(c *nftables.Conn) error {
		c.AddTable(t.nft)
		c.DelTable(t.nft)
		return nil
	}))
}

// add adds elements to their sets. It isn't an error if they are there already.
func (t *table) add(elements []plan.Element) error {
	return t.wrap(t.send(unix.NFT_MSG_NEWSETELEM, elements))
}

// remove removes elements from their sets. If one is missing, the kernel refuses the whole batch;
// then each one is removed by itself. (Linux 6.3 has a message that ignores missing elements.)
func (t *table) remove(elements []plan.Element) error {
	err := t.send(unix.NFT_MSG_DELSETELEM, elements)
	if !errors.Is(err, unix.ENOENT) {
		return t.wrap(err)
	}
	for _, e := range elements {
		if err := t.send(unix.NFT_MSG_DELSETELEM, []plan.Element{e}); err != nil && !errors.Is(err, unix.ENOENT) {
			return t.wrap(err)
		}
	}
	return nil
}

// send adds or deletes elements, in one transaction if there are less than chunk.
func (t *table) send(verb int, elements []plan.Element) error {
	bySet := map[string][]plan.Element{}
	for _, e := range elements {
		bySet[e.Set] = append(bySet[e.Set], e)
	}
	var messages []*nl.NetlinkRequest
	for set, all := range bySet {
		for part := range slices.Chunk(all, chunk) {
			messages = append(messages, t.message(verb, set, part))
		}
	}
	batch := chunks
	if len(elements) < chunk {
		batch = max(1, len(messages))
	}
	for part := range slices.Chunk(messages, batch) {
		if err := t.changes.Transact(part...); err != nil {
			return err
		}
	}
	return nil
}

// message returns a message about elements of one set.
func (t *table) message(verb int, set string, elements []plan.Element) *nl.NetlinkRequest {
	req := nlsock.NftRequest(verb)
	req.Flags |= unix.NLM_F_CREATE
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(t.nft.Name)))
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
	for _, e := range elements {
		key, value := t.encode(e)
		item := list.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil)
		item.AddRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_DATA_VALUE, key)
		if len(value) > 0 {
			item.AddRtAttr(unix.NFTA_SET_ELEM_DATA|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_DATA_VALUE, value)
		}
	}
	req.AddData(list)
	return req
}

// list returns the elements of pods; none if there is no table.
func (t *table) list() ([]plan.Element, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	out, err := t.listLocked(plan.Sets())
	return out, t.wrap(err)
}

// listLocked returns the elements of sets; none if there is no table. The caller holds mu.
func (t *table) listLocked(sets []plan.Set) ([]plan.Element, error) {
	var out []plan.Element
	for _, set := range sets {
		name := set.Name()
		elements, err := t.conn.GetSetElements(t.nfts[name])
		if err != nil {
			if err = errors.Join(fmt.Errorf("list set %s: %w", name, err), t.reopen()); !t.existsLocked() {
				return nil, nil
			}
			return nil, err
		}
		for _, e := range elements {
			out = append(out, t.decode(name, e.Key, e.Val))
		}
	}
	return out, nil
}

var protocols = map[pod.Protocol]byte{pod.TCP: unix.IPPROTO_TCP, pod.UDP: unix.IPPROTO_UDP, pod.SCTP: unix.IPPROTO_SCTP}

// encode returns the key and the value of an element: the concatenated fields, each padded to 4
// bytes.
func (t *table) encode(e plan.Element) (key, value []byte) {
	set := t.sets[e.Set]
	return encodeFields(set.Key, e), encodeFields(set.Value, e)
}

func encodeFields(fields []plan.Field, e plan.Element) []byte {
	var out []byte
	for _, f := range fields {
		switch f {
		case plan.FieldLink:
			out = append(out, ifName(e.Link)...)
		case plan.FieldAddr:
			out = append(out, e.Addr.AsSlice()...)
		case plan.FieldPeer:
			out = append(out, e.Peer.AsSlice()...)
		case plan.FieldToAddr:
			out = append(out, e.To.Addr().AsSlice()...)
		case plan.FieldProtocol:
			out = append(out, protocols[e.Protocol], 0, 0, 0)
		case plan.FieldPort:
			out = append(binary.BigEndian.AppendUint16(out, e.Port), 0, 0)
		case plan.FieldToPort:
			out = append(binary.BigEndian.AppendUint16(out, e.To.Port()), 0, 0)
		}
	}
	return out
}

// decode is the inverse of encode. Unknown content, added by others, is decoded as far as possible.
func (t *table) decode(name string, key, value []byte) plan.Element {
	set := t.sets[name]
	e := plan.Element{Set: name}
	var to netip.Addr
	fields := append(slices.Clone(set.Key), set.Value...)
	for i, data := 0, append(slices.Clone(key), value...); i < len(fields); i++ {
		size := 4
		switch f := fields[i]; {
		case f == plan.FieldLink:
			size = unix.IFNAMSIZ
		case set.Six && (f == plan.FieldAddr || f == plan.FieldPeer || f == plan.FieldToAddr):
			size = 16
		}
		part := make([]byte, size)
		data = data[copy(part, data):]
		addr, _ := netip.AddrFromSlice(part)
		switch fields[i] {
		case plan.FieldLink:
			e.Link = unix.ByteSliceToString(part)
		case plan.FieldAddr:
			e.Addr = addr
		case plan.FieldPeer:
			e.Peer = addr
		case plan.FieldToAddr:
			to = addr
		case plan.FieldProtocol:
			for p, n := range protocols {
				if n == part[0] {
					e.Protocol = p
				}
			}
		case plan.FieldPort:
			e.Port = binary.BigEndian.Uint16(part)
		case plan.FieldToPort:
			e.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(part))
		}
	}
	return e
}
