// Package terminal changes the terminal that a command runs on: raw mode, password prompts, regions
// that are redrawn in place. Restore undoes all changes, from any goroutine and at any time.
package terminal

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"
)

// changed holds the original state of each changed terminal. It is global, as the terminal is:
// after a signal or a panic anywhere, Restore must find it.
var changed = struct {
	sync.Mutex
	before map[int]*term.State
}{before: map[int]*term.State{}}

// Is reports whether f is a terminal.
func Is(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Fancy reports whether f is a terminal on which colours and redrawing are wanted.
func Fancy(f *os.File) bool {
	kind := os.Getenv("TERM")
	return os.Getenv("NO_COLOR") == "" && kind != "" && kind != "dumb" && Is(f)
}

// UTF8 reports whether the locale uses UTF-8.
func UTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// Size returns the size of the terminal f in characters; ok is false if f is not a terminal or
// doesn't know.
func Size(f *os.File) (width, height int, ok bool) {
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// Resized returns a channel that receives a signal when the size of the window has changed, and a
// function that ends that.
func Resized() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}

// Raw puts the terminal f into raw mode until Restore. It also ignores SIGPIPE until then: the
// signal would end the process and leave the terminal raw.
func Raw(f *os.File) error {
	changed.Lock()
	defer changed.Unlock()
	fd := int(f.Fd())
	state, err := term.MakeRaw(fd)
	if err != nil {
		return err
	}
	remember(fd, state)
	signal.Ignore(syscall.SIGPIPE)
	return nil
}

// remember keeps the original state of a terminal. The caller holds changed.Mutex.
func remember(fd int, state *term.State) {
	if changed.before[fd] == nil {
		changed.before[fd] = state
	}
}

// Restore restores the original state of every changed terminal.
func Restore() {
	changed.Lock()
	defer changed.Unlock()
	if len(changed.before) == 0 {
		return
	}
	for fd, state := range changed.before {
		_ = term.Restore(fd, state) // fails only if the terminal is gone
		delete(changed.before, fd)
	}
	signal.Reset(syscall.SIGPIPE)
}

// Guard is deferred by every goroutine that runs while a terminal may be changed, so that a panic
// in it restores the terminal first.
//
//nolint:revive // recover works because the goroutine defers Guard itself
func Guard() {
	if r := recover(); r != nil {
		Restore()
		panic(r)
	}
}

// Password prompts for a password on the terminal in, without echo. The prompt is written to out.
func Password(ctx context.Context, in, out *os.File, prompt string) (string, error) {
	fd := int(in.Fd())
	state, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	changed.Lock()
	remember(fd, state)
	changed.Unlock()
	defer Restore()
	if _, err := out.WriteString(prompt); err != nil {
		return "", err
	}
	type answer struct {
		password []byte
		err      error
	}
	answers := make(chan answer, 1)
	go func() { // blocked in its read if ctx ends; the command is over then
		defer Guard()
		p, err := term.ReadPassword(fd)
		answers <- answer{p, err}
	}()
	select {
	case a := <-answers:
		_, _ = out.WriteString("\n") // the typed newline isn't echoed
		if a.err == nil && len(a.password) == 0 {
			a.err = errors.New("no password was typed")
		}
		return string(a.password), a.err
	case <-ctx.Done():
		_, _ = out.WriteString("\n")
		return "", context.Cause(ctx)
	}
}
