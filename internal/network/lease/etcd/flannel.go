package etcd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/flannel"
	"github.com/huskd/husk/internal/network/peer"
)

// Flannel is a lease.Store in a flannel network. Blocks are flannel's leases, which flanneld reads
// and writes too:
//
//	/coreos.com/network/config                              the network, which the administrator writes
//	/coreos.com/network/subnets/10.5.34.0-24[&fc00::-64]    a node's blocks and its address
//	/coreos.com/network/nodes/n7                            the record of a node of Husk
//
// A node's leases have the session of its record. Leases of nodes without a record are flanneld's;
// they are never written or deleted, whatever their address. A lease is claimed only if no other
// was written since all of them were read, so that none overlaps it. That flanneld doesn't do the
// same for IPv6 can't be helped: two of its leases may have the same IPv6 subnet.
type Flannel struct{ *Store }

// Keys of flannel, below the prefix.
const (
	configKey = "config"
	leasesDir = "subnets/"
)

// attempts is how often a change is tried that others' changes come before.
const attempts = 20

// NewFlannel returns a Store of the flannel network at a prefix, such as flannel.DefaultPrefix.
func NewFlannel(cfg Config, prefix string) (*Flannel, error) {
	s, err := New(cfg)
	if err != nil {
		return nil, err
	}
	s.prefix, s.flannel = strings.TrimRight(prefix, "/")+"/", true
	if s.prefix[0] != '/' || s.prefix == "/" {
		return nil, fmt.Errorf("prefix of flannel's keys %.100q: want one such as %s", prefix, flannel.DefaultPrefix)
	}
	return &Flannel{s}, nil
}

// Network returns the network's configuration.
func (f *Flannel) Network(ctx context.Context) (n flannel.Network, err error) {
	return n, f.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := f.commit(ctx, client, client.Txn(ctx).Then(clientv3.OpGet(f.prefix+configKey)))
		if err != nil {
			return err
		}
		var value []byte
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) > 0 {
			value = kvs[0].Value
		}
		n, err = parseNetwork(f.prefix, value)
		return err
	})
}

func parseNetwork(prefix string, value []byte) (flannel.Network, error) {
	if value == nil {
		return flannel.Network{}, fmt.Errorf("flannel's configuration is missing: write it to %s", prefix+configKey)
	}
	return flannel.ParseNetwork(value)
}

// flannelLease is one of flannel's leases.
type flannelLease struct {
	kv     *mvccpb.KeyValue
	blocks []netip.Prefix
}

// state is what a change of this node's leases depends on.
type state struct {
	client   *clientv3.Client
	id       clientv3.LeaseID // of the node's session
	revision int64
	config   *mvccpb.KeyValue
	network  flannel.Network
	record   *mvccpb.KeyValue // of the node; nil if there is none
	settling bool
	leases   []flannelLease
}

// read returns the present state for a session of a node.
func (f *Flannel) read(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, node string) (st state, err error) {
	st.client, st.id = client, id
	resp, err := f.commit(ctx, client, client.Txn(ctx).Then(clientv3.OpGet(f.prefix+configKey), clientv3.OpGet(f.prefix+nodesDir+node),
		clientv3.OpGet(f.prefix+settlingKey), clientv3.OpGet(f.prefix+leasesDir, clientv3.WithPrefix())))
	if err != nil {
		return st, err
	}
	kvs := func(i int) []*mvccpb.KeyValue { return resp.Responses[i].GetResponseRange().Kvs }
	if len(kvs(0)) == 0 {
		_, err = parseNetwork(f.prefix, nil)
		return st, err
	}
	st.revision, st.config, st.settling = resp.Header.Revision, kvs(0)[0], len(kvs(2)) > 0
	if len(kvs(1)) > 0 {
		st.record = kvs(1)[0]
	}
	for _, kv := range kvs(3) {
		if blocks, err := flannel.ParseKey(strings.TrimPrefix(string(kv.Key), f.prefix+leasesDir)); err == nil {
			st.leases = append(st.leases, flannelLease{kv, blocks})
		}
	}
	st.network, err = flannel.ParseNetwork(st.config.Value)
	return st, err
}

