// Package help generates the help of each command and the reference page of them all. It knows no
// command.
package help

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Text returns the help of a command. It doesn't use a template, which would make the linker keep
// every exported method.
func Text(cmd *cobra.Command) string {
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
			title = "Other commands:"
		}
		section(title, list(cmd, ""))
	}
	section("Flags:", flagLines(cmd.LocalFlags()))
	section("Global flags:", flagLines(cmd.InheritedFlags()))
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\nRun \"%s COMMAND --help\" for more about a command.\n", cmd.CommandPath())
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

// list returns a line for each command of the group.
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
