package journal_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/journal"
)

// image is a journal's file, and where each of its records ends.
type image struct {
	data   []byte
	ends   []int               // the first is where the header ends
	states []map[string]string // what the journal has held up to each end
}

// newImage returns the file of a journal with some large and many small records.
func newImage(t *testing.T, r *rand.Rand) image {
	t.Helper()
	dir := t.TempDir()
	j, _, err := journal.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const header = len("husk journal 1\n\x00")
	m := image{ends: []int{header}, states: []map[string]string{{}}}
	state := map[string]string{}
	for i := range 60 {
		key, value := fmt.Sprint("k", r.IntN(20)), fmt.Sprintf("%d/", i)+strings.Repeat("v", r.IntN(200))
		if i%10 == 0 {
			value += strings.Repeat("long", 500)
		}
		if _, exists := state[key]; exists && i%10 > 0 && r.IntN(4) == 0 {
			delete(state, key)
			err = j.Delete(key)
		} else {
			state[key] = value
			err = j.Put(key, []byte(value))
		}
		if err != nil {
			t.Fatal(err)
		}
		_, end := j.Size()
		m.ends, m.states = append(m.ends, int(end)), append(m.states, maps.Clone(state))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if m.data, err = os.ReadFile(filepath.Join(dir, "journal")); err != nil {
		t.Fatal(err)
	}
	return m
}

// flip flips a bit of each of some records, from the one with the number first on.
func (m image) flip(r *rand.Rand, first, count int) []byte {
	out := bytes.Clone(m.data)
	for i := first; i < first+count; i++ {
		out[m.ends[i]+r.IntN(m.ends[i+1]-m.ends[i])] ^= 1 << r.IntN(8)
	}
	return out
}

// TestDamage opens journals after all that disks and crashes do to files. A torn tail, which is at
// most one record, is dropped without a word. All else is reported, its bytes are kept beside the
// journal, and the records around it are used.
func TestDamage(t *testing.T) {
	t.Parallel()
	const records = 60
	type after = struct {
		data []byte
		said bool
		// state is what must be left; nil if it is enough that it was written once.
		state map[string]string
	}
	cases := map[string]func(r *rand.Rand, m image) after{
		"cut in a record": func(r *rand.Rand, m image) after {
			i := r.IntN(records)
			at := m.ends[i] + r.IntN(m.ends[i+1]-m.ends[i])
			return after{m.data[:at], false, m.states[i]}
		},
		"cut in a record, and zeros": func(r *rand.Rand, m image) after {
			i := r.IntN(records)
			at := m.ends[i] + r.IntN(m.ends[i+1]-m.ends[i])
			return after{append(bytes.Clone(m.data[:at]), make([]byte, 1+r.IntN(100_000))...), false, m.states[i]}
		},
		"zeros at the end": func(r *rand.Rand, m image) after {
			return after{append(bytes.Clone(m.data), make([]byte, 1+r.IntN(100_000))...), false, m.states[records]}
		},
		"a sector of the last record is missing": func(_ *rand.Rand, m image) after {
			const long = 51 // the number of a record with 2,000 bytes
			out := bytes.Clone(m.data[:m.ends[long]])
			hole := (m.ends[long-1]/512 + 2) * 512 // not the one with the length
			clear(out[hole : hole+512])
			return after{out, false, m.states[long-1]}
		},
		"a bit of the last record": func(r *rand.Rand, m image) after {
			return after{m.flip(r, records-1, 1), true, m.states[records-1]}
		},
		"a bit of each of the last records": func(r *rand.Rand, m image) after {
			n := 2 + r.IntN(records-2)
			return after{m.flip(r, records-n, n), true, m.states[records-n]}
		},
		"a bit of each of the last records, the last of which is torn": func(r *rand.Rand, m image) after {
			n := 2 + r.IntN(records-2)
			out := m.flip(r, records-n, n)
			return after{out[:len(out)-1-r.IntN(10)], true, m.states[records-n]}
		},
		"bits anywhere": func(r *rand.Rand, m image) after {
			out := bytes.Clone(m.data)
			for range 1 + r.IntN(100) {
				out[m.ends[0]+r.IntN(len(out)-m.ends[0])] ^= 1 << r.IntN(8)
			}
			return after{out, !bytes.Equal(out, m.data), nil}
		},
		"garbage at the end": func(r *rand.Rand, m image) after {
			out := bytes.Clone(m.data)
			for range 1 + r.IntN(5000) {
				out = append(out, byte(1+r.IntN(0xd4))) // no byte of this begins a record
			}
			return after{out, true, m.states[records]}
		},
		"the header": func(r *rand.Rand, m image) after {
			out := bytes.Clone(m.data)
			out[r.IntN(len("husk journal"))] ^= 1 << r.IntN(8)
			return after{out, true, m.states[records]}
		},
		"a stretch of records a second time": func(r *rand.Rand, m image) after {
			i := r.IntN(records)
			return after{append(bytes.Clone(m.data), m.data[m.ends[i]:m.ends[i+1+r.IntN(records-i)]]...), false, nil}
		},
		"bytes of the middle a second time": func(r *rand.Rand, m image) after {
			i := 1 + r.IntN(records-2)
			from := m.ends[i] + 1 + r.IntN(m.ends[i+1]-m.ends[i]-1)
			return after{slices.Insert(bytes.Clone(m.data), m.ends[records-1], m.data[from:m.ends[i+1]]...), true, m.states[records]}
		},
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(40) {
				r := rand.New(rand.NewPCG(seed, 57))
				m := newImage(t, r)
				check(t, seed, m, damage(r, m))
			}
		})
	}
}

// check opens a damaged file twice.
func check(t *testing.T, seed uint64, m image, want struct {
	data  []byte
	said  bool
	state map[string]string
}) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "journal"), want.data, 0o600); err != nil {
		t.Fatal(err)
	}
	j, damage, err := journal.Open(dir)
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if said := len(damage) > 0; said != want.said {
		t.Fatalf("seed %d: damage is reported: %v, want %v: %v", seed, said, want.said, damage)
	}
	var saved []byte
	for _, d := range damage {
		saved = append(saved, want.data[d.Offset:d.Offset+d.Length]...)
	}
	files := j.Damaged()
	if said := len(files) == 1; said != want.said {
		t.Fatalf("seed %d: files with damaged bytes: %v", seed, files)
	}
	if want.said {
		if kept, err := os.ReadFile(files[0]); err != nil || !bytes.Equal(kept, saved) || damage[0].Saved != files[0] {
			t.Fatalf("seed %d: %s has %d bytes, want %d: %v", seed, files[0], len(kept), len(saved), err)
		}
	}
	got := map[string]string{}
	for key, value := range j.All("") {
		got[key] = string(value)
		if !slices.ContainsFunc(m.states, func(s map[string]string) bool { return s[key] == string(value) }) {
			t.Fatalf("seed %d: %s is %.40q, which was never written", seed, key, value)
		}
	}
	if want.state != nil && !maps.Equal(got, want.state) {
		t.Fatalf("seed %d: %d records, want %d", seed, len(got), len(want.state))
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	again, damage, err := journal.Open(dir)
	if err != nil || len(damage) > 0 {
		t.Fatalf("seed %d: opened a second time: %v, %v", seed, damage, err)
	}
	defer again.Close()
	left := map[string]string{}
	for key, value := range again.All("") {
		left[key] = string(value)
	}
	if !maps.Equal(left, got) {
		t.Fatalf("seed %d: %d records at the second start, %d at the first", seed, len(left), len(got))
	}
}