// own returns the blocks of the leases that are bound to the session, as they are paired.
func (st state) own() (out [][]netip.Prefix) {
	for _, l := range st.leases {
		if l.kv.Lease == int64(st.id) {
			out = append(out, l.blocks)
		}
	}
	return out
}

// unchanged are the conditions under which the state is still as it was read.
func (f *Flannel) unchanged(st state) []clientv3.Cmp {
	leases := f.prefix + leasesDir
	return []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(leases), "<", st.revision+1).WithRange(clientv3.GetPrefixRangeEnd(leases)),
		clientv3.Compare(clientv3.ModRevision(f.prefix+configKey), "=", st.config.ModRevision),
	}
}

// puts returns the operations that write leases of a record.
func (f *Flannel) puts(st state, record peer.Node, leases [][]netip.Prefix) (ops []clientv3.Op, err error) {
	value, err := st.network.Value(record)
	if err != nil {
		return nil, err
	}
	for _, blocks := range leases {
		key, err := flannel.Key(blocks)
		if err != nil {
			return nil, err
		}
		ops = append(ops, clientv3.OpPut(f.prefix+leasesDir+key, string(value), clientv3.WithLease(st.id)))
	}
	return ops, nil
}

// Keep implements lease.Store.
func (f *Flannel) Keep(ctx context.Context, session claim.Session, blocks []netip.Prefix) (claim.Kept, error) {
	kept, err := f.Store.Keep(ctx, session, nil)
	id, bad := leaseID(session)
	if err != nil || bad != nil || len(blocks) == 0 {
		return kept, err
	}
	return kept, f.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		var gets []clientv3.Op
		for _, b := range blocks {
			if key, err := flannel.Key([]netip.Prefix{b}); err == nil { // of IPv4
				gets = append(gets, clientv3.OpGet(f.prefix+leasesDir+key, clientv3.WithRange(f.prefix+leasesDir+key+"'"))) // "'" comes after "&"
			}
		}
		resp, err := f.commit(ctx, client, client.Txn(ctx).Then(gets...))
		if err != nil {
			return err
		}
		var bound []netip.Prefix
		for _, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				if of, err := flannel.ParseKey(strings.TrimPrefix(string(kv.Key), f.prefix+leasesDir)); err == nil && kv.Lease == int64(id) {
					bound = append(bound, of...)
				}
			}
		}
		kept.Bound = slices.DeleteFunc(slices.Clone(blocks), func(b netip.Prefix) bool { return !slices.Contains(bound, b) })
		return nil
	})
}

// errAgain means that something else was written meanwhile.
var errAgain = errors.New("others keep changing flannel's leases")

// retry calls f until it doesn't return errAgain.
func (f *Flannel) retry(ctx context.Context, change func(context.Context, *clientv3.Client) error) error {
	return f.call(ctx, func(ctx context.Context, client *clientv3.Client) (err error) {
		for range attempts {
			if err = change(ctx, client); !errors.Is(err, errAgain) {
				return err
			}
		}
		return err
	})
}

// Write implements lease.Store. The node's leases change together with its record.
func (f *Flannel) Write(ctx context.Context, session claim.Session, record peer.Node, revision int64) (now int64, err error) {
	id, err := leaseID(session)
	if err != nil {
		return 0, err
	}
	record.Blocks = nil
	value, err := json.Marshal(record)
	if err != nil {
		return 0, err
	}
	key := f.prefix + nodesDir + record.Name
	return now, f.retry(ctx, func(ctx context.Context, client *clientv3.Client) error {
		st, err := f.read(ctx, client, id, record.Name)
		if err != nil {
			return err
		}
		if has := st.record; has == nil && revision != 0 || has != nil && has.ModRevision != revision {
			return claim.ErrConflict
		}
		ops, err := f.puts(st, record, st.own())
		if err != nil {
			return err
		}
		same := append(f.unchanged(st), clientv3.Compare(clientv3.ModRevision(key), "=", revision))
		resp, err := f.commit(ctx, client, client.Txn(ctx).If(same...).Then(append(ops, clientv3.OpPut(key, string(value), clientv3.WithLease(id)))...))
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return errAgain
		}
		now = resp.Header.Revision
		return nil
	})
}

