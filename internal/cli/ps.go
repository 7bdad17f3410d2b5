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
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newPs(a *app) *cobra.Command {
	var all, containers bool
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List the pods.",
		Example: `husk ps
husk ps -a -o wide
husk ps --containers
husk ps -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also the pods that ended or were stopped")
	cmd.Flags().BoolVar(&containers, "containers", false, "a row for each container")
	o := addOutput(cmd, asJSON, asYAML, asWide)
	cmd.RunE = a.asks(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: all})
		if err != nil {
			return err
		}
		pods := answer.Pods
		slices.SortStableFunc(pods, func(x, y *huskv1.Pod) int {
			return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
		})
		if len(pods) == 0 && *o != asJSON && *o != asYAML {
			hint := "no pods: start one with husk run FILE"
			if !all {
				hint = "no pods run: husk ps -a lists those that ended too"
			}
			_, _ = fmt.Fprintln(a.errs, hint)
		}
		return a.show(*o, render.PodViews(pods), func() *render.Table {
			if containers {
				return render.ContainerTable(pods, *o == asWide, time.Now())
			}
			return render.PodTable(pods, *o == asWide, time.Now())
		})
	})
	return cmd
}
