package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/network/ipam"
)

// Names of the operations of the workload ipam.
const (
	Lease       = "allocate"
	LeaseRecord = "allocate and record"
)

// fills are the numbers of addresses leased beforehand.
var fills = []int{0, 20_000}

// Leased returns the name in the workload ipam for n leased addresses.
func Leased(n int) string { return fmt.Sprintf("%d leased", n) }

// leasesPerRound is how many leases are taken in each turn.
const leasesPerRound = 50

// addresses benchmarks the address allocator with its journal, as the built-in network uses them.
func addresses(ctx context.Context, s *session) (err error) {
	var things []string
	for _, n := range fills {
		things = append(things, Leased(n))
	}
	all, end := s.newComparison("ipam", things...)
	defer end()
	stores := map[*recorder]*leases{}
	defer func() {
		for _, l := range stores {
			err = errors.Join(err, l.journal.Close())
		}
	}()
	for i, r := range all {
		if stores[r], err = newLeases(filepath.Join(s.dir, fmt.Sprint("leases-", i)), fills[i]); err != nil {
			return err
		}
	}
	s.interleave(ctx, all, s.Samples, func(r *recorder, _ int) error { return stores[r].take(r) })
	return nil
}

// leases is an allocator with its journal.
type leases struct {
	alloc   *ipam.Allocator
	journal *journal.Journal
	table   journal.Table[ipam.Lease]
	next    int
}

func newLeases(dir string, fill int) (*leases, error) {
	alloc, err := ipam.New(time.Minute, netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("fd00::/64"))
	if err != nil {
		return nil, err
	}
	j, _, err := journal.Open(dir)
	if err != nil {
		return nil, err
	}
	l := &leases{alloc: alloc, journal: j, table: journal.NewTable[ipam.Lease](j, "lease")}
	for range fill {
		lease, err := l.reserve()
		if err == nil {
			err = l.table.Put(lease.Owner.String(), lease)
		}
		if err != nil {
			return nil, errors.Join(err, j.Close())
		}
	}
	return l, nil
}

func (l *leases) reserve() (ipam.Lease, error) {
	l.next++
	return l.alloc.Reserve(ipam.Owner{Sandbox: fmt.Sprintf("%064d", l.next), IfName: "eth0"}, time.Now())
}

// take takes leases and releases them, so that their number stays the same.
func (l *leases) take(r *recorder) error {
	var taken []ipam.Lease
	for range leasesPerRound {
		began := time.Now()
		lease, err := l.reserve()
		allocated := time.Since(began)
		if err == nil {
			taken = append(taken, lease)
			err = l.table.Put(lease.Owner.String(), lease)
		}
		r.sample(LeaseRecord, time.Since(began), err)
		if err != nil {
			return err
		}
		r.sample(Lease, allocated, nil)
	}
	for _, lease := range taken {
		l.alloc.Forget(lease.Owner)
		if err := l.table.Delete(lease.Owner.String()); err != nil {
			return err
		}
	}
	return nil
}