// Move implements lease.Store.
func (f *Flannel) Move(ctx context.Context, session claim.Session, record peer.Node, revision int64, from claim.From) (now int64, err error) {
	m, err := f.prepareMove(session, record, revision, from)
	if err != nil {
		return 0, err
	}
	return now, f.retry(ctx, func(ctx context.Context, client *clientv3.Client) error {
		st, err := f.read(ctx, client, m.former, from.Node)
		if err != nil {
			return err
		}
		leases := st.own()
		for _, b := range from.Blocks {
			if !slices.ContainsFunc(leases, func(of []netip.Prefix) bool { return slices.Contains(of, b) }) {
				return claim.ErrConflict
			}
		}
		st.id = m.id
		puts, err := f.puts(st, record, leases)
		if err != nil {
			return err
		}
		same := slices.Concat(f.unchanged(st), m.conditions)
		resp, err := f.commit(ctx, client, client.Txn(ctx).If(same...).Then(slices.Concat(m.changes, puts)...).Else(clientv3.OpTxn(m.conditions, nil, nil)))
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			if resp.Responses[0].GetResponseTxn().GetSucceeded() {
				return errAgain // only leases were changed
			}
			return claim.ErrConflict
		}
		now = resp.Header.Revision
		m.end(ctx, client)
		return nil
	})
}

// Bind implements lease.Store. The node's record was written before.
func (f *Flannel) Bind(ctx context.Context, c claim.Claim, again bool) error {
	id, err := leaseID(c.Session)
	if err != nil {
		return err
	}
	return f.retry(ctx, func(ctx context.Context, client *clientv3.Client) error {
		st, err := f.read(ctx, client, id, c.Node)
		if err != nil {
			return err
		}
		if err := st.network.Holds(c.Block); err != nil {
			return err
		}
		for _, l := range st.leases {
			switch i := slices.IndexFunc(l.blocks, c.Block.Overlaps); {
			case i < 0:
			case l.kv.Lease == int64(id) && l.blocks[i] == c.Block:
				return nil
			default:
				return &claim.TakenError{By: claim.Claim{Block: l.blocks[i], Node: holderOf(l.kv.Value), Session: sessionOf(l.kv.Lease)}}
			}
		}
		if st.settling && !again {
			return claim.ErrSettling
		}
		if st.record == nil || st.record.Lease != int64(id) {
			return fmt.Errorf("%s isn't this node's record any more", f.prefix+nodesDir+c.Node)
		}
		record, err := parseRecord(c.Node, st.record.Value)
		if err != nil {
			return err
		}
		return f.exchange(ctx, st, record, pair(st.own(), c.Block))
	})
}

// Free implements lease.Store.
func (f *Flannel) Free(ctx context.Context, session claim.Session, block netip.Prefix) error {
	id, err := leaseID(session)
	if err != nil {
		return nil
	}
	return f.retry(ctx, func(ctx context.Context, client *clientv3.Client) error {
		st, err := f.read(ctx, client, id, "")
		if err != nil {
			return err
		}
		own := st.own()
		i := slices.IndexFunc(own, func(blocks []netip.Prefix) bool { return slices.Contains(blocks, block) })
		if i < 0 {
			return nil
		}
		var record peer.Node
		for _, l := range st.leases {
			if l.kv.Lease == int64(id) {
				if record, err = st.network.Node(l.blocks, l.kv.Value); err != nil {
					return err
				}
			}
		}
		left := slices.Delete(slices.Clone(own), i, i+1)
		for _, b := range own[i] {
			if b != block {
				left = pair(left, b)
			}
		}
		return f.exchange(ctx, st, record, left)
	})
}

// pair returns leases with another block. One of IPv6 goes with one of IPv4, if there is one that
// has none yet.
func pair(leases [][]netip.Prefix, b netip.Prefix) [][]netip.Prefix {
	leases = slices.Clone(leases)
	if b.Addr().Is6() {
		if i := slices.IndexFunc(leases, func(l []netip.Prefix) bool { return len(l) == 1 && l[0].Addr().Is4() }); i >= 0 {
			leases[i] = []netip.Prefix{leases[i][0], b}
			return leases
		}
	}
	return append(leases, []netip.Prefix{b})
}

