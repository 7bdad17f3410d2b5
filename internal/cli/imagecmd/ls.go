package imagecmd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) ls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List images.",
		Example: `husk image ls
husk image ls -o wide
husk image ls -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.Wide, flags.JSONPath, flags.Columns)
	format := flags.AddFormat(cmd, render.ImageRow{}, "output")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListImages(ctx, &huskv1.ListImagesRequest{})
		if err != nil {
			return err
		}
		slices.SortStableFunc(answer.Images, func(x, y *huskv1.Image) int {
			return cmp.Or(strings.Compare(render.ImageName(x), render.ImageName(y)), strings.Compare(x.Id, y.Id))
		})
		if format.IsSet() {
			return format.Print(t.Out, render.ImageRows(answer.Images, time.Now()))
		}
		if len(answer.Images) == 0 && !o.Structured() {
			_, _ = fmt.Fprintln(t.Errs, "no images: get one with husk image pull or husk image load")
		}
		return o.Print(t.Out, render.ImageViews(answer.Images), func() *render.Table {
			return render.ImageTable(answer.Images, *o == flags.Wide, time.Now())
		})
	})
	return cmd
}
