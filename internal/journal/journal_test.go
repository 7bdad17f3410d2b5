package journal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

func open(t testing.TB, dir string) *Journal {
	t.Helper()
	j, damage, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(damage) > 0 {
		t.Fatalf("damage: %v", damage)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

func contents(j *Journal) map[string]string {
	m := map[string]string{}
	for k, v := range j.All("") {
		m[k] = string(v)
	}
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestRecordsSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	must(t, j.Put("a/1", []byte("one")))
	must(t, j.Put("a/2", []byte("two")))
	must(t, j.Put("b/1", []byte("")))
	must(t, j.Put("a/1", []byte("uno")))
	must(t, j.Delete("a/2"))
	must(t, j.Delete("unknown"))
	want := map[string]string{"a/1": "uno", "b/1": ""}
	if got := contents(j); !maps.Equal(got, want) {
		t.Fatalf("before closing: %v", got)
	}
	must(t, j.Close())
	if got := contents(open(t, dir)); !maps.Equal(got, want) {
		t.Fatalf("after reopening: %v", got)
	}
}

func TestSecondOpenAndWritesAfterCloseFail(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	if _, _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Fatalf("second open: %v", err)
	}
	must(t, j.Close())
	must(t, j.Close())
	if err := j.Put("k", nil); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("put after close: %v", err)
	}
	if err := j.Sync(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Fatalf("sync after close: %v", err)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, fileName), []byte("husk journal 9\n\x00and more"), 0o600))
	if _, _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "use the newer huskd") {
		t.Fatalf("got %v", err)
	}
}

// TestEveryTruncation cuts the file at every byte. The journal must then hold a state that it once
// had.
func TestEveryTruncation(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	states := []map[string]string{{}}
	for i := range 6 {
		if i%3 == 2 {
			must(t, j.Delete(fmt.Sprint("k", i-1)))
		} else {
			must(t, j.Put(fmt.Sprint("k", i), bytes.Repeat([]byte{byte('a' + i)}, i*7)))
		}
		states = append(states, contents(j))
	}
	must(t, j.Close())
	whole, err := os.ReadFile(filepath.Join(dir, fileName))
	must(t, err)
	last := 0
	for cut := range len(whole) + 1 {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, fileName), whole[:cut], 0o600))
		j := open(t, dir)
		got := contents(j)
		at := last
		for at < len(states) && !maps.Equal(got, states[at]) {
			at++
		}
		if at == len(states) {
			t.Fatalf("cut at %d: %v was never the state, or only before that of a shorter cut", cut, got)
		}
		last = at
		must(t, j.Put("new", []byte("x"))) // it can be written to
		must(t, j.Close())
	}
	if last != len(states)-1 {
		t.Fatalf("the whole file has state %d", last)
	}
}

// TestEveryFlippedBit damages one byte at a time. Only the record that it belongs to may be lost;
// the damage is reported and its bytes are saved.
func TestEveryFlippedBit(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	want := map[string]string{}
	for i := range 5 {
		k, v := fmt.Sprint("k", i), strings.Repeat(fmt.Sprint(i), 9)
		want[k] = v
		must(t, j.Put(k, []byte(v)))
	}
	must(t, j.Close())
	whole, err := os.ReadFile(filepath.Join(dir, fileName))
	must(t, err)
	for at := range whole {
		dir := t.TempDir()
		bad := bytes.Clone(whole)
		bad[at] ^= 0x40
		must(t, os.WriteFile(filepath.Join(dir, fileName), bad, 0o600))
		j, damage, err := Open(dir)
		if err != nil {
			t.Fatalf("byte %d: %v", at, err)
		}
		got := contents(j)
		missing := 0
		for k, v := range want {
			if got[k] != v {
				missing++
			}
		}
		wantMissing := 1
		if at < len(header) {
			wantMissing = 0
		}
		if missing != wantMissing || len(got) != len(want)-missing {
			t.Fatalf("byte %d: got %v", at, got)
		}
		if len(damage) != 1 {
			t.Fatalf("byte %d: damage %v", at, damage)
		}
		for _, d := range damage {
			if saved, err := os.ReadFile(d.Saved); err != nil || !bytes.Equal(saved, bad[d.Offset:d.Offset+d.Length]) {
				t.Fatalf("byte %d: saved bytes differ: %v", at, err)
			}
		}
		must(t, j.Close())
	}
}

func TestCompactionKeepsRecordsAndShrinksTheFile(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for i := range 4000 {
				key := fmt.Sprintf("%d/%d", w, rnd.IntN(20))
				if rnd.IntN(4) == 0 {
					must(t, j.Delete(key))
				} else {
					must(t, j.Put(key, bytes.Repeat([]byte{'x'}, rnd.IntN(600))))
				}
				if i%500 == 0 {
					must(t, j.Sync(t.Context()))
				}
			}
		})
	}
	wg.Wait()
	want := contents(j)
	must(t, j.Close())
	info, err := os.Stat(filepath.Join(dir, fileName))
	must(t, err)
	if info.Size() > 2*compactSize {
		t.Errorf("the file has %d bytes: not compacted", info.Size())
	}
	again := open(t, dir)
	if got := contents(again); !maps.Equal(got, want) {
		t.Errorf("%d records after reopening, %d before", len(got), len(want))
	}
	if _, err := os.Stat(filepath.Join(dir, newName)); !os.IsNotExist(err) {
		t.Errorf("the compaction's file still exists: %v", err)
	}
}

