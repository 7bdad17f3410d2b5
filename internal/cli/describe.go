package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// podWords are kubectl's words for pods, as in "describe pod web" and "top pods".
var podWords = []string{"pod", "pods", "po"}

// withoutPodWord removes such a word before other arguments.
func withoutPodWord(args []string) []string {
	if len(args) > 1 && slices.Contains(podWords, args[0]) {
		return args[1:]
	}
	return args
}

// podWord returns the Args of a command that may have such a word before its arguments.
func podWord(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error { return check(cmd, withoutPodWord(args)) }
}

func newDescribe(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe POD",
		Short: "Describe a pod: its network, containers, probes, mounts and events.",
		Example: `husk describe web
husk describe kube-system/dns`,
		Args:              podWord(usageerror.Takes(1, 1, "the NAME of a pod")),
		ValidArgsFunction: a.completePod,
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		args = withoutPodWord(args)
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
