// Package imagecmd has the commands for images: husk image.
package imagecmd

import (
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the commands need of the command line.
type App struct {
	In, Out, Errs *os.File
	Dial          func() (*client.Client, error)
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// Each calls do for all names at once.
	Each func(names []string, do func(string) error) error
	// Complete returns the names that huskd knows for the argument under the cursor.
	Complete func(cmd *cobra.Command, names func(context.Context, *client.Client) []string) ([]cobra.Completion, cobra.ShellCompDirective)
}

type tool struct{ App }

// New returns the command husk image.
func New(app App) *cobra.Command {
	t := &tool{app}
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Pull, push, load, save, list and remove images.",
		Example: `husk image pull docker.io/library/nginx:latest
husk image load web.tar
husk image ls`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.pull(), t.load(), t.ls(), t.rm(), t.prune(), t.tag(), t.push(), t.save(), t.inspect(), t.history(), t.df())
	return cmd
}

// printImage reports an image that was pulled or loaded.
func (t *tool) printImage(verb string, i *huskv1.Image) {
	_, _ = fmt.Fprintf(t.Out, "%s %s %s %s\n", verb, render.Clean(render.ImageName(i)), render.ShortID(i.Id), render.Size(i.Size))
}

// completeFirstImage completes the name of an image as the first argument.
func (t *tool) completeFirstImage(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return t.completeImages(cmd, args, typed)
}

// completeImages completes the names of images that are not on the line yet.
func (t *tool) completeImages(cmd *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return t.Complete(cmd, func(ctx context.Context, c *client.Client) []string {
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
