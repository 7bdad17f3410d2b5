package cli

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newStop(a *app) *cobra.Command {
	var grace flags.Duration
	cmd := &cobra.Command{
		Use:   "stop NAME...",
		Short: "Stop pods, keeping their status and logs until husk rm.",
		Example: `husk stop web
husk stop web db --time 2s
husk stop --time 0 web`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod"),
		ValidArgsFunction: a.completePods,
	}
	cmd.Flags().VarP(&grace, "time", "t", "time to wait before killing what still runs (default: the pod's grace period)")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		has := cmd.Flags().Changed("time")
		return a.each(args, func(name string) error {
			r, err := c.Stop(ctx, &huskv1.StopRequest{Name: name, GraceNs: int64(grace), HasGrace: has})
			if err == nil {
				_, _ = fmt.Fprintf(a.out, "pod %s/%s stopped\n", r.Namespace, r.Name)
			}
			return err
		})
	})
	return cmd
}

// each calls do for all names at once, so that grace periods overlap.
func (a *app) each(names []string, do func(string) error) error {
	failures := &errorPrinter{w: a.errs}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			defer terminal.Guard()
			failures.add(do(name))
		})
	}
	all.Wait()
	return failures.result()
}
