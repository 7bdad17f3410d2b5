package cli

import (
	"context"
	"fmt"
	"sync"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newStop(a *app) *cobra.Command {
	var grace duration
	cmd := &cobra.Command{
		Use:   "stop NAME...",
		Short: "Stop pods and keep them, so that they can be looked at.",
		Example: `husk stop web
husk stop web db --time 2s
husk stop --time 0 web`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod"),
		ValidArgsFunction: completer{a}.pods,
	}
	cmd.Flags().VarP(&grace, "time", "t", "until what still runs is killed (default: the pod's own grace period)")
	cmd.RunE = a.asks(func(ctx context.Context, c *client.Client, args []string) error {
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

// each does what is asked to all the names at once: grace periods overlap.
func (a *app) each(names []string, do func(string) error) error {
	failures := &complaints{w: a.errs}
	var all sync.WaitGroup
	for _, name := range names {
		all.Go(func() {
			defer terminal.Guard()
			failures.add(do(name))
		})
	}
	all.Wait()
	return failures.outcome()
}
