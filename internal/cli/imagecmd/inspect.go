package imagecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) inspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect IMAGE...",
		Short: "Show everything known about images, as JSON.",
		Example: `husk image inspect web:1
husk image inspect web:1 -o jsonpath={.Config.Env}
husk image inspect web:1 -o yaml`,
		Args:              usageerror.Takes(1, -1, "an IMAGE"),
		ValidArgsFunction: t.completeImages,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		var all [][]byte
		for _, name := range args {
			answer, err := c.InspectImage(ctx, &huskv1.InspectImageRequest{Name: name})
			if err != nil {
				return err
			}
			all = append(all, answer.Json)
		}
		if len(all) == 1 {
			return o.PrintJSON(t.Out, all[0])
		}
		return o.PrintJSON(t.Out, slices.Concat([]byte("["), bytes.Join(all, []byte(",")), []byte("]")))
	})
	return cmd
}

func (t *tool) history() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history IMAGE",
		Short: "Show how an image was built, the last step first.",
		Example: `husk image history web:1
husk image history web:1 -o json`,
		Args:              usageerror.Takes(1, 1, "an IMAGE"),
		ValidArgsFunction: t.completeFirstImage,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		answer, err := c.InspectImage(ctx, &huskv1.InspectImageRequest{Name: args[0]})
		if err != nil {
			return err
		}
		steps, err := stepsOf(answer.Json)
		if err != nil {
			return err
		}
		return o.Print(t.Out, steps, func() *render.Table { return stepTable(steps, time.Now()) })
	})
	return cmd
}

// step is one of an image's history.
type step struct {
	Created   *time.Time `json:"created,omitempty"`
	CreatedBy string     `json:"createdBy"`
	// Size and Layer are those of the compressed layer that the step made, if it made one.
	Size    int64  `json:"size"`
	Layer   string `json:"layer,omitempty"`
	Comment string `json:"comment,omitempty"`
}

// stepsOf returns the steps of an image, the last one first. Layers that the history doesn't name
// are steps of their own.
func stepsOf(document []byte) ([]step, error) {
	var image struct {
		History []ocispec.History
		Layers  []struct {
			Digest string
			Size   int64
		}
	}
	if err := json.Unmarshal(document, &image); err != nil {
		return nil, fmt.Errorf("huskd's answer is not valid JSON: %w", err)
	}
	steps := []step{}
	layers := image.Layers
	take := func(s step, layer bool) {
		if layer && len(layers) > 0 {
			s.Layer, s.Size, layers = layers[0].Digest, layers[0].Size, layers[1:]
		}
		steps = append(steps, s)
	}
	for _, h := range image.History {
		take(step{Created: h.Created, CreatedBy: h.CreatedBy, Comment: h.Comment}, !h.EmptyLayer)
	}
	for len(layers) > 0 {
		take(step{}, true)
	}
	slices.Reverse(steps)
	return steps, nil
}

func stepTable(steps []step, now time.Time) *render.Table {
	table := render.NewTable("CREATED", "SIZE", "CREATED BY", "COMMENT")
	for _, s := range steps {
		age := ""
		if s.Created != nil {
			age = render.Age(now.Sub(*s.Created))
		}
		const most = 60
		table.Row(age, render.Size(s.Size), render.Cut(render.OneLine(s.CreatedBy), most), render.OneLine(s.Comment))
	}
	return table
}
