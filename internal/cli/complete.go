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

// completeTime is how long a shell waits for names. Completion that fails is
// silent: the user is in the middle of a line.
const completeTime = time.Second

// completer offers names that huskd knows to the shell.
type completer struct{ *app }

// from asks huskd for names that may stand where the cursor is.
func (o completer) from(cmd *cobra.Command, names func(context.Context, *client.Client) []string) ([]cobra.Completion, cobra.ShellCompDirective) {
	c, err := o.dial()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completeTime)
	defer cancel()
	return names(ctx, c), cobra.ShellCompDirectiveNoFileComp
}

// pods offers pods that aren't on the line yet.
func (o completer) pods(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return o.from(cmd, func(ctx context.Context, c *client.Client) []string {
		var names []string
		for _, p := range listPods(ctx, c) {
			if name := render.PodName(p.Namespace, p.Name); !slices.Contains(args, name) {
				names = append(names, name)
			}
		}
		return names
	})
}

// pod offers pods for the only argument.
func (o completer) pod(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.pods(cmd, args, typed)
}

// container offers the containers of the pod on the line.
func (o completer) container(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.from(cmd, func(ctx context.Context, c *client.Client) []string {
		var names []string
		for _, p := range listPods(ctx, c) {
			if args[0] != render.PodName(p.Namespace, p.Name) && args[0] != p.Namespace+"/"+p.Name {
				continue
			}
			for _, one := range p.Containers {
				names = append(names, one.Name)
			}
		}
		return names
	})
}

// images offers images that aren't on the line yet.
func (o completer) images(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return o.from(cmd, func(ctx context.Context, c *client.Client) []string {
		answer, err := c.ListImages(ctx, &huskv1.ListImagesRequest{})
		if err != nil {
			return nil
		}
		var names []string
		for _, i := range answer.Images {
			for _, tag := range i.Tags {
				if !slices.Contains(args, tag) {
					names = append(names, tag)
				}
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
