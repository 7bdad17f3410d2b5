package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/input"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newRun(a *app) *cobra.Command {
	var wait, replace bool
	var timeout flags.Duration
	cmd := &cobra.Command{
		Use:   "run FILE...",
		Short: "Start the pods of manifest files.",
		Long: `Start the pods of manifest files.

A file holds one or more YAML or JSON documents; "-" is standard input. Of a
directory, the .yaml, .yml and .json files are taken. With --wait the exit code
is 1 if a pod fails.

Config maps, secrets, claims and network policies are kept for all pods, until
husk rm removes them.

If a pod is already running, changed images and resources are applied in place.
Any other change needs --replace.`,
		Example: `husk run web.yaml
husk run --replace web.yaml
husk run shop/ --wait --timeout 1m
generate-manifest | husk run -`,
		Args: usageerror.Takes(1, -1, "the FILE of a manifest"),
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"yaml", "yml", "json"},
			cobra.ShellCompDirectiveFilterFileExt),
	}
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the pods are ready or, if they run to completion, have completed")
	cmd.Flags().BoolVar(&replace, "replace", false, "replace running pods whose changes can't be applied in place")
	cmd.Flags().Var(&timeout, "timeout", "with --wait: stop waiting after this time; the pods keep running (default: none)")
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

// readManifests returns the requests to run the manifests with these names.
func (a *app) readManifests(ctx context.Context, names []string) ([]*huskv1.RunRequest, error) {
	manifests, err := input.Manifests(ctx, a.in, names)
	var requests []*huskv1.RunRequest
	for _, m := range manifests {
		requests = append(requests, &huskv1.RunRequest{File: m.Name, Manifest: m.Data})
	}
	return requests, err
}

// run starts the pods of all manifests at once. A timeout of 0 means none.
func (a *app) run(ctx context.Context, c *client.Client, manifests []*huskv1.RunRequest, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	v := a.newRunView(manifests[0].Wait)
	if len(manifests) > 1 { // a pod of one may need objects of another
		manifests = slices.DeleteFunc(manifests, func(m *huskv1.RunRequest) bool {
			err := runOne(ctx, c, &huskv1.RunRequest{File: m.File, Manifest: m.Manifest, ObjectsOnly: true}, v)
			v.fail(err, timeout > 0 && timedOut(err))
			return err != nil
		})
	}
	var all sync.WaitGroup
	for _, m := range manifests {
		all.Go(func() {
			defer terminal.Guard()
			err := runOne(ctx, c, m, v)
			v.fail(err, timeout > 0 && timedOut(err))
		})
	}
	all.Wait()
	v.close()
	if v.errors.interrupted != nil {
		_, _ = fmt.Fprintln(a.errs, "interrupted: the pods keep running, see husk ps -a")
	}
	v.errors.add(v.unfinished(timeout))
	v.errors.add(v.failed())
	return v.errors.result()
}

// timedOut reports whether a request failed because of its deadline. Either husk or huskd, which
// gets the deadline with the request, may notice it first.
func timedOut(err error) bool {
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
