package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/input"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newRm(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "rm NAME|FILE...",
		Short: "Remove stopped pods, workloads, objects, or all that a manifest declares.",
		Long: `Remove stopped pods, workloads, objects, or all that a manifest declares.

A workload or object is named by its kind, as in deployment/web or
configmap/settings. A FILE is a manifest that ends with .yaml, .yml or .json, a
directory of them with a / at its end, or - for standard input: all that husk
run FILE has started and kept is removed, except for the files of claims, which
husk volume rm removes.`,
		Example: `husk rm web
husk rm deployment/web configmap/settings
husk rm -f web db
husk rm -f shop.yaml`,
		Args:              usageerror.Takes(1, -1, "the NAME of a pod, a workload such as deployment/web, or a FILE"),
		ValidArgsFunction: a.completePods,
	}
	cmd.Flags().BoolVarP(&force, "force", "f", false, "stop running pods first")
	cmd.RunE = a.withClient(a.remove(func(args []string) []string { return args }, func() bool { return force }))
	return cmd
}

// remove returns what husk rm does with the names and files among its arguments.
func (a *app) remove(named func(args []string) []string, force func() bool) func(context.Context, *client.Client, []string) error {
	return func(ctx context.Context, c *client.Client, args []string) error {
		files, names := splitFiles(named(args))
		manifests, err := a.readManifests(ctx, files)
		if err != nil {
			return err
		}
		return errors.Join(a.each(names, func(name string) error {
			r, err := c.Remove(ctx, &huskv1.RemoveRequest{Name: name, Force: force()})
			if err == nil {
				a.printGone(r.Kind, r.Namespace, r.Name)
			}
			return err
		}), a.removeFiles(ctx, c, manifests, force()))
	}
}

// splitFiles returns those of the arguments that are manifests, and the others.
func splitFiles(args []string) (files, names []string) {
	for _, arg := range args {
		if input.IsManifest(arg) {
			files = append(files, arg)
		} else {
			names = append(names, arg)
		}
	}
	return files, names
}

// printGone prints that a pod was removed, or an object if it has a kind.
func (a *app) printGone(kind, namespace, name string) {
	_, _ = fmt.Fprintf(a.out, "%s %s removed\n", cmp.Or(render.Clean(kind), "pod"), render.Clean(strings.TrimPrefix(namespace+"/"+name, "/")))
}

// removeFiles removes what files declare: the pods of all files, and then the objects.
func (a *app) removeFiles(ctx context.Context, c *client.Client, manifests []*huskv1.RunRequest, force bool) error {
	failures := &errorPrinter{w: a.errs}
	for _, pods := range []bool{true, false} {
		for _, m := range manifests {
			failures.add(a.removeFile(ctx, c, &huskv1.RemoveFileRequest{File: m.File, Manifest: m.Manifest, Force: force, SkipPods: !pods, SkipObjects: pods}))
		}
		if err := failures.result(); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) removeFile(ctx context.Context, c *client.Client, req *huskv1.RemoveFileRequest) error {
	stream, err := c.RemoveFile(ctx, req)
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
		case ev.Note != "":
			_, _ = fmt.Fprintf(a.errs, "%s %s %s\n", render.Clean(ev.Kind), render.Clean(strings.TrimPrefix(ev.Namespace+"/"+ev.Name, "/")), render.OneLine(ev.Note))
		default:
			a.printGone(ev.Kind, ev.Namespace, ev.Name)
		}
	}
}
