package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove stopped pods, or workloads, and everything that belongs to them.",
		Example: `husk rm web
husk rm deployment/web
husk rm -f web db`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod, or a workload such as deployment/web"),
		ValidArgsFunction: a.completePods,
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop running pods first")
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		return a.each(args, func(name string) error {
			r, err := c.Remove(ctx, &huskv1.RemoveRequest{Name: name, Force: force})
			if err == nil {
				_, _ = fmt.Fprintf(a.out, "%s %s/%s removed\n", cmp.Or(r.Kind, "pod"), r.Namespace, r.Name)
			}
			return err
		})
	})
	return cmd
}
