package imagecmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// usage is what husk image df prints.
type usage struct {
	Bytes            int64       `json:"bytes"` // what images share counts once
	ReclaimableBytes int64       `json:"reclaimableBytes"`
	Images           []usedImage `json:"images"`
}

type usedImage struct {
	ID    string `json:"id"`
	Name  string `json:"name,omitempty"`
	Bytes int64  `json:"bytes"` // with what it shares
	InUse bool   `json:"inUse"`
}

func (t *tool) df() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show what images take on disk, and how much of it husk image prune -a frees.",
		Example: `husk image df
husk image df -o jsonpath={.reclaimableBytes}`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		r, err := c.DiskUsage(ctx, &huskv1.DiskUsageRequest{})
		if err != nil {
			return err
		}
		u := usageOf(r)
		if err := o.Print(t.Out, u, u.table); err != nil || o.Structured() {
			return err
		}
		_, err = fmt.Fprintf(t.Out, "%d images take %s; husk image prune -a frees %s\n", len(u.Images), render.Size(u.Bytes), render.Size(u.ReclaimableBytes))
		return err
	})
	return cmd
}

func usageOf(r *huskv1.DiskUsageResponse) usage {
	u := usage{Images: []usedImage{}}
	for _, k := range r.Kinds {
		if k.Kind != "images" {
			continue
		}
		u.Bytes, u.ReclaimableBytes = k.Bytes, k.ReclaimableBytes
		for _, i := range k.Items {
			u.Images = append(u.Images, usedImage{i.Id, i.Name, i.Bytes, i.Active})
		}
	}
	return u
}

func (u usage) table() *render.Table {
	table := render.NewTable("NAME", "ID", "SIZE", "IN USE")
	for _, i := range u.Images {
		table.Row(i.Name, render.ShortID(i.ID), render.Size(i.Bytes), map[bool]string{true: "yes", false: "no"}[i.InUse])
	}
	return table
}
