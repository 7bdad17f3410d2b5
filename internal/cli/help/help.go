// Package help writes what a command line says of itself: the help of each
// command and the reference of them all. It knows no command.
package help

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help is the help of a command. It is written by hand, because a template
// would make the linker keep every method there is.
func Help(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString(about(cmd) + "\n")
	section := func(title, body string) {
		if body != "" {
			fmt.Fprintf(&b, "\n%s\n%s\n", title, strings.TrimRight(body, "\n"))
		}
	}
	section("Usage:", "  "+usageLine(cmd))
	section("Examples:", indent(cmd.Example))
	for _, g := range cmd.Groups() {
		section(g.Title, list(cmd, g.ID))
	}
	if cmd.HasAvailableSubCommands() {
		title := "Commands:"
		if len(cmd.Groups()) > 0 {
			title = "Others:"
		}
		section(title, list(cmd, ""))
	}
	section("Flags:", flagLines(cmd.LocalFlags()))
	section("Global flags:", flagLines(cmd.InheritedFlags()))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n%s COMMAND --help tells more of a command.\n", cmd.CommandPath())
	}
	return b.String()
}

func about(cmd *cobra.Command) string {
	if cmd.Long != "" {
		return cmd.Long
	}
	return cmd.Short
}

func usageLine(cmd *cobra.Command) string {
	if cmd.HasSubCommands() {
		return cmd.CommandPath() + " COMMAND"
	}
	return cmd.UseLine()
}

// list has a line for each command of the group.
func list(cmd *cobra.Command, group string) string {
	var b strings.Builder
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() && c.GroupID == group {
			fmt.Fprintf(&b, "  %-*s  %s\n", cmd.NamePadding(), c.Name(), c.Short)
		}
	}
	return b.String()
}

func indent(text string) string {
	if text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(text, "\n", "\n  ")
}

func flagLines(flags *pflag.FlagSet) string {
	if !flags.HasAvailableFlags() {
		return ""
	}
	return flags.FlagUsages()
}
