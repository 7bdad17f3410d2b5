package logs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// monitor writes a log like conmon: numbered lines, some of them in parts.
type monitor struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	file *os.File
	next int
}

func newMonitor(t *testing.T, path string) *monitor {
	m := &monitor{t: t, path: path}
	if err := m.reopen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.file.Close() })
	return m
}

func (m *monitor) reopen() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, err := os.OpenFile(m.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil && m.file != nil {
		_ = m.file.Close()
	}
	m.file = f
	return err
}

// write writes lines. The file may be reopened between the parts of a line.
func (m *monitor) write(lines int) {
	for range lines {
		stamp := time.Unix(int64(m.next), 0).UTC().Format(time.RFC3339Nano)
		records := []string{fmt.Sprintf("%s stdout F %d\n", stamp, m.next)}
		if m.next%5 == 0 {
			records = []string{stamp + " stdout P \n", records[0]}
		}
		for _, r := range records {
			m.mu.Lock()
			if _, err := m.file.WriteString(r); err != nil {
				m.t.Error(err)
			}
			m.mu.Unlock()
		}
		m.next++
	}
}

// inOrder checks that lines are consecutive numbers that end before last, and returns the first
// number.
func inOrder(t *testing.T, lines []string, last int) int {
	t.Helper()
	if len(lines) == 0 {
		t.Fatal("no lines")
	}
	first, err := strconv.Atoi(lines[0])
	if err != nil {
		t.Fatal(err)
	}
	for i, line := range lines {
		if line != strconv.Itoa(first+i) {
			t.Fatalf("line %d is %q, want %d", i, line, first+i)
		}
	}
	if first+len(lines) != last {
		t.Fatalf("the last line is %d, want %d", first+len(lines)-1, last-1)
	}
	return first
}

func TestRotate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	m := newMonitor(t, path)
	r := Rotation{MaxSize: 2000, MaxFiles: 4}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	rotate := func() {
		t.Helper()
		if err := errors.Join(r.Rotate(path, now, m.reopen), Compress(path)); err != nil {
			t.Fatal(err)
		}
	}
	rotate() // the log is empty
	if old, _ := rotatedPaths(path); len(old) > 0 {
		t.Errorf("an empty log was rotated: %v", old)
	}
	for range 3 {
		m.write(100)
		rotate()
	}
	m.write(10)
	if first := inOrder(t, read(t, path, Options{Tail: -1}), m.next); first != 0 {
		t.Errorf("the lines before %d are lost", first)
	}
	old, _ := rotatedPaths(path)
	var names []string
	for _, p := range old {
		names = append(names, strings.TrimPrefix(p, path))
	}
	// The clock stood still, but the names still sort.
	if want := []string{".20260102-030405.gz", ".20260102-030406.gz", ".20260102-030407"}; !slices.Equal(names, want) {
		t.Errorf("rotated files %v, want %v", names, want)
	}
	now = now.Add(-time.Hour) // it was set back
	m.write(100)
	rotate()
	m.write(5)
	if first := inOrder(t, read(t, path, Options{Tail: -1}), m.next); first != 100 {
		t.Errorf("the oldest line is %d, want 100", first)
	}
	for _, n := range []int{0, 1, 5, 6, 100, 110, 111, 112, 205, 206, 314, 315, 316, 1000} {
		all := read(t, path, Options{Tail: -1})
		if got, want := read(t, path, Options{Tail: n}), all[max(0, len(all)-n):]; !slices.Equal(got, want) {
			t.Errorf("tail %d has %d lines, want %d", n, len(got), len(want))
		}
	}
	if got := read(t, path, Options{Tail: -1, Since: time.Unix(250, 0)}); inOrder(t, got, m.next) != 250 {
		t.Errorf("first line with Since: %s", got[0])
	}
	if err := Remove(path); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("files left: %v", left)
	}
}

// TestRotateFails checks that no lines are lost when a rotation fails.
func TestRotateFails(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	m := newMonitor(t, path)
	m.write(100)
	r := Rotation{MaxSize: 100, MaxFiles: 3}
	deaf := errors.New("no answer")
	if err := r.Rotate(path, time.Now(), func() error { return deaf }); !errors.Is(err, deaf) {
		t.Errorf("%v", err)
	}
	inOrder(t, read(t, path, Options{Tail: -1}), 100)
	// A crash between the rename and the new file. The next rotation repairs it.
	if err := os.Rename(path, path+".20260102-030405"); err != nil {
		t.Fatal(err)
	}
	m.write(10)
	inOrder(t, read(t, path, Options{Tail: -1}), 110)
	if err := r.Rotate(path, time.Now(), m.reopen); err != nil {
		t.Fatal(err)
	}
	m.write(10)
	inOrder(t, read(t, path, Options{Tail: -1}), 120)
	// A crash during compression leaves both files, or an incomplete one.
	data, err := os.ReadFile(path + ".20260102-030405")
	if err != nil {
		t.Fatal(err)
	}
	if err := compress(path + ".20260102-030405"); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{".20260102-030405": data, ".20260102-030406.tmp": []byte("x")} {
		if err := os.WriteFile(path+name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	inOrder(t, read(t, path, Options{Tail: -1}), 120)
	m.write(100)
	if err := r.Rotate(path, time.Now(), m.reopen); err != nil {
		t.Fatal(err)
	}
	m.write(1)
	inOrder(t, read(t, path, Options{Tail: -1}), m.next)
}

// TestFollowAcrossRotations follows a log that is rotated often.
func TestFollowAcrossRotations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "0.log")
	m := newMonitor(t, path)
	m.write(50)
	r := Rotation{MaxSize: 500, MaxFiles: 100}
	at := time.Now()
	ended := make(chan struct{})
	var lines []string
	read := make(chan error)
	progress := make(chan struct{}, 10000)
	go func() {
		read <- Read(t.Context(), path, Options{Tail: -1, Follow: true, Ended: ended}, func(l Line) error {
			lines = append(lines, string(l.Text))
			progress <- struct{}{}
			return nil
		})
	}()
	for range 30 {
		at = at.Add(time.Second)
		m.write(40)
		if err := r.Rotate(path, at, m.reopen); err != nil {
			t.Fatal(err)
		}
		// The reader must not fall behind by more than about one rotation.
		for deadline := time.Now().Add(20 * time.Second); len(progress) < m.next-40; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("only %d of %d lines were read", len(progress), m.next)
			}
		}
	}
	m.write(3)
	close(ended)
	if err := <-read; err != nil {
		t.Fatal(err)
	}
	if first := inOrder(t, lines, m.next); first != 0 {
		t.Errorf("the first line is %d", first)
	}
}
