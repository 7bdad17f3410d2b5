package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// The exit codes that are husk's own.
const (
	exitFailure = 1
	exitUsage   = 2
	// exitSession is of an exec or attach that failed before the program or
	// beside it. docker and podman have the same.
	exitSession = 125
)

// interrupted says that a signal ended the command.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted: " + i.signal.String() }

// code is that of a shell for a program that the signal killed.
func (i interrupted) code() int { return 128 + int(i.signal) }

// exit asks for an exit code; err may be nil if there is nothing more to say.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e exit) Unwrap() error { return e.err }

// report prints what failed, one line for each failure, and returns the exit code.
func (a *app) report(err error) int {
	if err == nil {
		return 0
	}
	var why interrupted
	if errors.As(err, &why) {
		return why.code()
	}
	code := exitFailure
	if e, ok := errors.AsType[exit](err); ok {
		code, err = e.code, e.err
	}
	if errors.As(err, new(usageerror.Error)) || errors.As(err, new(client.AddressError)) {
		code = exitUsage
	}
	(&complaints{w: a.errs}).add(err)
	return code
}

// complaints tells people what failed, as soon as it did.
type complaints struct {
	w    io.Writer
	mu   sync.Mutex
	told map[string]bool
	// quiet is an end that needs no words: a signal's.
	quiet error
}

// add prints err, joined errors a line each. The same line is printed only
// once: several requests fail alike when huskd doesn't answer.
func (c *complaints) add(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tell(err)
}

func (c *complaints) tell(err error) {
	if err == nil {
		return
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range many.Unwrap() {
			c.tell(one)
		}
		return
	}
	if errors.As(err, new(interrupted)) {
		c.quiet = err
		return
	}
	if c.told == nil {
		c.told = map[string]bool{}
	}
	lines := []string{err.Error()}
	if errors.As(err, new(client.Refused)) {
		lines = strings.Split(err.Error(), "\n") // huskd gives each failure a line
	}
	for _, line := range lines {
		line = render.OneLine(line)
		if !c.told[line] {
			c.told[line] = true
			_, _ = fmt.Fprintln(c.w, "husk: "+line)
		}
	}
}

// outcome is the error to end with after all is told; nil if nothing failed.
func (c *complaints) outcome() error {
	switch {
	case c.quiet != nil:
		return c.quiet
	case len(c.told) > 0:
		return exit{code: exitFailure}
	}
	return nil
}
