package cli

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newTop(a *app) *cobra.Command {
	var t top
	var once bool
	cmd := &cobra.Command{
		Use:   "top [POD]",
		Short: "Show the resource usage of pods.",
		Long: `Show the resource usage of pods.

The columns are CPU time, memory that can't be reclaimed (the working set),
processes and threads, and network traffic. Rates cover the last second.

On a terminal the table is redrawn until q or ctrl-c. The keys n, c, m, p and t
sort it by name, CPU, memory, processes (pids) or network traffic. With a POD,
each of its containers has a row.`,
		Example: `husk top
husk top web
husk top --containers --sort-by memory --once
husk top -o json`,
		Args:              podWord(usageerror.Takes(0, 1, "the NAME of a pod")),
		ValidArgsFunction: a.completePod,
	}
	cmd.Flags().BoolVar(&once, "once", false, "print the table once, as --no-stream does")
	cmd.Flags().BoolVar(&t.containers, "containers", false, "print a row for each container")
	cmd.Flags().StringVar(&t.sortBy, "sort-by", "name", strings.Join(render.UsageOrders, ", ")+"; the largest usage comes first")
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "no-stream" { // docker's and podman's name
			name = "once"
		}
		return pflag.NormalizedName(name)
	})
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions(render.UsageOrders, cobra.ShellCompDirectiveNoFileComp))
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if args = withoutPodWord(args); len(args) == 1 && slices.Contains(podWords, args[0]) {
			args = nil
		}
		t.pod = strings.Join(args, "")
		if !slices.Contains(render.UsageOrders, t.sortBy) {
			return usageerror.Misuse(cmd, "--sort-by: %q is not one of %s", t.sortBy, strings.Join(render.UsageOrders, ", "))
		}
		t.containers = t.containers || len(args) > 0
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		t.client = c
		if err := t.update(ctx); err != nil {
			return err
		}
		if err := t.next(ctx); err != nil {
			return err
		}
		if *o == flags.Table && !once && terminal.Fancy(a.out) {
			return t.follow(ctx, a.out)
		}
		if len(t.views) == 0 && *o == flags.Table {
			_, _ = fmt.Fprintln(a.errs, noRunningPods)
		}
		return o.Print(a.out, t.views, t.table)
	})
	return cmd
}

// usageInterval is the time between two samples, over which rates are computed.
const usageInterval = time.Second

// top samples the usage of pods.
type top struct {
	client     *client.Client
	pod        string // empty for all
	sortBy     string // one of render.UsageOrders
	containers bool   // a row for each container

	last  []*huskv1.PodUsage
	views []render.UsageView // of the last sample
}

func (t *top) table() *render.Table { return render.UsageTable(t.views, t.containers) }

// update takes a sample and computes the views from it and the one before.
func (t *top) update(ctx context.Context) error {
	answer, err := t.client.Usage(ctx, &huskv1.UsageRequest{Name: t.pod})
	if err != nil {
		return err
	}
	t.views = render.UsageViews(t.last, answer.Pods)
	render.SortUsage(t.views, t.sortBy)
	t.last = answer.Pods
	return nil
}

// next waits for the interval to pass, then updates.
func (t *top) next(ctx context.Context) error {
	select {
	case <-time.After(usageInterval):
		return t.update(ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// follow redraws the table in place on a terminal until q is typed, ctx ends or an update fails.
// The last table stays on the screen.
func (t *top) follow(ctx context.Context, on *os.File) error {
	keys := terminal.Keys(os.Stdin)
	draw := func() []string {
		var b strings.Builder
		if keys != nil {
			fmt.Fprintf(&b, "by %s; n name, c cpu, m memory, p pids, t traffic, q quit\n", t.sortBy)
		}
		_ = t.table().Write(&b, true) // a Builder doesn't fail
		return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
	}
	lines := draw()
	live := terminal.NewLive(on, func(render.Canvas) []string { return lines })
	defer func() {
		live.Close()
		_ = t.table().Write(on, true) // the error that ended it matters more
	}()
	tick := time.NewTicker(usageInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case key := <-keys:
			if key == 'q' {
				return nil
			}
			if key == terminal.CtrlZ {
				live.Above(func() { terminal.Suspend(os.Stdin) })
			}
			if i := slices.IndexFunc(render.UsageOrders, func(order string) bool { return order[0] == key }); i >= 0 {
				t.sortBy = render.UsageOrders[i]
				render.SortUsage(t.views, t.sortBy)
			}
		case <-tick.C:
			if err := t.update(ctx); err != nil {
				return err
			}
		}
		live.Update(func() { lines = draw() })
	}
}
