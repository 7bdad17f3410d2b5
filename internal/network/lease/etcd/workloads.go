package etcd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/policy/exchange"
)

// workloadsDir has what nodes tell each other of their pods, NODE/NAMESPACE/NAME. It sorts behind
// all other keys, so that those who follow the nodes don't get it.
const workloadsDir = "workloads/"

// writeLimit is how many keys a transaction writes. The server's default limit is 128.
const writeLimit = 100

// Workloads is the part of a Store in which nodes tell each other of their pods. It implements
// exchange.Store.
type Workloads struct{ Store *Store }

var _ exchange.Store = Workloads{}

// Session implements exchange.Store.
func (w Workloads) Session() claim.Session {
	s := w.Store
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session
}

// Write implements exchange.Store.
func (w Workloads) Write(ctx context.Context, session claim.Session, values map[string]string, remove []string) error {
	s := w.Store
	id, err := leaseID(session)
	if err != nil {
		return err
	}
	var ops []clientv3.Op
	for key, value := range values {
		ops = append(ops, clientv3.OpPut(s.prefix+workloadsDir+key, value, clientv3.WithLease(id)))
	}
	for _, key := range remove {
		ops = append(ops, clientv3.OpDelete(s.prefix+workloadsDir+key))
	}
	for part := range slices.Chunk(ops, writeLimit) {
		if err := s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
			_, err := s.commit(ctx, client, client.Txn(ctx).Then(part...))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// Follow implements exchange.Store.
func (w Workloads) Follow(ctx context.Context, update func(exchange.Update)) error {
	client, err := w.Store.connect(ctx)
	if err != nil {
		return err
	}
	for {
		err := w.follow(ctx, client, update)
		switch {
		case errors.Is(err, rpctypes.ErrCompacted): // while the connection was broken
		case ctx.Err() != nil:
			return ctx.Err()
		default:
			return w.Store.explain(err)
		}
	}
}

func (w Workloads) follow(ctx context.Context, client *clientv3.Client, update func(exchange.Update)) error {
	s := w.Store
	_, lost, following := s.losses.sofar()
	tell := func(u exchange.Update) {
		u.Rewinds, _, _ = s.losses.sofar()
		update(u)
	}
	prefix := s.prefix + workloadsDir
	set, revision := map[string]exchange.Entry{}, int64(0)
	if err := s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := s.commit(ctx, client, client.Txn(ctx).Then(clientv3.OpGet(prefix, clientv3.WithPrefix()), clientv3.OpGet(s.prefix+settlingKey)))
		if err != nil {
			return err
		}
		revision = resp.Header.Revision
		for _, kv := range resp.Responses[0].GetResponseRange().Kvs {
			set[strings.TrimPrefix(string(kv.Key), prefix)] = exchange.Entry{Value: string(kv.Value), Session: sessionOf(kv.Lease)}
		}
		for _, kv := range resp.Responses[1].GetResponseRange().Kvs {
			s.losses.told(kv, following)
		}
		return s.check(ctx, client)
	}); err != nil {
		return err
	}
	watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	watch := client.Watch(watching, prefix, clientv3.WithPrefix(), clientv3.WithRev(revision+1))
	tell(exchange.Update{All: true, Set: set})
	set = map[string]exchange.Entry{}
	gone := map[string]bool{}
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
			emptied := deleted{}
			for _, e := range resp.Events {
				key := strings.TrimPrefix(string(e.Kv.Key), prefix)
				delete(set, key)
				delete(gone, key)
				if e.Type == clientv3.EventTypeDelete {
					gone[key] = true
					node, _, _ := strings.Cut(key, "/")
					s.losses.deletes(emptied, e.Kv.ModRevision, node)
				} else {
					set[key] = exchange.Entry{Value: string(e.Kv.Value), Session: sessionOf(e.Kv.Lease)}
				}
			}
			if due == nil && len(resp.Events) > 0 {
				due = time.After(max(0, gather-time.Since(last)))
			}
		case <-due:
			var keys []string
			for key := range gone {
				keys = append(keys, key)
			}
			tell(exchange.Update{Set: set, Gone: keys})
			set, gone = map[string]exchange.Entry{}, map[string]bool{}
			last, due = time.Now(), nil
		case <-lost:
			return errors.New("it lost its latest changes, as after a restore from a backup")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
