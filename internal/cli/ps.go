package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// noRunningPods is the hint for an empty list of running pods.
const noRunningPods = "no running pods: husk ps -a also lists those that have ended"

func newPs(a *app) *cobra.Command {
	var (
		all, containers, quiet bool
		namespace, selector    string
	)
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List pods.",
		Example: `husk ps
husk ps -a -o wide
husk ps -n shop -l app=web -q
husk ps -o custom-columns=NAME:.name,IP:.ips[0]`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include pods that have ended or were stopped")
	cmd.Flags().BoolVar(&containers, "containers", false, "print a row for each container")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the names, as other commands take them")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "only pods whose labels this selector chooses, as in app=web,tier!=cache")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.Wide, flags.JSONPath, flags.Columns)
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		chosen, err := labels.Parse(selector)
		if err != nil {
			return usageerror.Misuse(cmd, "selector %q: %v", selector, err)
		}
		answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: all})
		if err != nil {
			return err
		}
		pods := slices.DeleteFunc(answer.Pods, func(p *huskv1.Pod) bool {
			return namespace != "" && p.Namespace != namespace || !chosen.Matches(labels.Set(p.Labels))
		})
		slices.SortStableFunc(pods, func(x, y *huskv1.Pod) int {
			return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
		})
		if quiet {
			for _, p := range pods {
				_, _ = fmt.Fprintln(a.out, render.PodName(p.Namespace, p.Name))
			}
			return nil
		}
		if len(pods) == 0 && !o.Structured() {
			hint := "no pods: start one with husk run FILE"
			switch {
			case namespace != "" || selector != "":
				hint = "no such pods: husk ps -a lists all"
			case !all:
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
