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

// The operations of the workload ipam, by their names.
const (
	Lease       = "allocate"
	LeaseRecord = "allocate and record"
)

// fills are how many addresses are leased already.
var fills = []int{0, 20_000}

// Leased is what the workload ipam calls the fill of n addresses.
func Leased(n int) string { return fmt.Sprintf("%d leased", n) }

// leasesPerTurn are taken before the other's turn.
const leasesPerTurn = 50

// addresses measures the allocator with its journal, as the built-in network
// uses them, at different fills.
func addresses(ctx context.Context, s *session) (err error) {
	var things []string
	for _, n := range fills {
		things = append(things, Leased(n))
	}
	all, end := s.compare("ipam", things...)
	defer end()
	stores := map[*record]*leases{}
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
	s.turns(ctx, all, s.Samples, func(r *record, _ int) error { return stores[r].take(r) })
	return nil
}

// leases are an allocator and its journal.
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

// take takes leases and ends them again, so that the fill stays what it is.
func (l *leases) take(r *record) error {
	var taken []ipam.Lease
	for range leasesPerTurn {
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
