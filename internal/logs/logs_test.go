package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func stamp(i int) string {
	return time.Date(2026, 1, 2, 3, 4, i, 0, time.UTC).Format(time.RFC3339Nano)
}

func write(t *testing.T, path string, records ...string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, r := range records {
		if _, err := f.WriteString(r); err != nil {
			t.Fatal(err)
		}
	}
}

func read(t *testing.T, path string, o Options) []string {
	t.Helper()
	var got []string
	if err := Read(t.Context(), path, o, func(l Line) error {
		mark := ""
		if l.Stderr {
			mark = "!"
		}
		got = append(got, mark+string(l.Text))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func TestReadJoinsPartsAndSkipsGarbage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path,
		stamp(1)+" stdout F one\n",
		stamp(2)+" stdout P two,\n",
		stamp(3)+" stderr F three\n",
		"garbage\n\n",
		stamp(4)+" stdout F two too\n",
		stamp(5)+" stdout F \n",
		stamp(6)+" stdout F:more five  spaces\n",
		stamp(7)+" nowhere F lost\n",
		stamp(8)+" stdout P never ended\n",
		stamp(9)+" stdout F cut sho",
	)
	want := []string{"one", "!three", "two,two too", "", "five  spaces", "never ended"}
	if got := read(t, path, Options{Tail: -1}); !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	since, _ := time.Parse(time.RFC3339Nano, stamp(4))
	if got := read(t, path, Options{Tail: -1, Since: since}); !slices.Equal(got, []string{"two too", "", "five  spaces", "never ended"}) {
		t.Errorf("since: %q", got)
	}
}

// TestParts reads each part of a line by itself, and lines without an end.
func TestParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, stamp(1)+" stdout F one\n", stamp(2)+" stdout P tw\n", stamp(3)+" stderr F !\n", stamp(4)+" stdout F o\n", stamp(5)+" stdout P end\n")
	for _, c := range []struct {
		options Options
		want    string
	}{
		{Options{Tail: -1}, "one\n!\ntwo\nend"},
		{Options{Tail: -1, Parts: true}, "one\ntw!\no\nend"},
		{Options{Tail: 1, Parts: true}, "o\nend"},
	} {
		var got []byte
		if err := Read(t.Context(), path, c.options, func(l Line) error {
			if got = append(got, l.Text...); !l.Partial {
				got = append(got, '\n')
			}
			return nil
		}); err != nil || string(got) != c.want {
			t.Errorf("%+v: %q, %v, want %q", c.options, got, err, c.want)
		}
	}
}

func TestMissingFileIsAnEmptyLog(t *testing.T) {
	if got := read(t, filepath.Join(t.TempDir(), "none"), Options{Tail: -1}); got != nil {
		t.Errorf("got %q", got)
	}
}

// TestTail compares the tail with the end of the whole log, for lines and files around the block
// size.
func TestTail(t *testing.T) {
	for _, size := range []int{1, 100, 5000, 70000} {
		for _, lines := range []int{1, 2, 7, 40} {
			path := filepath.Join(t.TempDir(), "log")
			for i := range lines {
				if i%3 == 1 {
					write(t, path, stamp(i)+" stdout P part "+strings.Repeat("p", size)+"\n")
				}
				write(t, path, stamp(i)+fmt.Sprintf(" stdout F %d", i)+strings.Repeat("x", size)+"\n")
			}
			all := read(t, path, Options{Tail: -1})
			for _, n := range []int{0, 1, 2, lines - 1, lines, lines + 5} {
				got := read(t, path, Options{Tail: n})
				want := all[max(0, len(all)-n):]
				if !slices.Equal(got, want) {
					t.Fatalf("size %d, %d lines, tail %d: %d lines, want %d", size, lines, n, len(got), len(want))
				}
			}
		}
	}
}

func TestFollowAcrossRotationUntilTheEnd(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	ended := make(chan struct{})
	lines := make(chan string)
	done := make(chan error, 1)
	go func() {
		done <- Read(t.Context(), path, Options{Tail: -1, Follow: true, Ended: ended}, func(l Line) error {
			lines <- string(l.Text)
			return nil
		})
	}()
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-lines:
			if got != want {
				t.Fatalf("got %q, want %q", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no line, want %q", want)
		}
	}
	write(t, path, stamp(1)+" stdout F one\n", stamp(2)+" stdout F tw")
	expect("one")
	write(t, path, "o\n")
	expect("two")
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write(t, path+".1", stamp(3)+" stdout F three\n")
	expect("three")
	write(t, path, stamp(4)+" stdout F four\n")
	expect("four")
	write(t, path, stamp(5)+" stdout F five\n"+stamp(6)+" stdout P six\n")
	close(ended)
	expect("five")
	expect("six")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestFollowEndsWithItsReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	write(t, path, stamp(1)+" stdout F one\n")
	ctx, cancel := context.WithCancel(t.Context())
	err := Read(ctx, path, Options{Tail: -1, Follow: true, Ended: make(chan struct{})}, func(Line) error { cancel(); return nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("read with a cancelled context: %v", err)
	}
	gone := errors.New("client has disconnected")
	if err := Read(t.Context(), path, Options{Tail: -1}, func(Line) error { return gone }); !errors.Is(err, gone) {
		t.Errorf("read with a failing yield: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(stamp(1) + " stdout F text"))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		all := 0
		_ = Read(t.Context(), path, Options{Tail: -1}, func(Line) error { all++; return nil })
		tail := 0
		_ = Read(t.Context(), path, Options{Tail: 1}, func(Line) error { tail++; return nil })
		if tail > all || bytes.Count(data, []byte("\n")) < all-2 {
			t.Fatalf("%d lines in total, %d in the tail", all, tail)
		}
	})
}