// exchange replaces the node's leases by others, with the node's record.
func (f *Flannel) exchange(ctx context.Context, st state, record peer.Node, after [][]netip.Prefix) error {
	before := st.own()
	in := func(all [][]netip.Prefix) func([]netip.Prefix) bool {
		return func(l []netip.Prefix) bool {
			return slices.ContainsFunc(all, func(o []netip.Prefix) bool { return slices.Equal(l, o) })
		}
	}
	puts, err := f.puts(st, record, slices.DeleteFunc(slices.Clone(after), in(before)))
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for _, blocks := range slices.DeleteFunc(slices.Clone(before), in(after)) {
		key, err := flannel.Key(blocks)
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpDelete(f.prefix+leasesDir+key))
	}
	resp, err := f.commit(ctx, st.client, st.client.Txn(ctx).If(f.unchanged(st)...).Then(append(ops, puts...)...))
	if err != nil {
		return err
	}
	if !resp.Succeeded {
		return errAgain
	}
	return nil
}

// holderOf returns the public address in a lease's value.
func holderOf(value []byte) string {
	var v struct{ PublicIP string }
	if json.Unmarshal(value, &v) != nil || v.PublicIP == "" {
		return fmt.Sprintf("%.60q", bytes.TrimSpace(value))
	}
	return v.PublicIP
}

// parsedLease is one of flannel's leases, parsed when that was first needed: 5,000 of them take
// 40 ms.
type parsedLease struct {
	kv     *mvccpb.KeyValue
	config []byte // of the network as which it was parsed; nil if it wasn't
	blocks []netip.Prefix
	node   peer.Node // without blocks
	badKey error
	bad    error // of the value
}

func (l *parsedLease) parse(key string, network flannel.Network, config []byte) {
	if l.config != nil && bytes.Equal(l.config, config) {
		return
	}
	l.config = config
	if l.blocks, l.badKey = flannel.ParseKey(strings.TrimPrefix(key, leasesDir)); l.badKey != nil {
		return
	}
	if l.node, l.bad = network.Node(l.blocks, l.kv.Value); l.bad != nil {
		l.node.Name = holderOf(l.kv.Value)
	}
	l.node.Blocks = nil
}

// addLeases adds to a snapshot what flannel's leases say. Those of one address that have no record
// are a node of that name.
func (c *content) addLeases(s *claim.Snapshot) error {
	network, err := parseNetwork(c.prefix, c.config)
	if err != nil {
		return err
	}
	for _, b := range network.Outside() {
		s.Claims = append(s.Claims, claim.Claim{Block: b, Node: "none, as flannel's network doesn't use it"})
	}
	names := map[claim.Session]string{}
	for _, r := range s.Records {
		names[r.Session] = r.Node.Name
	}
	others := map[string]int{} // indexes in s.Records
	for i, key := range c.leases.keys {
		l := c.leases.values[i]
		if l.parse(key, network, c.config); l.badKey != nil {
			s.Notes = append(s.Notes, fmt.Sprintf("%s%.100s: %v", c.prefix, key, l.badKey))
			continue
		}
		session := sessionOf(l.kv.Lease)
		name, ours := names[session]
		if !ours || session == "" {
			if l.bad != nil {
				s.Notes = append(s.Notes, fmt.Sprintf("%s%s: %.300v", c.prefix, key, l.bad))
			}
			name, session = l.node.Name, claim.Session("flannel "+l.node.Name)
			record := &claim.Record{Node: l.node, Session: session, Revision: l.kv.ModRevision}
			if i, ok := others[name]; l.bad == nil && !ok {
				others[name] = len(s.Records)
				s.Records = append(s.Records, record)
			} else if l.bad == nil && s.Records[i].Revision < record.Revision {
				s.Records[i] = record
			}
		}
		for _, b := range l.blocks {
			s.Claims = append(s.Claims, claim.Claim{Block: b, Node: name, Session: session})
		}
	}
	slices.SortStableFunc(s.Records, func(a, b *claim.Record) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	return nil
}
