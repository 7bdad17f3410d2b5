// Package volumecmd has the commands for volumes and other objects of manifests: husk volume and
// husk objects.
package volumecmd

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

// App is what the commands need of the command line.
type App struct {
	Out, Errs *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// Each calls do for all names at once.
	Each func(names []string, do func(string) error) error
}

type tool struct{ App }

// New returns the command husk volume.
func New(app App) *cobra.Command {
	t := &tool{app}
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List and remove the volumes of PersistentVolumeClaims.",
		Long: `List and remove the volumes of PersistentVolumeClaims.

A claim in a manifest is a directory of this node. It stays when its pods are
removed, until husk volume rm removes it.`,
		Example: `husk volume ls
husk volume rm default/data`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.ls(), t.rm())
	return cmd
}

func (t *tool) ls() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List volumes.",
		Example: `husk volume ls
husk volume ls -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListVolumes(ctx, &huskv1.ListVolumesRequest{})
		if err != nil {
			return err
		}
		if len(answer.Volumes) == 0 && !o.Structured() {
			_, _ = fmt.Fprintln(t.Errs, "no volumes: a pod with a PersistentVolumeClaim makes one")
		}
		return o.Print(t.Out, render.VolumeViews(answer.Volumes), func() *render.Table { return render.VolumeTable(answer.Volumes) })
	})
	return cmd
}

func (t *tool) rm() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rm NAME...",
		Short: "Remove volumes and their files.",
		Long: `Remove volumes and their files.

A NAME is that of a claim, with its namespace unless that is default. A volume
that a pod uses isn't removed. The files of a PersistentVolume stay.`,
		Example: `husk volume rm data
husk volume rm shop/uploads shop/cache`,
		Args:              usageerror.Takes(1, -1, "the NAME of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		return t.Each(args, func(arg string) error {
			namespace, name, ok := strings.Cut(arg, "/")
			if !ok {
				namespace, name = "default", arg
			}
			_, err := c.RemoveVolume(ctx, &huskv1.RemoveVolumeRequest{Namespace: namespace, Name: name})
			if err == nil {
				_, _ = fmt.Fprintf(t.Out, "removed %s/%s\n", namespace, name)
			}
			return err
		})
	})
	return cmd
}

// Objects returns the command husk objects.
func Objects(app App) *cobra.Command {
	t := &tool{app}
	cmd := &cobra.Command{
		Use:   "objects",
		Short: "List the config maps, secrets, policies and so on that husk run has kept.",
		Long: `List the config maps, secrets, policies and so on that husk run has kept.

husk rm removes them, as in husk rm configmap/settings. The objects of the
manifests directory are not among them.`,
		Example: `husk objects
husk objects -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListObjects(ctx, &huskv1.ListObjectsRequest{})
		if err != nil {
			return err
		}
		if len(answer.Objects) == 0 && !o.Structured() {
			_, _ = fmt.Fprintln(t.Errs, "no objects: husk run FILE keeps those of a manifest")
		}
		return o.Print(t.Out, render.ObjectViews(answer.Objects), func() *render.Table { return render.ObjectTable(answer.Objects, time.Now()) })
	})
	return cmd
}
