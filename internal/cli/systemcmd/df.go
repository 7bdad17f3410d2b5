package systemcmd

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// kindView is a kind of things that take disk space, in the output of husk system df.
type kindView struct {
	Kind             string     `json:"kind"`
	Total            int        `json:"total"`
	Active           int32      `json:"active"` // those that something uses
	Bytes            int64      `json:"bytes"`  // shared parts count once
	ReclaimableBytes int64      `json:"reclaimableBytes"`
	Items            []itemView `json:"items"`
}

type itemView struct {
	ID     string `json:"id,omitempty"`
	Name   string `json:"name,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Bytes  int64  `json:"bytes"` // with what it shares
	Active bool   `json:"active"`
}

func (t *tool) df() *cobra.Command {
	var verbose bool
	cmd := &cobra.Command{
		Use:   "df",
		Short: "Show what takes disk space, and how much of it husk system prune frees.",
		Long: `Show what takes disk space, and how much of it husk system prune frees.

Containers are their writable layers, volumes those of claims and the emptyDirs
of pods. RECLAIMABLE is what husk system prune --all --volumes frees. An image
takes the sum of its blobs and its unpacked layers; what images share counts
once in the sum, and for each image in its line.`,
		Example: `husk system df
husk system df -v
husk system df -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "list each image, container, volume and log")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		r, err := c.DiskUsage(ctx, &huskv1.DiskUsageRequest{})
		if err != nil {
			return err
		}
		kinds := kindViews(r.Kinds)
		if err := o.Print(t.Out, kinds, func() *render.Table { return kindTable(kinds) }); err != nil || !verbose || o.Structured() {
			return err
		}
		if _, err := fmt.Fprintln(t.Out); err != nil {
			return err
		}
		return o.Print(t.Out, nil, func() *render.Table { return itemTable(kinds) })
	})
	return cmd
}

func kindViews(kinds []*huskv1.DiskUse) []kindView {
	out := []kindView{}
	for _, k := range kinds {
		v := kindView{k.Kind, len(k.Items), k.Active, k.Bytes, k.ReclaimableBytes, []itemView{}}
		for _, i := range k.Items {
			v.Items = append(v.Items, itemView{i.Id, i.Name, i.Pod, i.Bytes, i.Active})
		}
		out = append(out, v)
	}
	return out
}

func kindTable(kinds []kindView) *render.Table {
	t := render.NewTable("KIND", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE")
	for _, k := range kinds {
		reclaimable := render.Size(k.ReclaimableBytes)
		if k.Bytes > 0 {
			reclaimable += fmt.Sprintf(" (%d%%)", k.ReclaimableBytes*100/k.Bytes)
		}
		t.Row(k.Kind, fmt.Sprint(k.Total), fmt.Sprint(k.Active), render.Size(k.Bytes), reclaimable)
	}
	return t
}

func itemTable(kinds []kindView) *render.Table {
	t := render.NewTable("KIND", "NAME", "POD", "ACTIVE", "SIZE")
	for _, k := range kinds {
		for _, i := range k.Items {
			active := "no"
			if i.Active {
				active = "yes"
			}
			t.Row(k.Kind, cmp.Or(i.Name, i.ID), cmp.Or(i.Pod, "-"), active, render.Size(i.Bytes))
		}
	}
	return t
}
