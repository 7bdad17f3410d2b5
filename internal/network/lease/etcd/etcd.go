// Package etcd is a lease.Store in etcd, of version 3.4 or newer. A session is a lease of etcd,
// which deletes a node's keys when the node hasn't prolonged it for its TTL.
package etcd

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// DefaultTTL is how long a node's blocks are its own while it can't reach etcd.
const DefaultTTL = 24 * time.Hour

// DefaultCluster is the name of a cluster that has none.
const DefaultCluster = "default"

// These limits allow for round trips of 5 s, which a satellite and a full queue can take. A dead
// etcd is noticed nevertheless.
const (
	// timeout is how long a call takes at most: four round trips. To prolong the session of a user
	// with a name takes three, the first of which is the client's to authenticate again.
	timeout = 20 * time.Second
	// doubt is how long the answer to a ping may take, which is sent on a connection that was silent
	// for 10 s: two round trips, as other answers may be in the way.
	doubt = 10 * time.Second
	// connectTime is how long calls wait for a connection, after which gRPC begins another one. It
	// takes three round trips: one each of TCP, TLS and HTTP/2.
	connectTime = 20 * time.Second
	// dialTime is how long the server may take to answer the first of these: one round trip. The
	// kernel repeats what isn't answered less and less often, so that an attempt which began while
	// the server was away would find late that it is back.
	dialTime = 6 * time.Second
	// refusedTime is the timeout if there is no connection: it is for a server that restarts.
	refusedTime = 5 * time.Second
)

// settleTime is how long, after a restore, blocks aren't claimed for the first time. Until then
// each node has asked etcd and claimed its blocks again.
const settleTime = time.Minute

// Config is where etcd is and who this node is to it.
type Config struct {
	// Endpoints are URLs, all of http or all of https.
	Endpoints []string
	// Cluster is a part of all keys: /husk/CLUSTER/.
	Cluster string
	TTL     time.Duration
	// CA, Cert and Key are files in PEM. Without CA, the system's certificates count. Cert and Key
	// are read again for each connection, so they can be replaced.
	CA, Cert, Key      string
	Username, Password string
}

// Store implements lease.Store.
type Store struct {
	cfg     Config
	prefix  string
	flannel bool // the keys of blocks are flannel's
	tls     *tls.Config

	connections connections
	losses      losses

	mu      sync.Mutex // Invariant: guards the fields below.
	client  *clientv3.Client
	closed  bool
	cause   error         // why the last call over the network failed
	session claim.Session // the last one that was prolonged
}

var validCluster = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// New returns a Store, which connects when it is first used.
func New(cfg Config) (*Store, error) {
	cfg.Cluster, cfg.TTL = cmp.Or(cfg.Cluster, DefaultCluster), cmp.Or(cfg.TTL, DefaultTTL)
	if !validCluster.MatchString(cfg.Cluster) {
		return nil, fmt.Errorf("cluster name %.70q: want letters, digits, '.', '_' and '-', at most 63", cfg.Cluster)
	}
	if cfg.TTL < 2*time.Second {
		return nil, fmt.Errorf("etcd leases of %v: at least 2s", cfg.TTL)
	}
	s := &Store{cfg: cfg, prefix: "/husk/" + cfg.Cluster + "/", losses: losses{found: make(chan struct{})}}
	scheme := ""
	for _, e := range cfg.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			return nil, fmt.Errorf("etcd endpoint %.100q: want a URL like https://192.0.2.1:2379", e)
		}
		if scheme != "" && u.Scheme != scheme {
			return nil, fmt.Errorf("etcd endpoints %v: some are http and some https", cfg.Endpoints)
		}
		scheme = u.Scheme
	}
	if scheme == "" {
		return nil, errors.New("no etcd endpoints")
	}
	if scheme == "https" {
		var err error
		if s.tls, err = cfg.tls(); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (c Config) tls() (*tls.Config, error) {
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.CA != "" {
		pem, err := os.ReadFile(c.CA)
		if err != nil {
			return nil, fmt.Errorf("etcd's certificate authority: %w", err)
		}
		if out.RootCAs = x509.NewCertPool(); !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("etcd's certificate authority: no certificate in PEM in %s", c.CA)
		}
	}
	if c.Cert == "" && c.Key == "" {
		return out, nil
	}
	load := func() (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(c.Cert, c.Key)
		if err != nil {
			return nil, fmt.Errorf("this node's certificate for etcd: %w", err)
		}
		return &pair, nil
	}
	out.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	_, err := load()
	return out, err
}

