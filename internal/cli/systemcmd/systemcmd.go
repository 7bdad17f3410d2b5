// Package systemcmd has the commands about the node as a whole: husk info, husk system and husk
// kubelet-config.
package systemcmd

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the commands need of the command line.
type App struct {
	In, Out, Errs *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
}

// New returns the commands.
func New(app App) []*cobra.Command {
	t := &tool{app}
	system := &cobra.Command{
		Use:   "system",
		Short: "Describe the node, show what takes disk space, and free it.",
		Example: `husk system df
husk system prune`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	system.AddCommand(t.info("system info"), t.df(), t.prune())
	return []*cobra.Command{t.info("info"), system, t.kubeletConfig()}
}

type tool struct{ App }
