package cli

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
)

// completionTimeout is how long the shell waits for names. A completion that fails is silent, since
// the user is in the middle of a line.
const completionTimeout = time.Second

// complete returns the names that huskd knows for the argument under the cursor.
func (a *app) complete(cmd *cobra.Command, names func(context.Context, *client.Client) []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := a.dial()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
	defer cancel()
	return names(ctx, c), cobra.ShellCompDirectiveNoFileComp
}

// completePods completes the names of pods that are not on the line yet.
func (a *app) completePods(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(cmd, func(ctx context.Context, c *client.Client) []string {
		var names []string
		for _, p := range listPods(ctx, c) {
			if name := render.PodName(p.Namespace, p.Name); !slices.Contains(args, name) {
				names = append(names, name)
			}
		}
		return names
	})
}

// completePod completes the name of a pod as the only argument.
func (a *app) completePod(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completePods(cmd, args, typed)
}

// completeContainer completes the containers of the pod that is on the line.
func (a *app) completeContainer(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.complete(cmd, func(ctx context.Context, c *client.Client) []string {
		var names []string
		for _, p := range listPods(ctx, c) {
			if args[0] != render.PodName(p.Namespace, p.Name) && args[0] != p.Namespace+"/"+p.Name {
				continue
			}
			for _, one := range slices.Concat(p.Containers, p.Ephemeral) {
				names = append(names, one.Name)
			}
		}
		return names
	})
}

func listPods(ctx context.Context, c *client.Client) []*huskv1.Pod {
	answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	if err != nil {
		return nil
	}
	return answer.Pods
}
