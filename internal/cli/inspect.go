package cli

import (
	"context"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newInspect(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Show everything known about a pod or a container, as JSON.",
		Example: `husk inspect web
husk inspect kube-system/dns -o yaml
husk inspect web -o jsonpath={.Phase}
husk inspect 3f2a1b4c5d6e`,
		Args:              usageerror.Takes(1, 1, "the NAME of a pod or the ID of a container"),
		ValidArgsFunction: a.completePod,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath)
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		answer, err := c.Inspect(ctx, &huskv1.InspectRequest{Name: args[0]})
		if err != nil {
			return err
		}
		return o.PrintJSON(a.out, answer.Json)
	})
	return cmd
}
