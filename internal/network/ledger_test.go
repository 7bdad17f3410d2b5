package network

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// books is a ledger, the file that it writes, and what it has promised.
type books struct {
	t       *testing.T
	dir     string
	ledger  *ledger
	subnets []netip.Prefix
	leases  map[ipam.Owner]*record // whose owner was told
	resting map[netip.Addr]time.Time
}

func openBooks(t *testing.T, dir string, subnets ...netip.Prefix) *books {
	t.Helper()
	b := &books{t: t, dir: dir, subnets: subnets, leases: map[ipam.Owner]*record{}, resting: map[netip.Addr]time.Time{}}
	b.open()
	return b
}

func (b *books) open() {
	b.t.Helper()
	cfg := Config{Instance: "be0f", Dir: b.dir, Quarantine: time.Hour, Log: slog.New(slog.DiscardHandler)}
	l, err := openLedger(cfg, "boot")
	must(b.t, err)
	must(b.t, l.restore(b.subnets, time.Now()))
	b.ledger = l
}

func (b *books) file() string { return filepath.Join(b.dir, "journal") }

// step does something random to the ledger and keeps its promise.
func (b *books) step(r *rand.Rand) {
	owners := make([]ipam.Owner, 0, len(b.leases))
	for o := range b.leases {
		owners = append(owners, o)
	}
	if len(owners) == 0 || r.IntN(3) == 0 {
		rec := &record{Attachment: pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Name: "p"}, Netns: "/run/netns/p", IfName: "eth0"}, Mode: plan.PTP, MTU: 1500}
		if err := b.ledger.reserve(rec); err == nil {
			for _, a := range rec.addrs() {
				delete(b.resting, a)
			}
			b.leases[rec.owner()] = rec
		}
		return
	}
	o := owners[r.IntN(len(owners))]
	rec := b.ledger.find(o)
	switch state := b.ledger.state(rec); {
	case state == ipam.Reserved && r.IntN(2) == 0:
		must(b.t, b.ledger.bind(rec))
	case state == ipam.Releasing && r.IntN(2) == 0:
		b.ledger.quarantineLease(rec)
		for _, a := range rec.addrs() {
			b.resting[a] = time.Now()
		}
		delete(b.leases, o)
	case state == ipam.Reserved:
		must(b.t, b.ledger.forget(rec))
		delete(b.leases, o)
	default:
		must(b.t, b.ledger.release(rec))
	}
}

// check compares a ledger with the promises: before is what was promised when
// the write that was cut began, after what it would have been at its end.
func (b *books) check(before, after *books) {
	b.t.Helper()
	holders := map[netip.Addr]ipam.Owner{}
	for o, r := range b.ledger.records {
		for _, a := range r.addrs() {
			if other, twice := holders[a]; twice {
				b.t.Fatalf("%v is given to %v and %v", a, other, o)
			}
			holders[a] = o
		}
	}
	for o, r := range before.leases {
		got := b.ledger.records[o]
		if _, stays := after.leases[o]; !stays { // it was being ended
			if got == nil && r.State == ipam.Releasing {
				b.rests(r.addrs()...)
			}
			continue
		}
		if got == nil || fmt.Sprint(got.Addresses) != fmt.Sprint(r.Addresses) {
			b.t.Fatalf("the lease of %v with %v is lost: %+v", o, r.Addresses, got)
		}
	}
	for a := range before.resting {
		if _, stays := after.resting[a]; !stays || holders[a] != (ipam.Owner{}) {
			continue // it was being given out
		}
		b.rests(a)
	}
	for _, u := range b.ledger.alloc.Usage() {
		used := 0
		for a := range holders {
			if u.Range.Contains(a) {
				used++
			}
		}
		if u.Used != used || u.Used+u.Quarantined+u.Free != u.Size {
			b.t.Fatalf("%+v: %d addresses are held; the rest is lost", u, used)
		}
	}
}

