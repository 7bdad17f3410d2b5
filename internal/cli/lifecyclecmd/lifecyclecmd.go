// Package lifecyclecmd has the commands for pods that exist: husk stop, start, restart and kill.
package lifecyclecmd

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the commands need of the command line.
type App struct {
	Out *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// Each calls do for all names at once, so that grace periods overlap.
	Each func(names []string, do func(string) error) error
	// CompletePods completes the names of pods.
	CompletePods cobra.CompletionFunc
	// AddContainer adds the flag that names a container.
	AddContainer func(cmd *cobra.Command, name *string)
}

// New returns the commands.
func New(app App) []*cobra.Command {
	t := &tool{app}
	return []*cobra.Command{t.stop(), t.start(), t.restart(), t.kill()}
}

type tool struct{ App }

func (t *tool) say(format string, args ...any) { _, _ = fmt.Fprintf(t.Out, format+"\n", args...) }

func (t *tool) stop() *cobra.Command {
	var grace flags.Duration
	cmd := &cobra.Command{
		Use:   "stop POD...",
		Short: "Stop pods, keeping their status and logs until husk rm.",
		Example: `husk stop web
husk stop web db --time 2s
husk stop --time 0 web`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod"),
		ValidArgsFunction: t.CompletePods,
	}
	cmd.Flags().VarP(&grace, "time", "t", "time to wait before killing what still runs (default: the pod's grace period)")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		has := cmd.Flags().Changed("time")
		return t.Each(args, func(name string) error {
			r, err := c.Stop(ctx, &huskv1.StopRequest{Name: name, GraceNs: int64(grace), HasGrace: has})
			if err == nil {
				t.say("pod %s/%s stopped", r.Namespace, r.Name)
			}
			return err
		})
	})
	return cmd
}

func (t *tool) start() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "start POD...",
		Short: "Start pods again that were stopped or have ended.",
		Long: `Start pods again that were stopped or have ended.

A pod keeps its name, its volumes and its logs. It gets new containers, and
maybe another address. husk wait waits until it is ready.`,
		Example: `husk start web
husk start web db`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod"),
		ValidArgsFunction: t.CompletePods,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		return t.Each(args, func(name string) error {
			r, err := c.Start(ctx, &huskv1.StartRequest{Name: name})
			switch {
			case err != nil:
				return err
			case r.Ran:
				t.say("pod %s/%s is running already", r.Namespace, r.Name)
			default:
				t.say("pod %s/%s started", r.Namespace, r.Name)
			}
			return nil
		})
	})
	return cmd
}

func (t *tool) restart() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restart POD|WORKLOAD...",
		Short: "Stop pods and start them again, or replace the pods of workloads.",
		Long: `Stop pods and start them again, or replace the pods of workloads.

A pod keeps its name, its volumes and its logs. It gets new containers, and
maybe another address. The pods of a workload are replaced one after the other,
as if its manifest had changed. husk wait waits until they are ready.`,
		Example: `husk restart web
husk restart deployment/web
husk restart statefulset/db daemonset/logs`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod, or a WORKLOAD such as deployment/web"),
		ValidArgsFunction: t.CompletePods,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		return t.Each(args, func(name string) error {
			r, err := c.Restart(ctx, &huskv1.RestartRequest{Name: name})
			switch {
			case err != nil:
				return err
			case r.Kind == "":
				t.say("pod %s/%s restarted", r.Namespace, r.Name)
			default:
				t.say("%s restarted", render.WorkloadName(&huskv1.Workload{Kind: r.Kind, Namespace: r.Namespace, Name: r.Name}))
			}
			return nil
		})
	})
	return cmd
}

func (t *tool) kill() *cobra.Command {
	req := huskv1.KillRequest{}
	cmd := &cobra.Command{
		Use:   "kill POD...",
		Short: "Send a signal to a container's first process.",
		Long: `Send a signal to a container's first process.

A container that ends restarts if the pod's restartPolicy says so: husk stop
stops a pod for good. As the first process of its namespace, a program only
gets the signals that it handles, and KILL.`,
		Example: `husk kill web
husk kill -s HUP web/server`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod, or POD/CONTAINER"),
		ValidArgsFunction: t.CompletePods,
	}
	cmd.Flags().StringVarP(&req.Signal, "signal", "s", "KILL", "name or number of the signal")
	t.AddContainer(cmd, &req.Container)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		return t.Each(args, func(name string) error {
			r, err := c.Kill(ctx, &huskv1.KillRequest{Name: name, Container: req.Container, Signal: req.Signal})
			if err == nil {
				t.say("container %s of pod %s/%s got signal %s", r.Container, r.Namespace, r.Name, req.Signal)
			}
			return err
		})
	})
	return cmd
}
