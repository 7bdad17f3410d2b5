package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/session"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newAttach(a *app) *cobra.Command {
	start, tty := &huskv1.SessionStart{}, true
	cmd := &cobra.Command{
		Use:                   "attach NAME [-c NAME]",
		DisableFlagsInUseLine: true,
		Short:                 "Connect this terminal to a container's main program.",
		Long: `Connect this terminal to a container's main program.

To detach and leave the program running, type ctrl-p ctrl-q, or ctrl-c if the
container has no terminal. Exit codes: the program's own when it ends, 0 after
ctrl-p ctrl-q, 125 if husk or huskd failed.`,
		Example: `husk attach web
husk attach game -c server`,
		Args:              usageerror.Takes(1, 1, "the NAME of a pod or the ID of a container"),
		ValidArgsFunction: a.completePod,
	}
	a.addContainer(cmd, &start.Container)
	cmd.Flags().BoolVarP(&start.Stdin, "stdin", "i", true, "pass standard input, as far as the container takes it")
	cmd.Flags().BoolVarP(&tty, "tty", "t", true, "use the container's terminal, if it has one")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		start.Name, start.Tty = args[0], tty && terminal.Is(a.in)
		code, err := a.streams().Run(ctx, c.Attach, start)
		if errors.Is(err, session.ErrDetached) {
			_, _ = fmt.Fprintf(a.errs, "\ndetached: husk attach %s reattaches\n", start.Name)
			return nil
		}
		return exited(code, err)
	})
	return cmd
}