// TestSurvivesAKill kills a process that writes. Every record whose Put had returned must exist.
func TestSurvivesAKill(t *testing.T) {
	if dir := os.Getenv("JOURNAL_KILL_DIR"); dir != "" {
		j, _, err := Open(dir)
		must(t, err)
		for i := 0; ; i++ {
			must(t, j.Put(fmt.Sprint("k", i), bytes.Repeat([]byte{'v'}, 100)))
			fmt.Println(i)
		}
	}
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestSurvivesAKill$")
	cmd.Env = append(os.Environ(), "JOURNAL_KILL_DIR="+dir)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	last := -1
	for last < 3000 {
		if _, err := fmt.Fscanln(out, &last); err != nil {
			t.Fatal(err)
		}
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait()
	j := open(t, dir)
	for i := range last + 1 {
		if _, ok := j.Get(fmt.Sprint("k", i)); !ok {
			t.Fatalf("record %d of %d is lost", i, last)
		}
	}
}

// TestFullDisk fills a small file system. Put fails with a clear error, PutUsingReserve and Delete
// still work, and Put works again once there is space.
func TestFullDisk(t *testing.T) {
	hosttest.Root(t)
	dir := t.TempDir()
	must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=2m"))
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	j := open(t, filepath.Join(dir, "j"))
	must(t, j.Put("pod", []byte("running")))
	filler, err := os.Create(filepath.Join(dir, "filler"))
	must(t, err)
	for {
		if _, err := filler.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	var full error
	for i := 0; full == nil && i < 10000; i++ {
		full = j.Put(fmt.Sprint("more", i), make([]byte, 1000))
	}
	if !errors.Is(full, unix.ENOSPC) || !strings.Contains(full.Error(), "free some space") {
		t.Fatalf("put on a full disk: %v", full)
	}
	must(t, j.PutUsingReserve("pod", []byte("stopping")))
	must(t, j.Delete("more0"))
	must(t, filler.Truncate(0))
	must(t, filler.Close())
	must(t, j.Put("later", []byte("works")))
	must(t, j.Close())
	j = open(t, filepath.Join(dir, "j"))
	if got, _ := j.Get("pod"); string(got) != "stopping" {
		t.Errorf("pod is %q", got)
	}
	if _, ok := j.Get("later"); !ok {
		t.Error("the record put after space came back is lost")
	}
	must(t, j.Close())
}

func TestTableSetsBadRecordsAside(t *testing.T) {
	dir := t.TempDir()
	j := open(t, dir)
	type pod struct{ Name string }
	table := NewTable[pod](j, "pods")
	must(t, table.Put("a", pod{"web"}))
	must(t, table.Put("b", pod{"refused"}))
	must(t, j.Put("pods/c", []byte("{not json")))
	got := map[string]pod{}
	bad := table.Load(func(id string, p pod) error {
		if p.Name == "refused" {
			return errors.New("no such sandbox")
		}
		got[id] = p
		return nil
	})
	if len(bad) != 2 || !strings.Contains(bad[0].Error(), "record pods/b is set aside: no such sandbox") {
		t.Errorf("bad: %v", bad)
	}
	if !maps.Equal(got, map[string]pod{"a": {"web"}}) {
		t.Errorf("got %v", got)
	}
	if len(table.Load(func(string, pod) error { return nil })) != 0 {
		t.Error("the bad records are still in the table")
	}
	if v, ok := j.Get("aside/pods/c"); !ok || string(v) != "{not json" {
		t.Errorf("the bad record's bytes are gone: %q", v)
	}
}

func FuzzReplay(f *testing.F) {
	f.Add([]byte(header))
	f.Add(appendRecord(appendRecord([]byte(header), opPut, "k", []byte("v")), opDelete, "k", nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		must(t, os.WriteFile(filepath.Join(dir, fileName), data, 0o600))
		j, _, err := Open(dir)
		if err != nil {
			return
		}
		before := contents(j)
		must(t, j.Put("fuzz", []byte("x")))
		before["fuzz"] = "x"
		must(t, j.Close())
		if got := contents(open(t, dir)); !maps.Equal(got, before) {
			t.Fatalf("before %v, after %v", before, got)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	j := open(b, b.TempDir())
	value := make([]byte, 400)
	for i := 0; b.Loop(); i++ {
		must(b, j.Put(fmt.Sprint(i%100), value))
	}
}

func BenchmarkPutSyncParallel(b *testing.B) {
	j := open(b, b.TempDir())
	value := make([]byte, 400)
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			must(b, j.Put("k", value))
			must(b, j.Sync(b.Context()))
		}
	})
}
