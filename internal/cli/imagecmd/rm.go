package imagecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) rm() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove images.",
		Example: `husk image rm localhost/web:old
husk image rm -f 3f2a1b4c5d6e`,
		Args:              usageerror.Takes(1, -1, "the NAME or ID of an image"),
		ValidArgsFunction: t.completeImages,
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "remove images even if a container uses them")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		return t.Each(args, func(name string) error {
			r, err := c.RemoveImage(ctx, &huskv1.RemoveImageRequest{Name: name, Force: force})
			if err == nil {
				t.printRemoved(r.Removed)
			}
			return err
		})
	})
	return cmd
}

// printRemoved reports the names and images that were removed.
func (t *tool) printRemoved(names []string) {
	for _, name := range names {
		_, _ = fmt.Fprintf(t.Out, "removed %s\n", render.Clean(name))
	}
}
