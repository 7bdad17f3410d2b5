package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/claim"
)

// losses are what is known of etcd having lost what was written into it.
type losses struct {
	mu     sync.Mutex    // Invariant: guards the fields below.
	newest int64         // the highest revision that any answer had
	count  int           // how often etcd has lost something
	found  chan struct{} // closed when that turns out, and then replaced
	// untold means that the other nodes must be told of that, and settling is the lease of what
	// told them the last time.
	untold   bool
	settling int64
}

// revision returns the highest revision that etcd had.
func (l *losses) revision() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.newest
}

// observed takes note of a revision that etcd had.
func (l *losses) observed(revision int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.newest = max(l.newest, revision)
}

// answered takes note of the revision of an answer, and of the highest one before the question. It
// reports whether the other nodes must be told of a loss.
func (l *losses) answered(before, now int64) (untold bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest = max(l.newest, now); now < before {
		l.newest, l.untold = now, true
		l.find()
	}
	return l.untold
}

// find takes note that etcd has lost something. The caller holds l.mu.
func (l *losses) find() {
	l.count++
	close(l.found)
	l.found = make(chan struct{})
}

// sofar returns how often etcd has lost something, what is closed when it turns out to have lost
// more, and whether it has answered before.
func (l *losses) sofar() (count int, more <-chan struct{}, answered bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count, l.found, l.newest > 0
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
	s.losses.mu.Lock()
	defer s.losses.mu.Unlock()
	s.losses.untold = false
	for _, r := range resp.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			s.losses.settling = kv.Lease // this node knows already
		}
	}
	return nil
}

// told takes note of what another node wrote when it found that etcd had lost something. A node
// whose connection was broken while etcd's revision has become higher than before doesn't find out
// by itself.
func (l *losses) told(kv *mvccpb.KeyValue, following bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kv.Lease != l.settling && following {
		l.find()
	}
	l.settling = kv.Lease
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
	s.ended(session)
	return nil
}

// ended takes note that etcd doesn't have a session of this node: it has lost something, unless the
// node was away for longer than its session lasts.
func (s *Store) ended(session claim.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == session {
		s.session = ""
		s.losses.mu.Lock()
		defer s.losses.mu.Unlock()
		s.losses.find()
	}
}

// deleted is a node of which something was deleted, by revision.
type deleted map[int64]string

// deletes takes note that something of a node was deleted in a revision. Nobody but who empties
// etcd deletes something of several nodes at once: a node that leaves deletes its own, and so does
// the end of its lease.
func (l *losses) deletes(d deleted, revision int64, node string) {
	if other, ok := d[revision]; ok && other != node && other != "" {
		l.mu.Lock()
		l.count++
		l.mu.Unlock()
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
