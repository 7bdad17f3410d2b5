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

// promises are what a journal may serve after a power loss: of each key a value
// that was written since it was last made safe, or the safe one.
type promises map[string][]string

func (p promises) wrote(key, value string) {
	if p[key] == nil {
		p[key] = []string{gone}
	}
	p[key] = append(p[key], value)
}

// safe notes that all that was written until now survives.
func (p promises) safe() {
	for key, values := range p {
		p[key] = values[len(values)-1:]
	}
}

// latest are the promises to whoever comes after a writer that was killed: what
// was written is served, safe or not.
func (p promises) latest() promises {
	out := promises{}
	for key, values := range p {
		out[key] = values[len(values)-1:]
	}
	return out
}

// hold compares what is served, and takes it for what is there from now on.
func (p promises) hold(t *testing.T, j *journal.Journal) {
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

// TestPowerLoss cuts the power thousands of times at any moment, also in the
// middle of compactions: what was synced is there, and what is served was
// written.
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
					written.hold(t, j)
				} else {
					written.latest().hold(t, j)
				}
				for i := range r.IntN(200) {
					key := fmt.Sprint("k", r.IntN(12))
					switch r.IntN(10) {
					case 0:
						if err := j.Sync(t.Context()); err != nil {
							t.Fatal(err)
						}
						written.safe()
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
				_ = j.Close() // of the dead
			}
		})
	}
}

// TestAnyByteOfManyLost damages a journal of a running node anywhere, bits and
// ends, and goes on with it: it opens each time and serves what isn't damaged.
func TestAnyByteOfManyLost(t *testing.T) {
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
		written.hold(t, j) // a damaged record is one that wasn't written
		_ = j.Close()
		j, again, err := journal.OpenOn(disk.Mount())
		if err != nil || len(again) > 0 {
			t.Fatalf("the damage is told a second time: %v, %v", again, err)
		}
		written.hold(t, j)
		_ = j.Close()
	}
}

// TestBrokenDisk has syncs fail: nothing is promised any more, and what was
// promised before is there.
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
		t.Fatal("a journal that can't promise anything takes a record")
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
