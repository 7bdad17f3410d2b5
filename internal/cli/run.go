package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/input"
	"github.com/huskd/husk/internal/cli/podflags"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// runCommand is the state of husk run.
type runCommand struct {
	app    *app
	pod    podflags.Flags
	files  []string // given by -f
	output flags.Output

	wait, replace, detach, remove bool

	timeout flags.Duration
	dryRun  string // client, server, or empty

	// names are those of manifests; image is empty if there are any.
	names   []string
	image   string
	command []string
}

func newRun(a *app) *cobra.Command {
	r := &runCommand{app: a}
	cmd := &cobra.Command{
		Use:     "run FILE... | IMAGE [COMMAND...]",
		Aliases: []string{"apply", "create"},
		Short:   "Start the pods of manifest files, or a pod of an image.",
		Long: `Start the pods of manifest files, or a pod of an image.

A FILE is a manifest, a directory of which the .yaml, .yml and .json files are
taken, a URL, or "-" for standard input. With --wait the exit code is 1 if a pod
fails. Config maps, secrets, claims and network policies are kept for all pods,
until husk rm removes them. If a pod is already running, changed images and
resources are applied in place. Any other change needs --replace.

Of an IMAGE, the flags that docker and podman have become a manifest, which
--dry-run -o yaml shows. Without -d, husk shows the program's output and ends
with its exit code, and an interrupt stops the pod.`,
		Example: `husk run web.yaml
husk run shop/ --wait --timeout 1m
husk run -d -p 8080:80 docker.io/library/nginx:1.27
husk run --rm -it docker.io/library/alpine:3 sh`,
		Args: r.parse,
		ValidArgsFunction: cobra.FixedCompletions([]cobra.Completion{"yaml", "yml", "json"},
			cobra.ShellCompDirectiveFilterFileExt),
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringArrayVarP(&r.files, "filename", "f", nil, "`FILE` of manifests, as an argument")
	f.BoolVar(&r.wait, "wait", false, "wait until the pods are ready or, if they run to completion, have completed")
	f.BoolVar(&r.replace, "replace", false, "replace running pods whose changes can't be applied in place")
	f.Var(&r.timeout, "timeout", "with --wait: stop waiting after this time; the pods keep running (default: none)")
	f.StringVar(&r.dryRun, "dry-run", "", "only check: client needs no huskd, server asks it, and finds more")
	f.Lookup("dry-run").NoOptDefVal = "client"
	f.BoolVarP(&r.detach, "detach", "d", false, "of an image: don't wait for the program, and print the pod's name")
	f.BoolVar(&r.remove, "rm", false, "of an image: remove the pod when its program has ended")
	r.pod.Add(f)
	o := flags.AddOutput(cmd, flags.YAML, flags.JSON)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r.output = *o
		return r.do(cmd.Context())
	}
	return cmd
}

// parse checks the command line. Flags may follow the names of manifests, but what follows an image
// belongs to its command.
func (r *runCommand) parse(cmd *cobra.Command, args []string) error {
	r.names, r.image, r.command = r.files, "", nil
	if len(args) > 0 && (len(r.files) > 0 || isManifest(args[0])) {
		f := cmd.Flags()
		f.SetInterspersed(true)
		if err := f.Parse(args); err != nil {
			return usageerror.BadFlag(cmd, err)
		}
		f.SetInterspersed(false)
		r.names = slices.Concat(r.files, f.Args())
	} else if len(args) > 0 {
		r.image, r.command = args[0], args[1:]
	}
	given := r.pod.Given()
	switch {
	case slices.Contains(args, ""):
		return usageerror.Misuse(cmd, "%s got an empty argument: it needs the FILE of a manifest or an IMAGE", cmd.CommandPath())
	case len(r.names) == 0 && r.image == "":
		return usageerror.Misuse(cmd, "%s needs the FILE of a manifest or an IMAGE", cmd.CommandPath())
	case r.image == "" && len(given) > 0:
		return usageerror.Misuse(cmd, "%s is for an image, and %s is a manifest: change the manifest", given[0], r.names[0])
	case r.image == "" && (r.remove || r.detach):
		return usageerror.Misuse(cmd, "--rm and --detach are for an image, and %s is a manifest", r.names[0])
	case r.remove && (r.detach || r.wait):
		return usageerror.Misuse(cmd, "--rm removes the pod when husk has seen the end of its program: leave out --detach and --wait")
	case cmd.Flags().Changed("timeout") && !r.wait:
		return usageerror.Misuse(cmd, "--timeout needs --wait")
	case cmd.Flags().Changed("output") && r.dryRun == "":
		return usageerror.Misuse(cmd, "--output needs --dry-run")
	case r.dryRun != "" && r.dryRun != "client" && r.dryRun != "server":
		return usageerror.Misuse(cmd, "--dry-run=%s: must be client or server", r.dryRun)
	}
	return nil
}

