// Package usageerror makes the errors of invalid command lines.
package usageerror

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Error is the error of an invalid command line.
type Error struct{ message string }

func (e Error) Error() string { return e.message }

// New returns an Error with that message.
func New(format string, args ...any) error { return Error{fmt.Sprintf(format, args...)} }

// Misuse returns an Error for cmd's command line that refers to its help.
func Misuse(cmd *cobra.Command, format string, args ...any) error {
	return Error{fmt.Sprintf(format, args...) + ": see " + cmd.CommandPath() + " --help"}
}

// BadFlag returns the Error for an invalid flag of cmd.
func BadFlag(cmd *cobra.Command, err error) error {
	message := err.Error()
	if number, ok := errors.AsType[*strconv.NumError](err); ok {
		want := "must be a number"
		if number.Func == "ParseBool" {
			want = "must be true or false"
		}
		message = strings.Replace(message, number.Error(), want, 1)
	}
	return Misuse(cmd, "%s", message)
}

// NoSuchCommand is the Args of a command that only groups others.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("unknown command %q", strings.TrimSpace(cmd.CommandPath()+" "+args[0]))
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf(", did you mean %q", near[0])
	}
	return Misuse(cmd, "%s", message)
}

// Takes returns the Args of a command that takes from low to high arguments, any number if high is
// negative. what describes them in errors.
func Takes(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return Misuse(cmd, "%s needs %s", cmd.CommandPath(), what)
		case high == 0 && len(args) > 0:
			return Misuse(cmd, "%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
		case high >= 0 && len(args) > high:
			return Misuse(cmd, "%s takes only %s, but got %q too", cmd.CommandPath(), what, args[high])
		}
		for _, arg := range args {
			if arg == "" {
				return Misuse(cmd, "%s got an empty argument: it needs %s", cmd.CommandPath(), what)
			}
		}
		return nil
	}
}
