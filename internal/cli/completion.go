package cli

import (
	"io"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/usageerror"
)

// shells generate the completion scripts, by the shell's name.
var shells = map[string]func(root *cobra.Command, w io.Writer) error{
	"bash": func(root *cobra.Command, w io.Writer) error { return root.GenBashCompletionV2(w, true) },
	"zsh":  (*cobra.Command).GenZshCompletion,
	"fish": func(root *cobra.Command, w io.Writer) error { return root.GenFishCompletion(w, true) },
}

func newCompletion() *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "Print the completion script for bash, zsh or fish.",
		Example: `source <(husk completion bash)
husk completion zsh > "${fpath[1]}/_husk"
husk completion fish > ~/.config/fish/completions/husk.fish`,
		Args:              usageerror.Takes(1, 1, "a SHELL: bash, zsh or fish"),
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"bash", "zsh", "fish"}, cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			write := shells[args[0]]
			if write == nil {
				return usageerror.Misuse(cmd, "no completion for %q, only for bash, zsh and fish", args[0])
			}
			return write(cmd.Root(), cmd.OutOrStdout())
		},
	}
}
