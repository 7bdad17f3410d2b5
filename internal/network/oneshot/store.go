package oneshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
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

// record is a lease: all that is needed to make or remove the attachment,
// whatever the configuration has become.
type record struct {
	Attachment pod.Attachment `json:"attachment"`
	Addresses  []netip.Prefix `json:"addresses"` // with their subnets' length
	Node       plan.Node      `json:"node"`
	// Releasing is when the removal of the attachment began, on the clock of
	// now; 0 if it didn't.
	Releasing int64 `json:"releasing,omitempty"`
}

func (r *record) plan() plan.Plan { return plan.For(r.Node, r.Attachment, r.Addresses) }

func (r *record) addrs() (out []netip.Addr) {
	for _, p := range r.Addresses {
		out = append(out, p.Addr())
	}
	return out
}

// tx is a transaction on the database: all of it or none.
type tx struct {
	leases    *bbolt.Bucket // sandbox → record
	addresses *bbolt.Bucket // address → sandbox, or resting
	runs      *bbolt.Bucket // first → last: the same addresses, as ipam.Runs
	rests     *bbolt.Bucket // until, address → nothing
	ports     *bbolt.Bucket // port, protocol, sandbox → nothing
	releasing *bbolt.Bucket // since, sandbox → nothing
	meta      *bbolt.Bucket
}

const databasePrefix = "leases-"

func (n *Network) database() string {
	return filepath.Join(n.cfg.Dir, databasePrefix+strings.ReplaceAll(n.cfg.Boot, "-", "")+".db")
}

// exists says whether anything was ever recorded since the node booted.
func (n *Network) exists() (bool, error) {
	_, err := os.Stat(n.database())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return false, nil
	}
	return err == nil, err
}

// update changes what is known. If fn fails, nothing is changed.
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
			t, ok := buckets(b.Bucket)
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
		t, ok := buckets(func(name []byte) *bbolt.Bucket {
			bucket, _ := b.CreateBucketIfNotExists(name)
			return bucket
		})
		if !ok {
			return damaged(path, errors.New("a part of it can't be made"))
		}
		return fn(t)
	})
}

func damaged(path string, err error) error {
	return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("%s is unusable: %v: stop the pods of this network and delete the file", path, err))
}

// buckets are missing until the first transaction ends well.
func buckets(bucket func(name []byte) *bbolt.Bucket) (t *tx, ok bool) {
	t = &tx{}
	for name, b := range map[string]**bbolt.Bucket{
		"leases": &t.leases, "addresses": &t.addresses, "runs": &t.runs,
		"rests": &t.rests, "ports": &t.ports, "releasing": &t.releasing, "meta": &t.meta,
	} {
		if *b = bucket([]byte(name)); *b == nil {
			return nil, false
		}
	}
	return t, true
}

// removeFormer removes the databases of former boots.
func (n *Network) removeFormer() {
	entries, _ := os.ReadDir(n.cfg.Dir)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), databasePrefix) {
			_ = os.Remove(filepath.Join(n.cfg.Dir, e.Name()))
		}
	}
}

// find returns a sandbox's record, nil if there is none.
func (t *tx) find(sandbox string) (*record, error) {
	data := t.leases.Get([]byte(sandbox))
	if data == nil {
		return nil, nil
	}
	r := &record{}
	if err := json.Unmarshal(data, r); err != nil {
		return nil, errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("lease of %s is unreadable: %v", pod.Short(sandbox), err))
	}
	return r, nil
}

func (t *tx) put(r *record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return t.leases.Put([]byte(r.Attachment.Sandbox), data)
}

// each calls fn with every record that can be read. One that can't is told of,
// and keeps its addresses from everybody.
func (t *tx) each(log *slog.Logger, fn func(*record) error) error {
	return t.leases.ForEach(func(key, _ []byte) error {
		r, err := t.find(string(key))
		if err != nil {
			log.Error("network: a lease is left out", "error", err)
			return nil
		}
		return fn(r)
	})
}