// rests fails unless nobody can have the addresses.
func (b *books) rests(addrs ...netip.Addr) {
	b.t.Helper()
	for _, a := range addrs {
		fresh := &record{Attachment: pod.Attachment{Sandbox: pod.NewID(), Netns: "/n", IfName: "eth0", IPs: []netip.Addr{a}}}
		if err := b.ledger.reserve(fresh); err == nil {
			b.t.Fatalf("%v was in use and doesn't rest", a)
		}
	}
}

// promises is a copy of what was promised until now.
func (b *books) promises() *books {
	p := &books{leases: map[ipam.Owner]*record{}, resting: map[netip.Addr]time.Time{}}
	for o, r := range b.leases {
		v := *r
		p.leases[o] = &v
	}
	for a, at := range b.resting {
		p.resting[a] = at
	}
	return p
}

// TestLedgerCrashesAtEveryWrite puts the journal back to what it would be if
// huskd had died after any of the writes of random steps, or within one, and
// goes on from there, with the ranges that were configured or with others.
func TestLedgerCrashesAtEveryWrite(t *testing.T) {
	four, six := netip.MustParsePrefix("10.9.0.0/27"), netip.MustParsePrefix("fd09::/122")
	r := rand.New(rand.NewPCG(5, 6))
	crashes := 0
	for round := range 4 {
		b := openBooks(t, t.TempDir(), four, six)
		for range 60 {
			size := fileSize(t, b)
			before := b.promises()
			b.step(r)
			after := b.promises()
			written, err := os.ReadFile(b.file())
			must(t, err)
			written = bytes.TrimRight(written, "\x00")
			for _, cut := range cuts(r, size, len(written)) {
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, "journal"), written[:cut], 0o600))
				subnets := []netip.Prefix{four, six}
				if round%2 == 1 { // and configured anew
					subnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd0a::/122")}
				}
				crashed := openBooks(t, dir, subnets...)
				if round%2 == 1 {
					crashed.checkLeases(before, after)
				} else {
					crashed.check(before, after)
				}
				must(t, crashed.ledger.journal.Close())
				crashes++
			}
		}
		must(t, b.ledger.journal.Close())
		b.open() // nothing of it all was only in memory
		b.check(b.promises(), b.promises())
		must(t, b.ledger.journal.Close())
	}
	t.Logf("%d crashes", crashes)
}

// checkLeases is check after the ranges changed: who has an address keeps it.
func (b *books) checkLeases(before, after *books) {
	b.t.Helper()
	for o, r := range before.leases {
		if _, stays := after.leases[o]; !stays {
			continue
		}
		if got := b.ledger.records[o]; got == nil || fmt.Sprint(got.Addresses) != fmt.Sprint(r.Addresses) {
			b.t.Fatalf("the lease of %v with %v is lost: %+v", o, r.Addresses, got)
		}
	}
	held := map[netip.Addr]bool{}
	for _, r := range b.ledger.records {
		for _, a := range r.addrs() {
			held[a] = true
		}
	}
	for {
		rec := &record{Attachment: pod.Attachment{Sandbox: pod.NewID(), Netns: "/n", IfName: "eth0"}}
		if b.ledger.reserve(rec) != nil {
			return
		}
		for _, a := range rec.addrs() {
			if held[a] {
				b.t.Fatalf("%v is given out twice", a)
			}
			held[a] = true
		}
	}
}

// fileSize is where the journal's next record goes.
func fileSize(t *testing.T, b *books) int {
	t.Helper()
	_, end := b.ledger.journal.Size()
	return int(end)
}

// cuts returns lengths to which a file that grew from one length to another may
// have come: its whole records, and a few places within them.
func cuts(r *rand.Rand, from, to int) []int {
	if to <= from {
		return []int{to}
	}
	out := []int{from, to}
	for range 3 {
		out = append(out, from+r.IntN(to-from))
	}
	return out
}
