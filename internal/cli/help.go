package cli

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/usageerror"
)

func newHelp() *cobra.Command {
	return &cobra.Command{
		Use:    "help [COMMAND]",
		Short:  "Show the help of a command.",
		Hidden: true,
		Example: `husk help run
husk help image pull`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return usageerror.Misuse(cmd.Root(), "unknown command %q", "husk "+strings.Join(args, " "))
			}
			return about.Help()
		},
	}
}

// showHelp is the RunE of a command that only groups others.
func showHelp(cmd *cobra.Command, _ []string) error { return cmd.Help() }
