package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// shutdownBudget is the default grace period of pods.
const shutdownBudget = 30 * time.Second

func newShutdown(a *app) *cobra.Command {
	budget := flags.Duration(shutdownBudget)
	cmd := &cobra.Command{
		Use:   "shutdown",
		Short: "Stop all pods, then huskd.",
		Example: `husk shutdown
husk shutdown --budget 5s
husk shutdown --leave`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().Var(&budget, "budget", "time for all pods to stop; what still runs is then killed")
	leave := cmd.Flags().Bool("leave", false, "leave the network of nodes: give pod addresses and the node's record back to the store")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		stream, err := c.Shutdown(ctx, &huskv1.ShutdownRequest{BudgetNs: int64(budget), Leave: *leave})
		if err != nil {
			return err
		}
		for {
			ev, err := stream.Recv()
			switch {
			case errors.Is(err, io.EOF):
				_, _ = fmt.Fprintln(a.out, "huskd is exiting")
				return nil
			case err != nil:
				return err
			case ev.Name == "":
				_, _ = fmt.Fprintln(a.out, render.OneLine(ev.Message))
			default:
				_, _ = fmt.Fprintf(a.out, "pod %s/%s %s\n", ev.Namespace, ev.Name, render.OneLine(ev.Message))
			}
		}
	})
	return cmd
}
