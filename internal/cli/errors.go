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

// Exit codes of husk itself.
const (
	exitFailure = 1
	exitUsage   = 2
	// exitSession is for an exec or attach that failed, rather than its program. docker and podman
	// use the same code.
	exitSession = 125
)

// interrupted is the error of a command that a signal ended.
type interrupted struct{ signal syscall.Signal }

func (i interrupted) Error() string { return "interrupted: " + i.signal.String() }

// code returns the exit code that a shell reports for a program killed by the signal.
func (i interrupted) code() int { return 128 + int(i.signal) }

// exit is an error with an exit code of its own. err is nil if there is nothing left to print.
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

// report prints err, one line for each failure, and returns the exit code.
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
	(&errorPrinter{w: a.errs}).add(err)
	return code
}

// errorPrinter prints the errors of concurrent requests as they happen. Each line is printed once:
// several requests fail alike when huskd doesn't answer.
type errorPrinter struct {
	w       io.Writer
	mu      sync.Mutex
	printed map[string]bool
	// interrupted is the error of a command that a signal ended. It is not printed.
	interrupted error
}

// add prints err; joined errors get a line each.
func (p *errorPrinter) add(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print(err)
}

// The caller holds p.mu.
func (p *errorPrinter) print(err error) {
	if err == nil {
		return
	}
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range many.Unwrap() {
			p.print(one)
		}
		return
	}
	if errors.As(err, new(interrupted)) {
		p.interrupted = err
		return
	}
	if p.printed == nil {
		p.printed = map[string]bool{}
	}
	lines := []string{err.Error()}
	if errors.As(err, new(client.Refused)) {
		lines = strings.Split(err.Error(), "\n") // huskd gives each failure a line
	}
	for _, line := range lines {
		line = render.OneLine(line)
		if !p.printed[line] {
			p.printed[line] = true
			_, _ = fmt.Fprintln(p.w, "husk: "+line)
		}
	}
}

// result returns the error that the command ends with; nil if nothing failed.
func (p *errorPrinter) result() error {
	switch {
	case p.interrupted != nil:
		return p.interrupted
	case len(p.printed) > 0:
		return exit{code: exitFailure}
	}
	return nil
}
