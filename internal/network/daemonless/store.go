package daemonless

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// record is a lease: everything needed to create or remove the attachment, whatever the
// configuration has become.
type record struct {
	Attachment pod.Attachment `json:"attachment"`
	Addresses  []netip.Prefix `json:"addresses"` // with their subnets' length
	Node       plan.Node      `json:"node"`
	// Releasing is when the detachment began, in nanoseconds of bootTime; 0 if it hasn't.
	Releasing int64 `json:"releasing,omitempty"`

	// reconstructed means that the lease was unreadable and the record was made from the other
	// buckets. It suffices to remove the attachment, not to create it.
	reconstructed bool
}

func (r *record) plan() plan.Plan { return plan.For(r.Node, r.Attachment, r.Addresses) }

func (r *record) addrs() (out []netip.Addr) {
	for _, p := range r.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

// tx is a transaction on the database: either all of it takes effect or nothing.
type tx struct {
	n           *Network
	leases      *bbolt.Bucket // sandbox → record
	addresses   *bbolt.Bucket // address → sandbox, or inQuarantine
	runs        *bbolt.Bucket // first → last of each run of the same addresses, see ipam.Runs
	quarantined *bbolt.Bucket // until, address → nothing
	ports       *bbolt.Bucket // port, protocol, sandbox → pod.PortMapping
	releasing   *bbolt.Bucket // since, sandbox → nothing
	meta        *bbolt.Bucket
}

const databasePrefix = "leases-"

func (n *Network) database() string {
	return filepath.Join(n.cfg.Dir, databasePrefix+strings.ReplaceAll(n.cfg.Boot, "-", "")+".db")
}

// exists reports whether anything was recorded since the node booted.
func (n *Network) exists() (bool, error) {
	_, err := os.Stat(n.database())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// update runs fn in a read-write transaction. If fn fails, nothing is changed.
func (l *locked) update(fn func(*tx) error) error { return l.open(true, fn) }

func (l *locked) view(fn func(*tx) error) error { return l.open(false, fn) }

func (l *locked) open(write bool, fn func(*tx) error) (err error) {
	if err := l.take(unix.F_WRLCK, storeByte); err != nil {
		return err
	}
	defer l.drop(storeByte)
	path := l.n.database()
	made, err := l.n.exists()
	if err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if !made {
		l.n.removeFormer()
	}
	defer func() {
		if damage := recover(); damage != nil {
			err = damaged(path, fmt.Errorf("%v", damage))
		}
	}()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true, NoStatistics: true})
	if err != nil {
		return damaged(path, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if !write {
		empty := false
		err := db.View(func(b *bbolt.Tx) error {
			t, ok := l.n.buckets(b.Bucket)
			if empty = !ok; empty {
				return nil
			}
			return fn(t)
		})
		if !empty {
			return err
		}
	}
	return db.Update(func(b *bbolt.Tx) error {
		t, ok := l.n.buckets(func(name []byte) *bbolt.Bucket {
			bucket, _ := b.CreateBucketIfNotExists(name)
			return bucket
		})
		if !ok {
			return damaged(path, errors.New("a bucket can't be created"))
		}
		return fn(t)
	})
}

func damaged(path string, err error) error {
	return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("%s is unusable: %v: stop the pods of this network and delete the file", path, err))
}

// buckets returns a transaction over the buckets that bucket finds. They are missing until the
// first transaction commits.
func (n *Network) buckets(bucket func(name []byte) *bbolt.Bucket) (t *tx, ok bool) {
	t = &tx{n: n}
	for name, b := range map[string]**bbolt.Bucket{
		"leases": &t.leases, "addresses": &t.addresses, "runs": &t.runs,
		"rests": &t.quarantined, "ports": &t.ports, "releasing": &t.releasing, "meta": &t.meta,
	} {
		if *b = bucket([]byte(name)); *b == nil {
			return nil, false
		}
	}
	return t, true
}

// removeFormer removes the databases of earlier boots.
func (n *Network) removeFormer() {
	entries, _ := os.ReadDir(n.cfg.Dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), databasePrefix) {
			_ = os.Remove(filepath.Join(n.cfg.Dir, e.Name()))
		}
	}
}

// find returns a sandbox's record, nil if there is none. An unreadable one is reconstructed.
func (t *tx) find(sandbox string) *record {
	data := t.leases.Get([]byte(sandbox))
	if data == nil {
		return nil
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err == nil && r.Attachment.Sandbox == sandbox {
		return r
	}
	t.n.cfg.Log.Error("network: a lease is unreadable, so its pod can only be detached", "sandbox", pod.Short(sandbox), "database", t.n.database())
	return t.reconstruct(sandbox)
}

func (t *tx) put(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return t.leases.Put([]byte(r.Attachment.Sandbox), data)
}

// each calls fn with every record.
func (t *tx) each(fn func(*record) error) error {
	return t.leases.ForEach(func(key, _ []byte) error { return fn(t.find(string(key))) })
}

// reconstruct returns what the other buckets say about an unreadable lease.
func (t *tx) reconstruct(sandbox string) *record {
	r := &record{
		Attachment: pod.Attachment{
			Sandbox: sandbox, Pod: pod.Ref{Name: pod.Short(sandbox)}, IfName: "eth0",
			Bandwidth: pod.Bandwidth{EgressRate: 1}, // so that the plan names an IFB to remove
		},
		Node:          plan.Node{Instance: t.n.instance, Mode: t.n.cfg.Mode, Bridge: t.n.cfg.Bridge},
		reconstructed: true,
	}
	_ = t.addresses.ForEach(func(key, holder []byte) error {
		if a := keyAddress(key); string(holder) == sandbox {
			r.Addresses = append(r.Addresses, netip.PrefixFrom(a, a.BitLen()))
		}
		return nil
	})
	_ = t.ports.ForEach(func(key, value []byte) error {
		if m, holder := parsePort(key, value); holder == sandbox {
			r.Attachment.Ports = append(r.Attachment.Ports, m)
		}
		return nil
	})
	_ = t.releasing.ForEach(func(key, _ []byte) error {
		if since, holder := parseReleasing(key); holder == sandbox {
			r.Releasing = since
		}
		return nil
	})
	return r
}
