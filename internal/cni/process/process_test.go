package process

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "plugin")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestRun(t *testing.T) {
	t.Parallel()
	r := Runner{Log: slog.New(slog.DiscardHandler)}
	path := program(t, `cat; echo " $WHO"; echo noise >&2`)
	out, err := r.Run(t.Context(), path, []byte("hello"), []string{"WHO=world", "PATH=/bin:/usr/bin"})
	if err != nil || string(out) != "hello world\n" {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := r.Run(t.Context(), "/nowhere/plugin", nil, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing program: %v", err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := r.Run(cancelled, path, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// A stdin larger than a pipe's buffer, for a program that doesn't read it.
	if out, err := r.Run(t.Context(), program(t, "echo ok"), make([]byte, 1<<20), nil); err != nil || string(out) != "ok\n" {
		t.Errorf("unread stdin: %q, %v", out, err)
	}
	// A child in its own session is neither killed nor waited for.
	began := time.Now()
	out, err = r.Run(t.Context(), program(t, "setsid sleep 10 & echo ok"), nil, []string{"PATH=/bin:/usr/bin"})
	if took := time.Since(began); err != nil || string(out) != "ok\n" || took > 8*time.Second {
		t.Errorf("with a daemon: %q, %v, after %v", out, err, took)
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mark := "HUSK_TEST=" + dir
	equals := func(want string) func(string) bool { return func(value string) bool { return value == want } }
	var waits []func() error
	for _, env := range []string{mark, mark + "x"} {
		cmd := exec.Command("/bin/sh", "-c", "sleep 1000 & wait")
		cmd.Env = []string{"PATH=/bin:/usr/bin", "A=1", env}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		waits = append(waits, cmd.Wait)
		defer func() { _ = cmd.Process.Kill() }()
	}
	if err := Kill(t.Context(), "HUSK_TEST", equals(dir)); err != nil {
		t.Fatal(err)
	}
	if err := waits[0](); err == nil {
		t.Error("the marked process was not killed")
	}
	if left, err := find("HUSK_TEST", equals(dir+"x")); err != nil || len(left) != 2 {
		t.Errorf("others: %v, %v", left, err)
	}
	if err := Kill(t.Context(), "HUSK_TEST", equals(dir+"x")); err != nil {
		t.Fatal(err)
	}
	_ = waits[1]()
}

func TestLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                             "",
		" a\n\tb\r\n":                  "a b",
		"\x1b[31mred\x00\xff":          "[31mred ?",
		strings.Repeat("x", 600) + "é": "…" + strings.Repeat("x", 510) + "é",
	} {
		if got := Line([]byte(text)); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
