package conmon

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestParseReport(t *testing.T) {
	for line, want := range map[string]Report{
		`{"pid": 42}` + "\n":      {42, ""},
		`{"data": 42}` + "\n":     {42, ""},
		`{"exit_code": 0}` + "\n": {0, ""},
		`{"exit_code": -1, "message": "command timed out"}` + "\n": {-1, "command timed out"},
		`{"pid": -1, "message": "a \"b\"\nc\td\u000d"}` + "\n":     {-1, "a \"b\"\nc\td\r"},
		"{\"pid\": -1, \"message\": \"\x1f\xff\"}\n":               {-1, "\ufffd"},
	} {
		if got, err := parseReport([]byte(line)); err != nil || got != want {
			t.Errorf("report %q is %+v, %v; want %+v", line, got, err, want)
		}
	}
	for _, line := range []string{"", "\n", "{}", "null", "[]", "{", `{"pid":"x"}`, `{"other":1}`, `{"message":"x"}`} {
		if got, err := parseReport([]byte(line)); err == nil {
			t.Errorf("report %q is %+v, want an error", line, got)
		}
	}
}

func FuzzParseReport(f *testing.F) {
	f.Add([]byte(`{"pid": -1, "message": "x"}`))
	f.Fuzz(func(_ *testing.T, line []byte) { _, _ = parseReport(line) })
}

// script writes a shell script in place of conmon.
func script(t *testing.T, body string) Launch {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "conmon")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Launch{Path: path, Dir: dir, State: filepath.Join(dir, "state"), Stdio: [3]int{None, None, None}}
}

func start(t *testing.T, l Launch) *Conmon {
	t.Helper()
	c, err := Start(l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pidfd.End(context.Background(), c.Process); err != nil {
			t.Error(err)
		}
		c.Close()
	})
	return c
}

func TestStart(t *testing.T) {
	l := script(t, `echo '{"pid": 7}' >&3; echo "$# $1 $2 $4 $5 $PATH $TMPDIR" >&2; pwd >&2; cat >&2; echo '{"data": 8}' >&3`)
	l.Args = []string{"--cid", "x y"}
	c := start(t, l)
	for _, want := range []int{7, 8} {
		if got, err := c.Next(t.Context()); err != nil || got.Value != want {
			t.Fatalf("the next report is %+v, %v; want %d", got, err, want)
		}
	}
	if _, err := c.Next(t.Context()); !errors.Is(err, io.EOF) {
		t.Errorf("Next after the last report: %v, want EOF", err)
	}
	if err := pidfd.Wait(t.Context(), c.PIDFD); err != nil {
		t.Fatal(err)
	}
	// The script prints its arguments, environment and directory, and the content of stdin.
	want := "5 --sync --persist-dir --cid x y " + Path + " .\n" + l.Dir + "\n"
	if got := c.Stderr(); got != want {
		t.Errorf("the script printed %q, want %q", got, want)
	}
}

func TestStartFails(t *testing.T) {
	for name, spoil := range map[string]func(*Launch){
		"no such program":   func(l *Launch) { l.Path += "x" },
		"no such directory": func(l *Launch) { l.Dir += "/x" },
		"a directory":       func(l *Launch) { l.Path = l.Dir },
	} {
		before, _ := os.ReadDir("/proc/self/fd")
		l := script(t, "exit 0")
		spoil(&l)
		if c, err := Start(l); err == nil || !strings.Contains(err.Error(), l.Path) {
			t.Errorf("Start with %s: %v, %v; want an error with the path", name, c, err)
		}
		if after, _ := os.ReadDir("/proc/self/fd"); len(after) > len(before) {
			t.Errorf("Start with %s leaks file descriptors", name)
		}
	}
}

func TestNextContext(t *testing.T) {
	c := start(t, script(t, "sleep 1000"))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if got, err := c.Next(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Next: %+v, %v; want a timeout", got, err)
	}
}

func TestFind(t *testing.T) {
	l := script(t, `echo '{"pid": 7}' >&3; sleep 1000`)
	if p, ok := Find(l.State); ok {
		t.Errorf("found %+v before the start", p)
	}
	c := start(t, l)
	if _, err := c.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p, ok := Find(l.State); !ok || p != c.Process {
		t.Errorf("found %+v, %v; want %+v", p, ok, c.Process)
	}
	if p, ok := Find(l.State + "x"); ok {
		t.Errorf("found %+v with another state directory", p)
	}
}

// TestControlMessagesDontMerge checks that each read of a FIFO returns one message.
func TestControlMessagesDontMerge(t *testing.T) {
	bundle := t.TempDir()
	fifo := filepath.Join(bundle, sizeFIFO)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Resize(bundle, oci.Size{}); !errors.Is(err, ErrGone) {
		t.Errorf("Resize without a reader: %v, want %v", err, ErrGone)
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sizes := []oci.Size{{Width: 80, Height: 24}, {Width: 65535, Height: 65535}, {}}
	for _, size := range sizes {
		if err := Resize(bundle, size); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"24 80\n", "65535 65535\n", "0 0\n"} {
		buf := make([]byte, 199) // as conmon does
		n, err := f.Read(buf)
		if got := strings.TrimLeft(string(buf[:n]), " "); got != want || err != nil {
			t.Errorf("read %q, %v; want %q", got, err, want)
		}
	}
	if err := Resize(t.TempDir(), oci.Size{}); !errors.Is(err, ErrGone) {
		t.Errorf("Resize without a FIFO: %v, want %v", err, ErrGone)
	}
}

func TestReopenLogFails(t *testing.T) {
	bundle, logs := t.TempDir(), t.TempDir()
	log := filepath.Join(logs, "0.log")
	if err := ReopenLog(t.Context(), bundle, log); !errors.Is(err, ErrGone) {
		t.Errorf("ReopenLog without conmon: %v, want %v", err, ErrGone)
	}
	if left, _ := os.ReadDir(logs); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := ReopenLog(t.Context(), bundle, filepath.Join(logs, "missing", "0.log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("ReopenLog without the log's directory: %v, want %v", err, os.ErrNotExist)
	}
	// A conmon that doesn't react.
	fifo := filepath.Join(bundle, controlFIFO)
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := ReopenLog(ctx, bundle, log); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ReopenLog without a reaction: %v, want a timeout", err)
	}
}

func TestAttachFails(t *testing.T) {
	bundle := t.TempDir()
	for name, prepare := range map[string]func() error{
		"no bundle": func() error { return os.Remove(bundle) },
		"no socket": func() error { return os.Mkdir(bundle, 0o755) },
	} {
		if name == "no socket" {
			_ = os.RemoveAll(bundle)
		}
		if err := prepare(); err != nil {
			t.Fatal(err)
		}
		if _, err := Attach(t.Context(), bundle); !errors.Is(err, ErrGone) {
			t.Errorf("Attach with %s: %v, want %v", name, err, ErrGone)
		}
	}
}

func TestRemoveFiles(t *testing.T) {
	bundle := t.TempDir()
	for _, name := range []string{"attach", "ctl", "winsz", "oom", "conmon-term.AB12CD", "config.json", "mine"} {
		if err := os.WriteFile(filepath.Join(bundle, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		RemoveFiles(bundle)
	}
	RemoveFiles(filepath.Join(bundle, "missing"))
	left, _ := os.ReadDir(bundle)
	if len(left) != 2 || left[0].Name() != "config.json" || left[1].Name() != "mine" {
		t.Errorf("files left: %v", left)
	}
}
