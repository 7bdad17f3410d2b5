package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newLogs(a *app) *cobra.Command {
	req := &huskv1.LogsRequest{}
	var since string
	var latest, all bool
	cmd := &cobra.Command{
		Use:   "logs NAME",
		Short: "Print the logs of a container; its standard error goes to standard error.",
		Long: `Print the logs of a container; its standard error goes to standard error.

On a terminal, control sequences except colours are shown as text, so that a
program can't change what else is there. A file or pipe gets the bytes.

-l is podman's "latest": a selector by labels, as kubectl's -l is, would have to
print several pods at once, which husk logs doesn't.`,
		Example: `husk logs web
husk logs -f -n 20 web
husk logs -p deployment/web
husk logs -f web --all-containers`,
		Args: func(cmd *cobra.Command, args []string) error {
			if latest {
				return usageerror.Takes(0, 0, "")(cmd, args)
			}
			return usageerror.Takes(1, 1, "the NAME of a pod or the ID of a container")(cmd, args)
		},
		ValidArgsFunction: a.completePod,
	}
	f := cmd.Flags()
	f.BoolVarP(&req.Follow, "follow", "f", false, "keep printing new lines")
	f.Int64VarP(&req.Tail, "tail", "n", -1, "print only the last `N` lines of each container; -1 for all")
	a.addContainer(cmd, &req.Container)
	f.BoolVar(&all, "all-containers", false, "print the logs of all containers of the pod, one after the other, or with -f as they come")
	f.BoolVarP(&latest, "latest", "l", false, "print the logs of the newest pod, without a NAME")
	f.BoolVar(&req.Timestamps, "timestamps", false, "print the time before each line")
	f.BoolVarP(&req.Previous, "previous", "p", false, "print the logs of the container's previous run")
	f.StringVar(&since, "since", "", "print only lines since `TIME`: a duration such as 10m, or 2026-01-02T15:04:05Z")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if all && req.Container != "" {
			return usageerror.Misuse(cmd, "--all-containers excludes -c")
		}
		if req.SinceNs, err = parseSince(since, time.Now()); err != nil {
			return usageerror.Misuse(cmd, "%v", err)
		}
		return nil
	}
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		if !latest && !all {
			req.Name = args[0]
			return a.logs(ctx, c, req)
		}
		answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
		if err != nil {
			return err
		}
		var p *huskv1.Pod
		if latest {
			p, err = latestPod(answer.Pods)
		} else {
			p, err = findPod(answer.Pods, args[0])
		}
		if err != nil {
			return err
		}
		req.Name = p.Namespace + "/" + p.Name
		if !all {
			return a.logs(ctx, c, req)
		}
		return a.logs(ctx, c, eachContainer(p, req)...)
	})
	return cmd
}

// eachContainer returns req for each container of the pod that has been created. A container
// without a previous run has nothing to print with --previous.
func eachContainer(p *huskv1.Pod, req *huskv1.LogsRequest) []*huskv1.LogsRequest {
	var requests []*huskv1.LogsRequest
	for _, one := range p.Containers {
		if one.Id == "" || req.Previous && one.Restarts == 0 {
			continue
		}
		of := proto.CloneOf(req)
		of.Container = one.Name
		requests = append(requests, of)
	}
	return requests
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

// logs prints the logs of the requests: one after the other, or all at once if they follow. The
// requests are alike except for the container.
func (a *app) logs(ctx context.Context, c *client.Client, requests ...*huskv1.LogsRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	lines := make(chan *huskv1.LogsResponse, 256)
	failures := make([]error, len(requests))
	var all sync.WaitGroup
	atOnce := len(requests) > 0 && requests[0].Follow
	go func() {
		defer terminal.Guard()
		defer close(lines)
		for i, req := range requests {
			all.Go(func() {
				defer terminal.Guard()
				failures[i] = receiveLines(ctx, c, req, lines)
			})
			if !atOnce {
				all.Wait()
			}
		}
		all.Wait()
	}()
	if err := a.writeLines(lines, len(requests) > 0 && requests[0].Timestamps); err != nil {
		return err
	}
	return errors.Join(failures...)
}

// receiveLines sends the lines of one container's log to lines.
func receiveLines(ctx context.Context, c *client.Client, req *huskv1.LogsRequest, lines chan<- *huskv1.LogsResponse) error {
	stream, err := c.Logs(ctx, req)
	if err != nil {
		return err
	}
	for {
		line, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case lines <- line:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// writeLines prints lines until the channel is closed. It collects the lines that have arrived
// already, so that a long log needs few writes, and keeps the two outputs in order in case they are
// the same terminal.
func (a *app) writeLines(lines <-chan *huskv1.LogsResponse, timestamps bool) error {
	out := bufio.NewWriterSize(a.out, 64<<10)
	errs := bufio.NewWriterSize(a.errs, 64<<10)
	defer errs.Flush()
	defer out.Flush()
	shown := map[*bufio.Writer]bool{out: terminal.Is(a.out), errs: terminal.Is(a.errs)}
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
		if shown[to] {
			line.Line = []byte(render.LogLine(string(line.Line)))
		}
		_, _ = to.Write(line.Line)
		if err := to.WriteByte('\n'); err != nil {
			return err
		}
	}
}

// logTime is RFC 3339 with all nine digits, so that lines stay aligned.
const logTime = "2006-01-02T15:04:05.000000000Z07:00"