// String returns how messages name the store.
func (s *Store) String() string { return "etcd at " + strings.Join(s.cfg.Endpoints, ", ") }

// Close ends the connections. No call is running.
func (s *Store) Close() error {
	s.mu.Lock()
	client := s.client
	s.closed = true
	s.mu.Unlock() // calls that end now take it
	if client == nil {
		return nil
	}
	return client.Close()
}

// reconnect bounds the waits between attempts to connect, which gRPC has grow to two minutes. What
// waits for a connection may wait for as long itself.
var reconnect = grpc.WithConnectParams(grpc.ConnectParams{
	Backoff:           grpcbackoff.Config{BaseDelay: 250 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: backoff.Most / 2},
	MinConnectTimeout: connectTime,
})

// connect returns the client. With a user name, the first call needs etcd's answer.
func (s *Store) connect(ctx context.Context) (*clientv3.Client, error) {
	s.mu.Lock()
	client, closed := s.client, s.closed
	s.mu.Unlock()
	if closed {
		return nil, errors.New("the connection was closed")
	}
	if client != nil {
		return client, nil
	}
	connecting, cancel := context.WithCancel(context.WithoutCancel(ctx)) // the client outlives the call
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	client, err := clientv3.New(clientv3.Config{
		Context: connecting, Endpoints: s.cfg.Endpoints, TLS: s.tls, Username: s.cfg.Username, Password: s.cfg.Password,
		DialTimeout: connectTime + timeout, DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: doubt,
		Logger:      zap.NewNop(), // it writes to standard error
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(s.observe), grpc.WithChainStreamInterceptor(s.observeStream), grpc.WithContextDialer(s.connections.dial), reconnect},
	})
	if err != nil {
		cancel()
		return nil, s.explain(err)
	}
	s.mu.Lock()
	if s.client == nil && !s.closed {
		s.client = client
	}
	use := s.client
	s.mu.Unlock()
	if use != client { // another call was faster
		return use, client.Close()
	}
	return client, nil
}

// call runs f with a deadline, which doesn't include the time that a connection takes, and explains
// its error.
func (s *Store) call(ctx context.Context, f func(context.Context, *clientv3.Client) error) error {
	client, err := s.connect(ctx)
	if err != nil {
		return err
	}
	s.connections.closeDead()
	limit := refusedTime
	if connected(ctx, client) {
		limit = timeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return s.explain(f(ctx, client))
}

// connected waits for a connection that is being made, and returns whether there is one.
func connected(ctx context.Context, client *clientv3.Client) bool {
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	conn := client.ActiveConnection()
	for {
		switch state := conn.GetState(); state {
		case connectivity.Ready:
			return true
		case connectivity.Idle:
			conn.Connect()
			fallthrough
		case connectivity.Connecting:
			if !conn.WaitForStateChange(ctx, state) {
				return false
			}
		default:
			return false // the call says why
		}
	}
}

// commit commits a transaction. Answers with an older revision than those before mean that etcd was
// restored from a backup.
func (s *Store) commit(ctx context.Context, client *clientv3.Client, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
	before := s.losses.revision()
	resp, err := txn.Commit()
	if err != nil {
		return nil, err
	}
	if s.losses.answered(before, resp.Header.Revision) {
		return resp, s.settle(ctx, client)
	}
	return resp, nil
}

func leaseID(session claim.Session) (clientv3.LeaseID, error) {
	id, err := strconv.ParseInt(string(session), 16, 64)
	if err != nil || id == 0 {
		return 0, claim.ErrLost // not one of ours
	}
	return clientv3.LeaseID(id), nil
}

func sessionOf(id int64) claim.Session {
	if id == 0 {
		return ""
	}
	return claim.Session(strconv.FormatInt(id, 16))
}

// Keep implements lease.Store.
func (s *Store) Keep(ctx context.Context, session claim.Session, blocks []netip.Prefix) (kept claim.Kept, err error) {
	defer func() {
		if err == nil {
			s.mu.Lock()
			s.session = kept.Session
			s.mu.Unlock()
		}
	}()
	return kept, s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		if session == "" {
			grant, err := client.Grant(ctx, int64(s.cfg.TTL/time.Second))
			if err != nil {
				return err
			}
			kept = claim.Kept{Session: sessionOf(int64(grant.ID)), TTL: time.Duration(grant.TTL) * time.Second}
			return nil
		}
		id, err := leaseID(session)
		if err != nil {
			return err
		}
		alive, err := client.KeepAliveOnce(ctx, id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			s.ended(session) // the next one would hide it
		}
		if err != nil {
			return err
		}
		kept = claim.Kept{Session: session, TTL: time.Duration(alive.TTL) * time.Second}
		var gets []clientv3.Op
		for _, b := range blocks {
			gets = append(gets, clientv3.OpGet(s.prefix+blockKey(b)))
		}
		// Also without blocks: the transaction shows whether etcd was restored.
		resp, err := s.commit(ctx, client, client.Txn(ctx).Then(append(gets, clientv3.OpGet(s.prefix+settlingKey))...))
		if err != nil {
			return err
		}
		for i, b := range blocks {
			if kvs := resp.Responses[i].GetResponseRange().Kvs; len(kvs) > 0 && kvs[0].Lease == int64(id) {
				kept.Bound = append(kept.Bound, b)
			}
		}
		return nil
	})
}

