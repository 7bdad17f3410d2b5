// Package workloadcmd has the commands for workloads: husk rollout and scale.
package workloadcmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the commands need of the command line.
type App struct {
	Out, Errs *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// Each calls do for all names at once.
	Each func(names []string, do func(string) error) error
	// Complete returns the names that huskd knows for the argument under the cursor.
	Complete func(cmd *cobra.Command, names func(context.Context, *client.Client) []string) ([]cobra.Completion, cobra.ShellCompDirective)
}

// New returns the commands.
func New(app App) []*cobra.Command {
	t := &tool{app}
	return []*cobra.Command{t.rollout(), t.scale()}
}

type tool struct{ App }

func (t *tool) scale() *cobra.Command {
	var replicas string
	cmd := &cobra.Command{
		Use:   "scale WORKLOAD REPLICAS",
		Short: "Set the number of pods of a workload.",
		Long: `Set the number of pods of a workload.

The number stays until the workload's manifest is changed or run again.`,
		Example: `husk scale deployment/web 5
husk scale statefulset/shop/db 0`,
		Args: func(cmd *cobra.Command, args []string) error {
			if replicas != "" {
				args = append(args, replicas)
			}
			return usageerror.Takes(2, 2, "a WORKLOAD, such as deployment/web, and a number of pods")(cmd, args)
		},
		ValidArgsFunction: t.completeWorkload,
	}
	cmd.Flags().StringVar(&replicas, "replicas", "", "the number of pods, if it isn't an argument")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		number := append(args, replicas)[1]
		n, err := strconv.ParseInt(number, 10, 32)
		if err != nil || n < 0 || n > math.MaxInt32 {
			return usageerror.Misuse(cmd, "%q is not a number of pods", number)
		}
		w, err := c.Scale(ctx, &huskv1.ScaleRequest{Name: args[0], Replicas: int32(n)})
		if err == nil {
			_, _ = fmt.Fprintf(t.Out, "%s scaled to %d\n", render.WorkloadName(w), n)
		}
		return err
	})
	return cmd
}

func (t *tool) rollout() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rollout",
		Short: "Show workloads, and how far they are.",
		Example: `husk rollout status
husk rollout status deployment/web --wait`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.status())
	return cmd
}

func (t *tool) status() *cobra.Command {
	var wait bool
	var timeout flags.Duration
	cmd := &cobra.Command{
		Use:   "status [WORKLOAD]",
		Short: "Show how far the workloads are, or one of them.",
		Long: `Show how far the workloads are, or one of them.

With --wait, the exit code is 1 if the workload fails or makes no progress
within its deadline.`,
		Example: `husk rollout status
husk rollout status deployment/web --wait --timeout 5m`,
		Args:              usageerror.Takes(0, 1, ""),
		ValidArgsFunction: t.completeWorkload,
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until nothing more will happen by itself, and print each step")
	cmd.Flags().Var(&timeout, "timeout", "with --wait: stop waiting after this time (default: none)")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns, flags.Name)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		switch {
		case wait && len(args) == 0:
			return usageerror.Misuse(cmd, "--wait needs a WORKLOAD, such as deployment/web")
		case cmd.Flags().Changed("timeout") && !wait:
			return usageerror.Misuse(cmd, "--timeout needs --wait")
		case wait:
			return t.followWorkload(ctx, c, args[0], time.Duration(timeout))
		case len(args) == 1:
			return t.showWorkload(ctx, c, args[0], *o)
		}
		answer, err := c.ListWorkloads(ctx, &huskv1.ListWorkloadsRequest{})
		if err != nil {
			return err
		}
		if len(answer.Workloads) == 0 && !o.Structured() {
			_, _ = fmt.Fprintln(t.Errs, "no workloads: husk run FILE starts those of a manifest")
		}
		return o.Print(t.Out, render.WorkloadViews(answer.Workloads), func() *render.Table {
			return render.WorkloadTable(answer.Workloads, time.Now())
		})
	})
	return cmd
}

func (t *tool) showWorkload(ctx context.Context, c *client.Client, name string, o flags.Output) error {
	stream, err := c.WatchWorkload(ctx, &huskv1.WatchWorkloadRequest{Name: name})
	if err != nil {
		return err
	}
	w, err := stream.Recv()
	if err != nil {
		return err
	}
	list := []*huskv1.Workload{w}
	return o.Print(t.Out, render.WorkloadViews(list), func() *render.Table { return render.WorkloadTable(list, time.Now()) })
}

// followWorkload prints the steps of a workload until it is done. A timeout of 0 means none.
func (t *tool) followWorkload(ctx context.Context, c *client.Client, name string, timeout time.Duration) error {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	stream, err := c.WatchWorkload(ctx, &huskv1.WatchWorkloadRequest{Name: name, Wait: true})
	if err != nil {
		return err
	}
	last := ""
	var w *huskv1.Workload
	for {
		next, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if timeout > 0 && timedOut(err) && w != nil {
			return fmt.Errorf("%s is not done within %s: %s", render.WorkloadName(w), timeout, render.OneLine(w.Message))
		}
		if err != nil {
			return err
		}
		w = next
		if line := render.WorkloadName(w) + " " + strings.ToLower(w.Phase) + ": " + render.OneLine(w.Message); line != last {
			last = line
			_, _ = fmt.Fprintln(t.Out, line)
		}
	}
	if w != nil && (w.Phase == "Failed" || w.Phase == "Stalled") {
		return fmt.Errorf("%s has failed: see husk events and husk ps -a", render.WorkloadName(w))
	}
	return nil
}

// completeWorkloads completes the names of workloads.
func (t *tool) completeWorkloads(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return t.Complete(cmd, workloadNames)
}

// completeWorkload completes the name of a workload as the first argument.
func (t *tool) completeWorkload(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return t.completeWorkloads(cmd, args, typed)
}

func workloadNames(ctx context.Context, c *client.Client) []string {
	answer, err := c.ListWorkloads(ctx, &huskv1.ListWorkloadsRequest{})
	if err != nil {
		return nil
	}
	var names []string
	for _, w := range answer.Workloads {
		names = append(names, render.WorkloadName(w))
	}
	return names
}

// timedOut reports whether a request failed because of its deadline.
func timedOut(err error) bool {
	r, ok := errors.AsType[client.Refused](err)
	return ok && r.Code == codes.DeadlineExceeded
}
