package etcd

import (
	"context"
	"encoding/json"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// Prolonged implements lease.Store.
func (s *Store) Prolonged(ctx context.Context, session claim.Session) (ago time.Duration, err error) {
	id, err := leaseID(session)
	if err != nil {
		return 0, err
	}
	return ago, s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		left, err := client.TimeToLive(ctx, id)
		if err != nil {
			return err
		}
		if left.TTL < 0 {
			return claim.ErrLost
		}
		ago = time.Duration(left.GrantedTTL-left.TTL) * time.Second
		return nil
	})
}

// Move implements lease.Store.
func (s *Store) Move(ctx context.Context, session claim.Session, record peer.Node, revision int64, from claim.From) (now int64, err error) {
	m, err := s.prepareMove(session, record, revision, from)
	if err != nil {
		return 0, err
	}
	value, err := json.Marshal(holder{record.Name})
	if err != nil {
		return 0, err
	}
	for _, b := range from.Blocks {
		key := s.prefix + blockKey(b)
		m.conditions = append(m.conditions, clientv3.Compare(clientv3.LeaseValue(key), "=", m.former))
		m.changes = append(m.changes, clientv3.OpPut(key, string(value), clientv3.WithLease(m.id)))
	}
	return now, s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := s.commit(ctx, client, client.Txn(ctx).If(m.conditions...).Then(m.changes...))
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return claim.ErrConflict
		}
		now = resp.Header.Revision
		m.end(ctx, client)
		return nil
	})
}

// move is the part of Move that doesn't depend on the keys of blocks.
type move struct {
	id, former clientv3.LeaseID
	conditions []clientv3.Cmp
	changes    []clientv3.Op
}

func (s *Store) prepareMove(session claim.Session, record peer.Node, revision int64, from claim.From) (m move, err error) {
	if m.id, err = leaseID(session); err != nil {
		return m, err
	}
	if m.former, err = leaseID(from.Session); err != nil {
		return m, claim.ErrConflict
	}
	record.Blocks = nil
	value, err := json.Marshal(record)
	if err != nil {
		return m, err
	}
	key, old := s.prefix+nodesDir+record.Name, s.prefix+nodesDir+from.Node
	m.conditions = []clientv3.Cmp{
		clientv3.Compare(clientv3.ModRevision(key), "=", revision),
		clientv3.Compare(clientv3.ModRevision(old), "=", from.Revision),
		clientv3.Compare(clientv3.LeaseValue(old), "=", m.former),
	}
	m.changes = []clientv3.Op{
		clientv3.OpDelete(old),
		clientv3.OpDelete(s.prefix+workloadsDir+from.Node+"/", clientv3.WithPrefix()),
		clientv3.OpPut(key, string(value), clientv3.WithLease(m.id)),
	}
	return m, nil
}

// end ends the former session. Nothing is bound to it any more, and it would end by itself, too.
func (m move) end(ctx context.Context, client *clientv3.Client) { _, _ = client.Revoke(ctx, m.former) }