// Write implements lease.Store.
func (s *Store) Write(ctx context.Context, session claim.Session, record peer.Node, revision int64) (now int64, err error) {
	record.Blocks = nil
	value, err := json.Marshal(record)
	if err != nil {
		return 0, err
	}
	id, err := leaseID(session)
	if err != nil {
		return 0, err
	}
	key := s.prefix + nodesDir + record.Name
	return now, s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := s.commit(ctx, client, client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(key), "=", revision)).Then(clientv3.OpPut(key, string(value), clientv3.WithLease(id))))
		if err != nil {
			return err
		}
		if !resp.Succeeded {
			return claim.ErrConflict
		}
		now = resp.Header.Revision
		return nil
	})
}

// Bind implements lease.Store.
func (s *Store) Bind(ctx context.Context, c claim.Claim, again bool) error {
	id, err := leaseID(c.Session)
	if err != nil {
		return err
	}
	value, err := json.Marshal(holder{c.Node})
	if err != nil {
		return err
	}
	first, end := rangeWithin(c.Block)
	free := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(s.prefix+first), "=", 0).WithRange(s.prefix + end)}
	look := []clientv3.Op{clientv3.OpGet(s.prefix+first, clientv3.WithRange(s.prefix+end), clientv3.WithLimit(1))}
	for _, b := range containing(c.Block) {
		key := s.prefix + blockKey(b)
		free, look = append(free, clientv3.Compare(clientv3.CreateRevision(key), "=", 0)), append(look, clientv3.OpGet(key))
	}
	if !again {
		free = append(free, clientv3.Compare(clientv3.CreateRevision(s.prefix+settlingKey), "=", 0))
	}
	return s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		resp, err := s.commit(ctx, client, client.Txn(ctx).If(free...).Then(clientv3.OpPut(s.prefix+blockKey(c.Block), string(value), clientv3.WithLease(id))).Else(look...))
		if err != nil || resp.Succeeded {
			return err
		}
		var others []*mvccpb.KeyValue
		for _, r := range resp.Responses {
			others = append(others, r.GetResponseRange().Kvs...)
		}
		if len(others) == 0 {
			return claim.ErrSettling
		}
		kv := others[0]
		by, err := parseBlockKey(strings.TrimPrefix(string(kv.Key), s.prefix))
		switch {
		case err != nil:
			return fmt.Errorf("block %v can't be claimed: %w: delete it", c.Block, err)
		case by == c.Block && kv.Lease == int64(id):
			return nil
		}
		return &claim.TakenError{By: claim.Claim{Block: by, Node: parseHolder(kv.Value), Session: sessionOf(kv.Lease)}}
	})
}

// Free implements lease.Store.
func (s *Store) Free(ctx context.Context, session claim.Session, block netip.Prefix) error {
	id, err := leaseID(session)
	if err != nil {
		return nil
	}
	key := s.prefix + blockKey(block)
	return s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := s.commit(ctx, client, client.Txn(ctx).If(clientv3.Compare(clientv3.LeaseValue(key), "=", id)).Then(clientv3.OpDelete(key)))
		return err
	})
}

// End implements lease.Store.
func (s *Store) End(ctx context.Context, session claim.Session) error {
	id, err := leaseID(session)
	if err != nil {
		return nil
	}
	err = s.call(ctx, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.Revoke(ctx, id)
		return err
	})
	if errors.Is(err, claim.ErrLost) {
		return nil
	}
	return err
}
