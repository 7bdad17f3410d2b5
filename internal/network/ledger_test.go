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

// ledgerModel is a ledger, its directory, and what the ledger has confirmed to its callers.
type ledgerModel struct {
	t           *testing.T
	dir         string
	ledger      *ledger
	subnets     []netip.Prefix
	leases      map[ipam.Owner]*record // confirmed to their owners
	quarantined map[netip.Addr]time.Time
}

func openLedgerModel(t *testing.T, dir string, subnets ...netip.Prefix) *ledgerModel {
	t.Helper()
	b := &ledgerModel{t: t, dir: dir, subnets: subnets, leases: map[ipam.Owner]*record{}, quarantined: map[netip.Addr]time.Time{}}
	b.open()
	return b
}

func (b *ledgerModel) open() {
	b.t.Helper()
	cfg := Config{Instance: "be0f", Dir: b.dir, Quarantine: time.Hour, Log: slog.New(slog.DiscardHandler)}
	l, err := openLedger(cfg, "boot")
	must(b.t, err)
	alloc, err := ipam.New(cfg.Quarantine, b.subnets...)
	must(b.t, err)
	must(b.t, l.restore(alloc, time.Now()))
	b.ledger = l
}

func (b *ledgerModel) file() string { return filepath.Join(b.dir, "journal") }

// step does a random operation on the ledger and updates the model.
func (b *ledgerModel) step(r *rand.Rand) {
	owners := make([]ipam.Owner, 0, len(b.leases))
	for o := range b.leases {
		owners = append(owners, o)
	}
	if len(owners) == 0 || r.IntN(3) == 0 {
		rec := &record{Attachment: pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Name: "p"}, Netns: "/run/netns/p", IfName: "eth0"}, Mode: plan.PTP, MTU: 1500}
		if err := b.ledger.reserve(rec); err == nil {
			for _, a := range rec.addrs() {
				delete(b.quarantined, a)
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
			b.quarantined[a] = time.Now()
		}
		delete(b.leases, o)
	case state == ipam.Reserved:
		must(b.t, b.ledger.forget(rec))
		delete(b.leases, o)
	default:
		must(b.t, b.ledger.release(rec))
	}
}

// check compares the ledger with the model. before is the model when the interrupted write began,
// after what it would have been at its end.
func (b *ledgerModel) check(before, after *ledgerModel) {
	b.t.Helper()
	holders := map[netip.Addr]ipam.Owner{}
	for o, r := range b.ledger.records {
		for _, a := range r.addrs() {
			if other, twice := holders[a]; twice {
				b.t.Fatalf("%v was allocated to both %v and %v", a, other, o)
			}
			holders[a] = o
		}
	}
	for o, r := range before.leases {
		got := b.ledger.records[o]
		if _, stays := after.leases[o]; !stays { // it was ending
			if got == nil && r.State == ipam.Releasing {
				b.checkQuarantined(r.addrs()...)
			}
			continue
		}
		if got == nil || fmt.Sprint(got.Addresses) != fmt.Sprint(r.Addresses) {
			b.t.Fatalf("the lease of %v with %v is lost: %+v", o, r.Addresses, got)
		}
	}
	for a := range before.quarantined {
		if _, stays := after.quarantined[a]; !stays || holders[a] != (ipam.Owner{}) {
			continue // it was being allocated
		}
		b.checkQuarantined(a)
	}
	for _, u := range b.ledger.alloc.Usage() {
		used := 0
		for a := range holders {
			if u.Range.Contains(a) {
				used++
			}
		}
		if u.Used != used || u.Used+u.Quarantined+u.Free != u.Size {
			b.t.Fatalf("%+v: %d addresses are held; the other ones are lost", u, used)
		}
	}
}

// checkQuarantined fails unless the addresses are unavailable.
func (b *ledgerModel) checkQuarantined(addrs ...netip.Addr) {
	b.t.Helper()
	for _, a := range addrs {
		fresh := &record{Attachment: pod.Attachment{Sandbox: pod.NewID(), Netns: "/n", IfName: "eth0", IPs: []netip.Addr{a}}}
		if err := b.ledger.reserve(fresh); err == nil {
			b.t.Fatalf("%v was in use and isn't in quarantine", a)
		}
	}
}

// snapshot returns a copy of the model.
func (b *ledgerModel) snapshot() *ledgerModel {
	p := &ledgerModel{leases: map[ipam.Owner]*record{}, quarantined: map[netip.Addr]time.Time{}}
	for o, r := range b.leases {
		v := *r
		p.leases[o] = &v
	}
	for a, at := range b.quarantined {
		p.quarantined[a] = at
	}
	return p
}

// TestLedgerCrashesAtEveryWrite restores the journal as it would be if huskd had died after any of
// the writes of random steps, or within one, and continues from there, with the configured ranges
// or with others.
func TestLedgerCrashesAtEveryWrite(t *testing.T) {
	four, six := netip.MustParsePrefix("10.9.0.0/27"), netip.MustParsePrefix("fd09::/122")
	r := rand.New(rand.NewPCG(5, 6))
	crashes := 0
	for round := range 4 {
		b := openLedgerModel(t, t.TempDir(), four, six)
		for range 60 {
			size := fileSize(t, b)
			before := b.snapshot()
			b.step(r)
			after := b.snapshot()
			written, err := os.ReadFile(b.file())
			must(t, err)
			written = bytes.TrimRight(written, "\x00")
			for _, cut := range cuts(r, size, len(written)) {
				dir := t.TempDir()
				must(t, os.WriteFile(filepath.Join(dir, "journal"), written[:cut], 0o600))
				subnets := []netip.Prefix{four, six}
				if round%2 == 1 { // with other ranges
					subnets = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/28"), netip.MustParsePrefix("fd0a::/122")}
				}
				crashed := openLedgerModel(t, dir, subnets...)
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
		b.open() // everything must come from the journal
		b.check(b.snapshot(), b.snapshot())
		must(t, b.ledger.journal.Close())
	}
	t.Logf("%d crashes", crashes)
}

// checkLeases is check after the ranges changed: a leased address stays leased.
func (b *ledgerModel) checkLeases(before, after *ledgerModel) {
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
				b.t.Fatalf("%v was allocated twice", a)
			}
			held[a] = true
		}
	}
}

// fileSize returns the offset of the journal's next record.
func fileSize(t *testing.T, b *ledgerModel) int {
	t.Helper()
	_, end := b.ledger.journal.Size()
	return int(end)
}

// cuts returns lengths at which a crash may leave a file that grew from one length to another:
// after whole records, and at a few places within them.
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
