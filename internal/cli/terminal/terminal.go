// Package terminal owns what a command does to the terminal it runs on: raw
// mode, the unechoed password, the region that is redrawn in place. Whatever
// it changed, Restore puts back, from any goroutine and at any time.
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

// changed holds the state that each changed terminal had before. It is the
// process's own because the terminal is: a signal or a panic anywhere must
// find it.
var changed = struct {
	sync.Mutex
	before map[int]*term.State
}{before: map[int]*term.State{}}

// Is says whether f is a terminal.
func Is(f *os.File) bool { return term.IsTerminal(int(f.Fd())) }

// Fancy says whether f is a terminal on which colour and redrawing are wanted.
func Fancy(f *os.File) bool {
	kind := os.Getenv("TERM")
	return os.Getenv("NO_COLOR") == "" && kind != "" && kind != "dumb" && Is(f)
}

// UTF8 says whether the locale has characters beyond ASCII.
func UTF8() bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// Size of the terminal f in characters; ok is false if f is none or doesn't know.
func Size(f *os.File) (width, height int, ok bool) {
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0 && height > 0
}

// Resized returns a channel that gets a signal whenever the window has
// changed, and what ends that.
func Resized() (<-chan os.Signal, func()) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGWINCH)
	return ch, func() { signal.Stop(ch) }
}

// Raw puts the terminal f into raw mode until Restore. Meanwhile a write to a
// closed pipe is an error as any other: the signal would end the process and
// leave the terminal raw.
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

// remember keeps the oldest state of a terminal. The caller holds the lock.
func remember(fd int, state *term.State) {
	if changed.before[fd] == nil {
		changed.before[fd] = state
	}
}

// Restore puts every changed terminal back as it was.
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

// Guard is deferred by every goroutine that runs while a terminal may be
// changed: a panic in it restores the terminal before it goes on.
func Guard() {
	if r := recover(); r != nil {
		Restore()
		panic(r)
	}
}

// Password asks for a password on the terminal in, without echo. The prompt
// is written to out.
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
	go func() { // left behind reading when ctx ends: the command is over then
		defer Guard()
		p, err := term.ReadPassword(fd)
		answers <- answer{p, err}
	}()
	select {
	case a := <-answers:
		_, _ = out.WriteString("\n") // the one that was typed isn't echoed
		if a.err == nil && len(a.password) == 0 {
			a.err = errors.New("no password was typed")
		}
		return string(a.password), a.err
	case <-ctx.Done():
		_, _ = out.WriteString("\n")
		return "", context.Cause(ctx)
	}
}