// isManifest reports whether a name is that of a manifest rather than of an image.
func isManifest(name string) bool {
	_, err := os.Stat(name)
	return err == nil || input.IsManifest(name)
}

func (r *runCommand) do(ctx context.Context) error {
	manifests, err := r.manifests(ctx)
	if err != nil {
		return err
	}
	if r.dryRun == "client" {
		return r.check(manifests)
	}
	c, err := r.app.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	foreground := r.image != "" && !r.detach && !r.wait && r.dryRun == ""
	for _, m := range manifests {
		m.Wait, m.Replace, m.DryRun = r.wait || foreground, r.replace, r.dryRun != ""
	}
	switch {
	case foreground:
		return r.foreground(ctx, c, manifests[0])
	case r.dryRun != "" && r.output != flags.Table:
		return errors.Join(r.app.run(ctx, c, manifests, 0), r.show(manifests))
	}
	return r.app.run(ctx, c, manifests, time.Duration(r.timeout))
}

// manifests returns those that are named, or that of the image.
func (r *runCommand) manifests(ctx context.Context) ([]*huskv1.RunRequest, error) {
	if r.image == "" {
		return r.app.readManifests(ctx, r.names)
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	host := podflags.Host{Dir: dir, Env: os.LookupEnv}
	if r.dryRun == "" {
		if host.Taken, err = r.takenNames(ctx); err != nil {
			return nil, err
		}
	}
	data, err := r.pod.Manifest(r.image, r.command, host)
	if err != nil {
		return nil, usageerror.New("%v", err)
	}
	return []*huskv1.RunRequest{{File: "husk run " + r.image, Manifest: data}}, nil
}

// takenNames returns a function that reports whether there is a pod of a name, which a new pod
// can't have. With --replace it can.
func (r *runCommand) takenNames(ctx context.Context) (func(namespace, name string) bool, error) {
	c, err := r.app.dial()
	if err != nil {
		return nil, err
	}
	defer c.Close()
	answer, err := c.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	if err != nil {
		return nil, err
	}
	return func(namespace, name string) bool {
		return !r.replace && slices.ContainsFunc(answer.Pods, func(p *huskv1.Pod) bool {
			return p.Name == name && p.Namespace == cmp.Or(namespace, "default")
		})
	}, nil
}

// check validates manifests without huskd.
func (r *runCommand) check(manifests []*huskv1.RunRequest) error {
	failures := &errorPrinter{w: r.app.errs}
	for _, m := range manifests {
		declared, err := input.Check(input.Manifest{Name: m.File, Data: m.Manifest})
		failures.add(err)
		for _, line := range declared {
			if r.output == flags.Table {
				_, _ = fmt.Fprintln(r.app.out, line)
			}
		}
	}
	if err := failures.result(); err != nil || r.output == flags.Table {
		return err
	}
	return r.show(manifests)
}

// show prints manifests.
func (r *runCommand) show(manifests []*huskv1.RunRequest) error {
	for i, m := range manifests {
		if i > 0 {
			_, _ = fmt.Fprintln(r.app.out, "---")
		}
		if r.output == flags.YAML {
			_, _ = r.app.out.Write(m.Manifest)
			continue
		}
		objects, err := input.JSON(m.Manifest)
		if err != nil {
			return fmt.Errorf("%s: %w", m.File, err)
		}
		for _, o := range objects {
			if err := r.output.PrintJSON(r.app.out, o); err != nil {
				return err
			}
		}
	}
	return nil
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
	for _, name := range v.failedPods() {
		lastLines(c, name, func(line string) { _, _ = fmt.Fprintln(a.errs, line) })
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
	crashed := map[string]bool{} // the pods of which the end of the log was shown
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		v.update(ev)
		name := ev.Namespace + "/" + ev.Name
		if m.Wait && !crashed[name] && strings.Contains(ev.Message, "CrashLoopBackOff: ") {
			crashed[name] = true
			lastLines(c, name, v.note)
		}
	}
}
