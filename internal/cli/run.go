package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newRun(a *app) *cobra.Command {
	var wait, replace bool
	var timeout duration
	cmd := &cobra.Command{
		Use:   "run FILE...",
		Short: "Start the pods of manifest files.",
		Long: `Start the pods of manifest files.

A file holds one or several YAML or JSON documents; "-" is standard input. With
--wait the exit code is 1 if a pod fails.

A pod that runs already gets the images and the resources of a manifest that was
changed, without being made anew; whatever else was changed needs --replace.`,
		Example: `husk run web.yaml
husk run --replace web.yaml
husk run job.yaml --wait --timeout 1m
generate-manifest | husk run -`,
		Args: usageerror.Takes(1, -1, "the FILE of a manifest"),
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"yaml", "yml", "json"},
			cobra.ShellCompDirectiveFilterFileExt),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "until the pods are ready or, if they don't run for good, completed")
	cmd.Flags().BoolVar(&replace, "replace", false, "stop and make anew what runs with another manifest and can't be changed into this one")
	cmd.Flags().Var(&timeout, "timeout", "with --wait: give up after this time, the pods go on (default: none)")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("timeout") && !wait {
			return usageerror.Misuse(cmd, "--timeout needs --wait")
		}
		manifests, err := a.readManifests(cmd.Context(), args)
		if err != nil {
			return err
		}
		c, err := a.dial()
		if err != nil {
			return err
		}
		for _, m := range manifests {
			m.Wait, m.Replace = wait, replace
		}
		return a.run(cmd.Context(), c, manifests, time.Duration(timeout))
	}
	return cmd
}

// manifestMax is the size of a manifest that fits into a message to huskd with
// room to spare, and far more than a person writes.
const manifestMax = 3 << 20

// readManifests reads all files before any pod is started, so that a misspelt
// name doesn't leave half of them running.
func (a *app) readManifests(ctx context.Context, names []string) ([]*huskv1.RunRequest, error) {
	var requests []*huskv1.RunRequest
	var failures []error
	seen := map[string]bool{}
	for _, name := range names {
		if seen[name] {
			failures = append(failures, usageerror.Bad("%s is named twice: name each file once", name))
			continue
		}
		seen[name] = true
		data, err := a.readManifest(ctx, name)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		requests = append(requests, &huskv1.RunRequest{File: name, Manifest: data})
	}
	return requests, errors.Join(failures...)
}

func (a *app) readManifest(ctx context.Context, name string) ([]byte, error) {
	shown, file := name, a.in
	if name == stdin {
		shown = "standard input"
	} else {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, fileFault(name, err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.IsDir() {
			return nil, fmt.Errorf("%s is a directory: name its files, as in husk run %s/*.yaml", name, name)
		}
	}
	data, err := readAll(ctx, io.LimitReader(file, manifestMax+1))
	switch {
	case err != nil:
		return nil, fileFault(shown, err)
	case len(data) > manifestMax:
		return nil, fmt.Errorf("%s is no manifest: it has more than %d MiB", shown, manifestMax>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%s is empty: a manifest is wanted", shown)
	}
	return data, nil
}

// readAll reads r to its end, or as long as ctx lasts: a person may never
// finish what is read from a terminal.
func readAll(ctx context.Context, r io.Reader) ([]byte, error) {
	var data []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer terminal.Guard()
		defer close(done)
		data, err = io.ReadAll(r)
	}()
	select {
	case <-done:
		return data, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// run starts the pods of all manifests at once. A limit of 0 is none.
func (a *app) run(ctx context.Context, c *client.Client, manifests []*huskv1.RunRequest, limit time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if limit > 0 {
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	v := a.newRunView(manifests[0].Wait)
	var all sync.WaitGroup
	for _, m := range manifests {
		all.Go(func() {
			defer terminal.Guard()
			err := runOne(ctx, c, m, v)
			v.fail(err, limit > 0 && timeIsUp(err))
		})
	}
	all.Wait()
	v.close()
	if v.failures.quiet != nil {
		_, _ = fmt.Fprintln(a.errs, "interrupted: the pods go on, see husk ps -a")
	}
	v.failures.add(v.late(limit))
	v.failures.add(v.failed())
	return v.failures.outcome()
}

// timeIsUp says whether a request was given up at its deadline, by us or by
// huskd, which is told of it and may be the first to notice.
func timeIsUp(err error) bool {
	r, ok := errors.AsType[client.Refused](err)
	return ok && r.Code == codes.DeadlineExceeded
}

func runOne(ctx context.Context, c *client.Client, m *huskv1.RunRequest, v *runView) error {
	stream, err := c.Run(ctx, m)
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		v.update(ev)
	}
}
