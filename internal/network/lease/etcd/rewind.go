package etcd

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/claim"
)

// rewind takes note that etcd has lost something. The caller holds s.mu.
func (s *Store) rewind() {
	s.rewinds++
	close(s.rewound)
	s.rewound = make(chan struct{})
}

// settle asks all nodes to claim no new blocks for some time.
func (s *Store) settle(ctx context.Context, client *clientv3.Client) error {
	grant, err := client.Grant(ctx, int64(settleTime/time.Second))
	if err != nil {
		return err
	}
	key := s.prefix + settlingKey
	resp, err := client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, "etcd lost its latest changes", clientv3.WithLease(grant.ID)), clientv3.OpGet(key)).
		Else(clientv3.OpGet(key)).Commit()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unsettled = false
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			s.settling = kv.Lease // this node knows already
		}
	}
	return nil
}

// told takes note of what another node wrote when it found that etcd had lost something. A node
// whose connection was broken while etcd's revision has become higher than before doesn't find out
// by itself.
func (s *Store) told(kv *mvccpb.KeyValue, following bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kv.Lease != s.settling && following {
		s.rewind()
	}
	s.settling = kv.Lease
}

// check finds out whether etcd still has the session of this node, and otherwise takes note that it
// has lost something: its revision may be as high as before.
func (s *Store) check(ctx context.Context, client *clientv3.Client) error {
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	id, err := leaseID(session)
	if err != nil {
		return nil //nolint:nilerr // there is none
	}
	left, err := client.TimeToLive(ctx, id)
	if err != nil || left.TTL >= 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == session {
		s.session = ""
		s.rewind()
	}
	return nil
}

// deleted is a node of which something was deleted, by revision.
type deleted map[int64]string

// deletes takes note that something of a node was deleted in a revision. Nobody but who empties etcd
// deletes something of several nodes at once: a node that leaves deletes its own, and so does the
// end of its lease.
func (s *Store) deletes(d deleted, revision int64, node string) {
	if other, ok := d[revision]; ok && other != node && other != "" {
		s.mu.Lock()
		s.rewinds++
		s.mu.Unlock()
		node = "" // once is enough
	} else if ok {
		return
	}
	d[revision] = node
}

// Revive implements lease.Store.
func (s *Store) Revive(ctx context.Context, session claim.Session) error {
	id, err := leaseID(session)
	if err != nil {
		return err
	}
	return s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := clientv3.RetryLeaseClient(client).LeaseGrant(ctx, &etcdserverpb.LeaseGrantRequest{ID: int64(id), TTL: int64(s.cfg.TTL / time.Second)})
		if err = clientv3.ContextError(ctx, err); errors.Is(err, rpctypes.ErrLeaseExist) {
			return nil
		}
		return err
	})
}
