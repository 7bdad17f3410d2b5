package cli

import (
	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/foreign"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// foreignWord returns the error for a command line that begins with a command of another tool; nil
// if it doesn't. It runs before flags are parsed, because the tool's flags would be refused first.
func foreignWord(root *cobra.Command, args []string) error {
	words := foreign.Words(args)
	cmd, known := root, 0
	for _, word := range words {
		next := subcommand(cmd, word)
		if next == nil {
			break
		}
		cmd, known = next, known+1
	}
	if !cmd.HasSubCommands() { // further words are its arguments
		return nil
	}
	if answer, ok := foreign.Lookup(words, known); ok {
		return usageerror.New("%s", answer)
	}
	return nil
}

func subcommand(cmd *cobra.Command, word string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == word || c.HasAlias(word) {
			return c
		}
	}
	return nil
}

// ComingFrom returns docs/reference/coming-from.md.
func ComingFrom() string {
	return foreign.Reference(func(l foreign.Line) string {
		if err := foreignWord(newRoot(&app{}), l.Args()); err != nil {
			return err.Error()
		}
		return ""
	})
}
