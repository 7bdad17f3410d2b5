package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
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

// usage is a command line that makes no sense.
type usage struct{ message string }

func (u usage) Error() string { return u.message }

// misuse says what is wrong with cmd's command line and where to read on.
func misuse(cmd *cobra.Command, format string, args ...any) error {
	return usage{fmt.Sprintf(format, args...) + ": see " + cmd.CommandPath() + " --help"}
}

// badFlag says what is wrong with a flag of cmd.
func badFlag(cmd *cobra.Command, err error) error {
	message := err.Error()
	if number, ok := errors.AsType[*strconv.NumError](err); ok {
		wanted := "it is a number"
		if number.Func == "ParseBool" {
			wanted = "it is true or false"
		}
		message = strings.Replace(message, number.Error(), wanted, 1)
	}
	return misuse(cmd, "%s", message)
}

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
	if errors.As(err, new(usage)) || errors.As(err, new(client.AddressError)) {
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

// noSuchCommand is the Args of a command that only groups others.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("no command %q", strings.TrimSpace(cmd.CommandPath()+" "+args[0]))
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf(", is it %q", near[0])
	}
	return misuse(cmd, "%s", message)
}

// takes is the Args of a command with at least low and at most high arguments
// (any number if negative), called what.
func takes(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return misuse(cmd, "%s needs %s", cmd.CommandPath(), what)
		case high == 0 && len(args) > 0:
			return misuse(cmd, "%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
		case high >= 0 && len(args) > high:
			return misuse(cmd, "%s takes just %s, but got %q too", cmd.CommandPath(), what, args[high])
		}
		for _, arg := range args {
			if arg == "" {
				return misuse(cmd, "%s got an empty name: %s is wanted", cmd.CommandPath(), what)
			}
		}
		return nil
	}
}
