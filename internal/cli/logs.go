package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newLogs(a *app) *cobra.Command {
	req := &huskv1.LogsRequest{}
	var since string
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of a container; its standard error goes to standard error.",
		Example: `husk logs web
husk logs -f --tail 20 web
husk logs web -c sidecar --since 10m --timestamps
husk logs deployment/web --previous`,
		Args:              usageerror.Takes(1, 1, "the NAME of a pod or the ID of a container"),
		ValidArgsFunction: a.completePod,
	}
	f := cmd.Flags()
	f.BoolVarP(&req.Follow, "follow", "f", false, "keep printing new lines")
	f.Int64Var(&req.Tail, "tail", -1, "print only the last `N` lines; -1 for all")
	a.addContainer(cmd, &req.Container)
	f.BoolVar(&req.Timestamps, "timestamps", false, "print the time before each line")
	f.BoolVar(&req.Previous, "previous", false, "print the logs of the container's previous run")
	f.StringVar(&since, "since", "", "print only lines since `TIME`: a duration such as 10m, or 2026-01-02T15:04:05Z")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if req.SinceNs, err = parseSince(since, time.Now()); err != nil {
			return usageerror.Misuse(cmd, "%v", err)
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		req.Name = args[0]
		return a.logs(ctx, c, req)
	})
	return cmd
}

// addContainer gives cmd the flag -c.
func (a *app) addContainer(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVarP(name, "container", "c", "", "`NAME` of the container, if the pod has several")
	_ = cmd.RegisterFlagCompletionFunc("container", a.completeContainer)
}

// parseSince returns the Unix time in nanoseconds for a duration before now or a time in RFC 3339;
// 0 for "", which means from the beginning.
func parseSince(s string, now time.Time) (int64, error) {
	if s == "" {
		return 0, nil
	}
	if d, err := time.ParseDuration(s); err == nil {
		if d < 0 {
			return 0, fmt.Errorf("--since %s is in the future", s)
		}
		return now.Add(-d).UnixNano(), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return 0, fmt.Errorf("--since %q must be a duration such as 10m or a time such as 2026-01-02T15:04:05Z", s)
	}
	return t.UnixNano(), nil
}

func (a *app) logs(ctx context.Context, c *client.Client, req *huskv1.LogsRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Logs(ctx, req)
	if err != nil {
		return err
	}
	lines := make(chan *huskv1.LogsResponse, 256)
	var failure error
	go func() {
		defer terminal.Guard()
		defer close(lines)
		for {
			line, err := stream.Recv()
			if err != nil {
				failure = err
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				failure = context.Cause(ctx)
				return
			}
		}
	}()
	if err := a.writeLines(lines, req.Timestamps); err != nil {
		return err
	}
	if errors.Is(failure, io.EOF) {
		return nil
	}
	return failure
}

// writeLines prints lines until the channel is closed. It collects the lines that have arrived
// already, so that a long log needs few writes, and keeps the two outputs in order in case they are
// the same terminal.
func (a *app) writeLines(lines <-chan *huskv1.LogsResponse, timestamps bool) error {
	out := bufio.NewWriterSize(a.out, 64<<10)
	errs := bufio.NewWriterSize(a.errs, 64<<10)
	defer errs.Flush()
	defer out.Flush()
	for {
		var line *huskv1.LogsResponse
		select {
		case line = <-lines:
		default:
			if err := errors.Join(out.Flush(), errs.Flush()); err != nil {
				return err
			}
			line = <-lines
		}
		if line == nil {
			return nil
		}
		to, other := out, errs
		if line.Stderr {
			to, other = errs, out
		}
		if err := other.Flush(); err != nil {
			return err
		}
		if timestamps {
			_, _ = to.WriteString(time.Unix(0, line.TimeNs).UTC().Format(logTime) + " ")
		}
		_, _ = to.Write(line.Line)
		if err := to.WriteByte('\n'); err != nil {
			return err
		}
	}
}

// logTime is RFC 3339 with all nine digits, so that lines stay aligned.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"
