package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// noRunningPods is the hint for an empty list of running pods.
const noRunningPods = "no running pods: husk ps -a also lists those that have ended"

func newPs(a *app) *cobra.Command {
	var all, containers bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List pods.",
		Example: `husk ps
husk ps -a -o wide
husk ps --containers
husk ps -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include pods that have ended or were stopped")
	cmd.Flags().BoolVar(&containers, "containers", false, "print a row for each container")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.Wide)
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: all})
		if err != nil {
			return err
		}
		pods := answer.Pods
		slices.SortStableFunc(pods, func(x, y *huskv1.Pod) int {
			return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
		})
		if len(pods) == 0 && !o.Structured() {
			hint := "no pods: start one with husk run FILE"
			if !all {
				hint = noRunningPods
			}
			_, _ = fmt.Fprintln(a.errs, hint)
		}
		return o.Print(a.out, render.PodViews(pods), func() *render.Table {
			if containers {
				return render.ContainerTable(pods, *o == flags.Wide, time.Now())
			}
			return render.PodTable(pods, *o == flags.Wide, time.Now())
		})
	})
	return cmd
}
