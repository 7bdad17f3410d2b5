package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
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

// manifestMax bounds the size of a manifest. It leaves room in a gRPC message, and is far more than
// a person writes.
const manifestMax = 3 << 20

// readManifests reads all files before any pod is started, so that a misspelt name doesn't leave
// only some of them running.
func (a *app) readManifests(ctx context.Context, names []string) ([]*huskv1.RunRequest, error) {
	var requests []*huskv1.RunRequest
	var failures []error
	seen := map[string]bool{}
	for _, given := range names {
		files, err := manifestsAt(given)
		if err != nil {
			failures = append(failures, err)
		}
		for _, name := range files {
			if seen[name] {
				failures = append(failures, usageerror.New("%s is given twice: name each file once", name))
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
	}
	return requests, errors.Join(failures...)
}

// manifestExtensions are those of the files of a directory that are manifests.
var manifestExtensions = []string{".yaml", ".yml", ".json"}

// manifestsAt returns the manifests of a directory, and any other name as it is.
func manifestsAt(name string) (files []string, err error) {
	if info, err := os.Stat(name); name == stdin || err != nil || !info.IsDir() {
		return []string{name}, nil
	}
	entries, err := os.ReadDir(name)
	if err != nil {
		return nil, fileError(name, err)
	}
	for _, e := range entries {
		if slices.Contains(manifestExtensions, filepath.Ext(e.Name())) && !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			files = append(files, filepath.Join(name, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no manifest: no file in it ends with .yaml, .yml or .json", name)
	}
	return files, nil
}

func (a *app) readManifest(ctx context.Context, name string) ([]byte, error) {
	shown, file := name, a.in
	if name == stdin {
		shown = "standard input"
	} else {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, fileError(name, err)
		}
		defer file.Close()
	}
	data, err := readAll(ctx, io.LimitReader(file, manifestMax+1))
	switch {
	case err != nil:
		return nil, fileError(shown, err)
	case len(data) > manifestMax:
		return nil, fmt.Errorf("%s is too large for a manifest: it has more than %d MiB", shown, manifestMax>>20)
	case len(data) == 0:
		return nil, fmt.Errorf("%s is empty: it must contain a manifest", shown)
	}
	return data, nil
}

// readAll reads r until EOF or until ctx ends: input typed on a terminal may never end.
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
