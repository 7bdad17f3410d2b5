package help

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Reference documents root and all its commands in Markdown.
func Reference(root *cobra.Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The %s command line\n\nGenerated from the help of the commands: change it there.\n", root.Name())
	document(&b, root)
	return b.String()
}

func document(b *strings.Builder, cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	if cmd.HasParent() {
		fmt.Fprintf(b, "\n## %s\n", cmd.CommandPath())
	}
	fmt.Fprintf(b, "\n%s\n", about(cmd))
	code := func(text string) { fmt.Fprintf(b, "\n```\n%s\n```\n", text) }
	if cmd.HasParent() {
		code(usageLine(cmd))
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n")
		code(cmd.Example)
	}
	documentFlags(b, cmd.LocalFlags())
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			document(b, c)
		}
	}
}

func documentFlags(b *strings.Builder, flags *pflag.FlagSet) {
	var rows []string
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		value, text := pflag.UnquoteUsage(f)
		name := "`--" + strings.TrimSpace(f.Name+" "+value) + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		switch f.DefValue {
		case "", "0", "false", "-1":
		default:
			text += " (default " + f.DefValue + ")"
		}
		rows = append(rows, "| "+name+" | "+strings.ReplaceAll(text, "|", `\|`)+" |\n")
	})
	if len(rows) > 0 {
		b.WriteString("\n| flag | meaning |\n|---|---|\n" + strings.Join(rows, ""))
	}
}
