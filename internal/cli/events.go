package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newEvents(a *app) *cobra.Command {
	req := &huskv1.EventsRequest{}
	cmd := &cobra.Command{
		Use:   "events [POD]",
		Short: "Show recent events of pods.",
		Example: `husk events
husk events web
husk events -f
husk events -o json`,
		Args:              usageerror.Takes(0, 1, "the NAME of a pod"),
		ValidArgsFunction: a.completePod,
	}
	cmd.Flags().BoolVarP(&req.Follow, "follow", "f", false, "keep printing new events")
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns)
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if req.Follow && o.Structured() && *o != flags.JSON {
			return usageerror.Misuse(cmd, "--follow prints lines: of the formats, it takes json only, an object for each event")
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		if len(args) > 0 {
			req.Name = args[0]
		}
		if !req.Follow {
			events, err := collectEvents(ctx, c, req)
			if err == nil && len(events) == 0 && !o.Structured() {
				_, _ = fmt.Fprintln(a.errs, "no events since huskd started")
			}
			if err != nil {
				return err
			}
			return o.Print(a.out, render.EventViews(events), func() *render.Table { return render.EventTable(events, true, time.Now()) })
		}
		line := render.EventLine
		if o.Structured() {
			line = eventJSON
		}
		stream, err := c.Events(ctx, req)
		for err == nil {
			var e *huskv1.Event
			if e, err = stream.Recv(); err == nil {
				_, err = fmt.Fprintln(a.out, line(e))
			}
		}
		return err
	})
	return cmd
}

// eventJSON returns an event as JSON in one line.
func eventJSON(e *huskv1.Event) string {
	raw, err := json.Marshal(render.EventViews([]*huskv1.Event{e})[0])
	if err != nil {
		return err.Error() // can't be: it has text and numbers only
	}
	return string(render.CleanJSON(raw))
}

// collectEvents returns the events that huskd remembers.
func collectEvents(ctx context.Context, c *client.Client, req *huskv1.EventsRequest) ([]*huskv1.Event, error) {
	stream, err := c.Events(ctx, req)
	var events []*huskv1.Event
	for err == nil {
		var e *huskv1.Event
		if e, err = stream.Recv(); err == nil {
			events = append(events, e)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return events, err
}
