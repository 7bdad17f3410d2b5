package journal_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/journal/journaltest"
)

// gone is the value of a key that was deleted.
const gone = "\x00gone"

// promises are the values that each key may have after a power loss: the synced one, and those
// written since.
type promises map[string][]string

func (p promises) wrote(key, value string) {
	if p[key] == nil {
		p[key] = []string{gone}
	}
	p[key] = append(p[key], value)
}

// synced notes that everything written until now survives.
func (p promises) synced() {
	for key, values := range p {
		p[key] = values[len(values)-1:]
	}
}

// latest returns the promises after the writer was killed: every key has the value written last,
// synced or not.
func (p promises) latest() promises {
	out := promises{}
	for key, values := range p {
		out[key] = values[len(values)-1:]
	}
	return out
}

// check compares the journal with the promises, and its values become the only ones promised.
func (p promises) check(t *testing.T, j *journal.Journal) {
	t.Helper()
	for key, value := range j.All("") {
		if !slices.Contains(p[key], string(value)) {
			t.Fatalf("%s is %.40q: it must be one of %.200q", key, value, p[key])
		}
	}
	for key, values := range p {
		value, ok := j.Get(key)
		if !ok {
			value = []byte(gone)
		}
		if !slices.Contains(values, string(value)) {
			t.Fatalf("%s is %.40q: it must be one of %.200q", key, value, values)
		}
		p[key] = []string{string(value)}
	}
}

// TestPowerLoss cuts the power at random moments, also during compactions. What was synced must
// exist, and what exists must have been written.
func TestPowerLoss(t *testing.T) {
	t.Parallel()
	for seed := range uint64(24) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			disk := &journaltest.Disk{}
			written := promises{}
			sizes := []int{40, 600, 20_000}
			cut := true
			for life := range 20 {
				j, _, err := journal.OpenOn(disk.Mount())
				if err != nil {
					t.Fatalf("life %d: %v", life, err)
				}
				if cut {
					written.check(t, j)
				} else {
					written.latest().check(t, j)
				}
				for i := range r.IntN(200) {
					key := fmt.Sprint("k", r.IntN(12))
					switch r.IntN(10) {
					case 0:
						if err := j.Sync(t.Context()); err != nil {
							t.Fatal(err)
						}
						written.synced()
					case 1, 2:
						written.wrote(key, gone)
						if err := j.Delete(key); err != nil {
							t.Fatal(err)
						}
					default:
						value := fmt.Sprintf("%d/%d/", life, i) + strings.Repeat("v", r.IntN(sizes[seed%3]))
						written.wrote(key, value)
						if err := j.Put(key, []byte(value)); err != nil {
							t.Fatal(err)
						}
					}
				}
				if cut = r.IntN(3) > 0; cut {
					disk.Cut(r)
				} else {
					disk.Kill()
				}
				_ = j.Close() // has no effect on the disk any more
			}
		})
	}
}

// TestRandomDamage flips bits anywhere in a journal or cuts off its end. It must open each time and
// hold what isn't damaged.
func TestRandomDamage(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		disk := &journaltest.Disk{}
		written := promises{}
		j, _, err := journal.OpenOn(disk.Mount())
		if err != nil {
			t.Fatal(err)
		}
		for i := range 50 {
			key, value := fmt.Sprint("k", i%20), fmt.Sprintf("%d", i)
			written.wrote(key, value)
			if err := j.Put(key, []byte(value)); err != nil {
				t.Fatal(err)
			}
		}
		_ = j.Close()
		const header = len("husk journal 1\n\x00")
		for range 1 + r.IntN(4) {
			disk.Damage("journal", header+r.IntN(len(disk.Content("journal"))-header), r.IntN(4) == 0)
		}
		if j, _, err = journal.OpenOn(disk.Mount()); err != nil {
			t.Fatal(err)
		}
		written.check(t, j) // a key may have an older value if its record is damaged
		_ = j.Close()
		j, again, err := journal.OpenOn(disk.Mount())
		if err != nil || len(again) > 0 {
			t.Fatalf("the damage is reported a second time: %v, %v", again, err)
		}
		written.check(t, j)
		_ = j.Close()
	}
}

// TestBrokenDisk makes syncs fail. Writes are refused from then on, and what was synced before
// exists.
func TestBrokenDisk(t *testing.T) {
	t.Parallel()
	disk := &journaltest.Disk{}
	j, _, err := journal.OpenOn(disk.Mount())
	if err != nil {
		t.Fatal(err)
	}
	put := func(value string) error { return j.Put("k", []byte(value)) }
	if err := put("safe"); err != nil {
		t.Fatal(err)
	}
	if err := j.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := put("lost"); err != nil {
		t.Fatal(err)
	}
	disk.SetBroken(true)
	for range 2 {
		if err := j.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "check the disk and restart huskd") {
			t.Fatalf("sync on a broken disk: %v", err)
		}
	}
	if err := put("more"); err == nil {
		t.Fatal("Put succeeds after a failed sync")
	}
	_ = j.Close()
	disk.SetBroken(false)
	disk.Cut(rand.New(rand.NewPCG(3, 3)))
	if j, _, err = journal.OpenOn(disk.Mount()); err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	if value, _ := j.Get("k"); string(value) != "safe" && string(value) != "lost" {
		t.Fatalf("k is %q", value)
	}
}
