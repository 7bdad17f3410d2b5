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

func (t *tool) prune() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove images that have no name and that no container uses.",
		Example: `husk image prune
husk image prune -a`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also remove images that have a name, if no container uses them")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		r, err := c.PruneImages(ctx, &huskv1.PruneImagesRequest{All: all})
		if err != nil {
			return err
		}
		t.printRemoved(r.Removed)
		_, _ = fmt.Fprintf(t.Out, "freed %s\n", render.Size(r.FreedBytes))
		return nil
	})
	return cmd
}
