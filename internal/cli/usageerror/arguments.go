// Package usageerror says what is wrong with a command line.
package usageerror

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

// Error is a command line that makes no sense.
type Error struct{ message string }

func (e Error) Error() string { return e.message }

// Bad is an Error with a message of its own.
func Bad(format string, args ...any) error { return Error{fmt.Sprintf(format, args...)} }

// Misuse says what is wrong with cmd's command line and where to read on.
func Misuse(cmd *cobra.Command, format string, args ...any) error {
	return Error{fmt.Sprintf(format, args...) + ": see " + cmd.CommandPath() + " --help"}
}

// BadFlag says what is wrong with a flag of cmd.
func BadFlag(cmd *cobra.Command, err error) error {
	message := err.Error()
	if number, ok := errors.AsType[*strconv.NumError](err); ok {
		wanted := "it is a number"
		if number.Func == "ParseBool" {
			wanted = "it is true or false"
		}
		message = strings.Replace(message, number.Error(), wanted, 1)
	}
	return Misuse(cmd, "%s", message)
}

// NoSuchCommand is the Args of a command that only groups others.
func NoSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	message := fmt.Sprintf("no command %q", strings.TrimSpace(cmd.CommandPath()+" "+args[0]))
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		message += fmt.Sprintf(", is it %q", near[0])
	}
	return Misuse(cmd, "%s", message)
}

// Takes is the Args of a command with at least low and at most high arguments
// (any number if negative), called what.
func Takes(low, high int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < low:
			return Misuse(cmd, "%s needs %s", cmd.CommandPath(), what)
		case high == 0 && len(args) > 0:
			return Misuse(cmd, "%s takes no arguments, but got %q", cmd.CommandPath(), args[0])
		case high >= 0 && len(args) > high:
			return Misuse(cmd, "%s takes just %s, but got %q too", cmd.CommandPath(), what, args[high])
		}
		for _, arg := range args {
			if arg == "" {
				return Misuse(cmd, "%s got an empty name: %s is wanted", cmd.CommandPath(), what)
			}
		}
		return nil
	}
}
