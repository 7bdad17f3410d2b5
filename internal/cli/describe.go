package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newDescribe(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe POD",
		Short: "Describe a pod: its network, containers, probes, mounts and events.",
		Example: `husk describe web
husk describe kube-system/dns`,
		Args:              usageerror.Takes(1, 1, "the NAME of a pod"),
		ValidArgsFunction: a.completePod,
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		answer, err := c.Inspect(ctx, &huskv1.InspectRequest{Name: args[0]})
		if err != nil {
			return err
		}
		events, err := collectEvents(ctx, c, &huskv1.EventsRequest{Name: args[0]})
		if err != nil {
			return err
		}
		text, err := render.Description(answer.Json, events, time.Now())
		if err != nil {
			return fmt.Errorf("pod %s: %w", args[0], err)
		}
		_, err = fmt.Fprint(a.out, text)
		return err
	})
	return cmd
}
