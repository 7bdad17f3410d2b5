package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/labels"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// noRunningPods is the hint for an empty list of running pods.
const noRunningPods = "no running pods: husk ps -a also lists those that have ended"

func newPs(a *app) *cobra.Command {
	var (
		all, containers, quiet, watch bool
		namespace, selector           string
	)
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "List pods.",
		Example: `husk ps
husk ps -n shop -l app=web -q
husk ps -w
husk ps -o custom-columns=NAME:.name,IP:.ips[0]`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "include pods that have ended or were stopped")
	cmd.Flags().BoolVar(&containers, "containers", false, "print a row for each container")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print only the names, as other commands take them")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "then print a row for each pod that changes, until an interrupt")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "only pods whose labels this selector chooses, as in app=web,tier!=cache")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.Wide, flags.JSONPath, flags.Columns, flags.Name)
	format := flags.AddFormat(cmd, render.PodRow{}, "output", "quiet", "containers", "watch")
	for _, other := range []string{"quiet", "containers"} {
		cmd.MarkFlagsMutuallyExclusive("watch", other)
	}
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if watch && o.Structured() && *o != flags.JSON {
			return usageerror.Misuse(cmd, "--watch prints lines: of the formats, it takes json only, an object for each change")
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		chosen, err := labels.Parse(selector)
		if err != nil {
			return usageerror.Misuse(cmd, "selector %q: %v", selector, err)
		}
		list := func() ([]*huskv1.Pod, error) { return choosePods(ctx, c, all, namespace, chosen) }
		if watch {
			return a.watchPods(ctx, list, *o)
		}
		pods, err := list()
		if err != nil {
			return err
		}
		if quiet {
			for _, p := range pods {
				_, _ = fmt.Fprintln(a.out, render.PodName(p.Namespace, p.Name))
			}
			return nil
		}
		if format.IsSet() {
			return format.Print(a.out, render.PodRows(pods, time.Now()))
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

// choosePods returns pods, sorted by name.
func choosePods(ctx context.Context, c *client.Client, all bool, namespace string, chosen labels.Selector) ([]*huskv1.Pod, error) {
	answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: all})
	if err != nil {
		return nil, err
	}
	pods := slices.DeleteFunc(answer.Pods, func(p *huskv1.Pod) bool {
		return namespace != "" && p.Namespace != namespace || !chosen.Matches(labels.Set(p.Labels))
	})
	slices.SortStableFunc(pods, func(x, y *huskv1.Pod) int {
		return cmp.Or(strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	return pods, nil
}

// watchInterval is how often husk ps -w asks for the pods.
const watchInterval = 500 * time.Millisecond

// watchPods prints the pods, and then those that have changed or are gone, until ctx ends.
func (a *app) watchPods(ctx context.Context, list func() ([]*huskv1.Pod, error), o flags.Output) error {
	shown := map[string]*huskv1.Pod{} // by UID
	var widths []int
	for {
		pods, err := list()
		if err != nil {
			return err
		}
		gone := maps.Clone(shown)
		var changed []*huskv1.Pod
		for _, p := range pods {
			if last := shown[p.Uid]; last == nil || !proto.Equal(last, p) {
				changed = append(changed, p)
			}
			shown[p.Uid] = p
			delete(gone, p.Uid)
		}
		for uid, p := range gone {
			changed = append(changed, &huskv1.Pod{Namespace: p.Namespace, Name: p.Name, Uid: uid, CreatedNs: p.CreatedNs, Phase: "Removed"})
			delete(shown, uid)
		}
		if o == flags.JSON {
			for _, v := range render.PodViews(changed) {
				if err := json.NewEncoder(a.out).Encode(v); err != nil {
					return err
				}
			}
		} else if widths, err = render.PodTable(changed, o == flags.Wide, time.Now()).Continue(a.out, terminal.Fancy(a.out), widths); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}
