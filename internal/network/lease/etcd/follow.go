package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/connectivity"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// gather is the shortest time between two snapshots.
const gather = 50 * time.Millisecond

// maxNotes is how many keys that can't be used are named.
const maxNotes = 10

// Follow implements lease.Store.
func (s *Store) Follow(ctx context.Context, update func(claim.Snapshot)) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	checked := make(chan struct{})
	go func() { defer close(checked); s.checkConnections(ctx, client) }()
	defer func() { cancel(); <-checked }()
	for {
		err := s.follow(ctx, client, update)
		if errors.Is(err, rpctypes.ErrCompacted) {
			continue // while the connection was broken
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return s.explain(err)
	}
}

// follow reads everything and watches for changes.
func (s *Store) follow(ctx context.Context, client *clientv3.Client, update func(claim.Snapshot)) error {
	_, lost, following := s.losses.sofar()
	end := s.prefix + workloadsDir
	if s.flannel {
		end = clientv3.GetPrefixRangeEnd(s.prefix)
	}
	var all content
	revision := int64(0)
	err := s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := s.commit(ctx, client, client.Txn(ctx).Then(clientv3.OpGet(s.prefix, clientv3.WithRange(end))))
		if err != nil {
			return err
		}
		all, revision = content{prefix: s.prefix, flannel: s.flannel}, resp.Header.Revision
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			all.put(kv)
			if string(kv.Key) == s.prefix+settlingKey {
				s.losses.told(kv, following)
			}
		}
		return s.check(ctx, client)
	})
	if err != nil {
		return err
	}
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := client.Watch(watching, s.prefix, clientv3.WithRange(end), clientv3.WithRev(revision+1))
	snapshot, err := all.snapshot(&s.losses)
	if err != nil {
		return err
	}
	update(snapshot)
	last := time.Now()
	var due <-chan time.Time
	for {
		select {
		case resp, ok := <-watch:
			if err := resp.Err(); err != nil {
				return err
			}
			if !ok {
				return errors.New("the watch has ended")
			}
			s.losses.observed(resp.Header.Revision)
			gone := deleted{}
			for _, e := range resp.Events {
				if e.Type == clientv3.EventTypeDelete {
					all.remove(string(e.Kv.Key))
					if name, is := strings.CutPrefix(string(e.Kv.Key), s.prefix+nodesDir); is {
						s.losses.deletes(gone, e.Kv.ModRevision, name)
					}
					continue
				}
				all.put(e.Kv)
				if string(e.Kv.Key) == s.prefix+settlingKey {
					s.losses.told(e.Kv, true)
				}
			}
			if due == nil && len(resp.Events) > 0 {
				due = time.After(max(0, gather-time.Since(last)))
			}
		case <-due:
			if snapshot, err = all.snapshot(&s.losses); err != nil {
				return err
			}
			update(snapshot)
			last, due = time.Now(), nil
		case <-lost:
			return errors.New("it lost its latest changes, as after a restore from a backup: all nodes claim their blocks again")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// checkConnections asks for the revision after each reconnection: watches wait in silence if it is
// lower than before.
func (s *Store) checkConnections(ctx context.Context, client *clientv3.Client) {
	conn := client.ActiveConnection()
	for state := conn.GetState(); conn.WaitForStateChange(ctx, state); {
		if state = conn.GetState(); state == connectivity.Ready {
			_ = s.call(ctx, func(ctx context.Context, client *clientv3.Client) error { // Keep will tell
				if _, err := s.commit(ctx, client, client.Txn(ctx).Then(clientv3.OpGet(s.prefix+settlingKey))); err != nil {
					return err
				}
				return s.check(ctx, client)
			})
		}
	}
}

// content is what is under the prefix, parsed.
type content struct {
	prefix  string
	records sorted[*claim.Record]
	claims  sorted[claim.Claim]
	notes   sorted[string]

	flannel bool
	leases  sorted[*parsedLease] // flannel's
	config  []byte               // flannel's
}

func (c *content) put(kv *mvccpb.KeyValue) {
	key := strings.TrimPrefix(string(kv.Key), c.prefix)
	c.notes.remove(key)
	switch name, isNode := strings.CutPrefix(key, nodesDir); {
	case c.flannel && strings.HasPrefix(key, leasesDir):
		c.leases.put(key, &parsedLease{kv: kv})
	case c.flannel && key == configKey:
		c.config = kv.Value
	case isNode:
		record, err := parseRecord(name, kv.Value)
		if err != nil {
			c.records.remove(key)
			c.notes.put(key, fmt.Sprintf("%s%s: %v", c.prefix, key, err))
			return
		}
		c.records.put(key, &claim.Record{Node: record, Session: sessionOf(kv.Lease), Revision: kv.ModRevision})
	case strings.HasPrefix(key, blocksDir):
		block, err := parseBlockKey(key)
		if err != nil {
			c.notes.put(key, fmt.Sprintf("%s%.100s is not the key of a block: delete it", c.prefix, key))
			return
		}
		c.claims.put(key, claim.Claim{Block: block, Node: parseHolder(kv.Value), Session: sessionOf(kv.Lease)})
	case key != settlingKey && !c.flannel:
		c.notes.put(key, fmt.Sprintf("%s%.100s is not a key of this version of Husk", c.prefix, key))
	}
}

func parseRecord(name string, value []byte) (peer.Node, error) {
	record, err := peer.Parse(value)
	if err == nil && record.Name != name {
		err = fmt.Errorf("record of node %s under another node's name", record.Name)
	}
	return record, err
}

func (c *content) remove(key string) {
	key = strings.TrimPrefix(key, c.prefix)
	c.records.remove(key)
	c.claims.remove(key)
	c.notes.remove(key)
	c.leases.remove(key)
	if key == configKey {
		c.config = nil
	}
}

// snapshot returns the content as it is now. An error says that the last one must stay in force.
func (c *content) snapshot(l *losses) (claim.Snapshot, error) {
	s := claim.Snapshot{Records: c.records.all(), Claims: c.claims.all(), Notes: c.notes.all()}
	s.Rewinds, _, _ = l.sofar()
	if c.flannel {
		if err := c.addLeases(&s); err != nil {
			return s, err
		}
	}
	if more := len(s.Notes) - maxNotes; more > 0 {
		s.Notes = append(s.Notes[:maxNotes:maxNotes], fmt.Sprintf("%d more keys under %s can't be used", more, c.prefix))
	}
	return s, nil
}

// sorted is a map in the order of its keys.
type sorted[T any] struct {
	keys   []string
	values []T
	shared bool // values must be copied before they change
}

// all returns the values in the order of their keys. It is the same slice as the last time if
// nothing has changed.
func (s *sorted[T]) all() []T {
	s.shared = true
	return slices.Clip(s.values)
}

func (s *sorted[T]) change() {
	if s.shared {
		s.values, s.shared = slices.Clone(s.values), false
	}
}

func (s *sorted[T]) put(key string, value T) {
	s.change()
	i, ok := slices.BinarySearchFunc(s.keys, key, cmp.Compare)
	if ok {
		s.values[i] = value
		return
	}
	s.keys, s.values = slices.Insert(s.keys, i, key), slices.Insert(s.values, i, value)
}

func (s *sorted[T]) remove(key string) {
	if i, ok := slices.BinarySearchFunc(s.keys, key, cmp.Compare); ok {
		s.change()
		s.keys, s.values = slices.Delete(s.keys, i, i+1), slices.Delete(s.values, i, i+1)
	}
}
