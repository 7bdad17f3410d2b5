package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newVolume(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "volume",
		Short: "List and remove the volumes of PersistentVolumeClaims.",
		Long: `List and remove the volumes of PersistentVolumeClaims.

A claim in a manifest is a directory of this node. It stays when its pods are
removed, until husk volume rm removes it.`,
		Example: `husk volume ls
husk volume rm default/data`,
		Args: usageerror.NoSuchCommand,
		RunE: showHelp,
	}
	cmd.AddCommand(newVolumeLs(a), newVolumeRm(a))
	return cmd
}

func newVolumeLs(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "List volumes.",
		Example: `husk volume ls
husk volume ls -o json`,
		Args:              usageerror.Takes(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML)
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, _ []string) error {
		answer, err := c.ListVolumes(ctx, &huskv1.ListVolumesRequest{})
		if err != nil {
			return err
		}
		if len(answer.Volumes) == 0 && !o.Structured() {
			_, _ = fmt.Fprintln(a.errs, "no volumes: a pod with a PersistentVolumeClaim makes one")
		}
		return o.Print(a.out, render.VolumeViews(answer.Volumes), func() *render.Table { return render.VolumeTable(answer.Volumes) })
	})
	return cmd
}

func newVolumeRm(a *app) *cobra.Command {
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
	cmd.RunE = a.withClient(func(ctx context.Context, c *client.Client, args []string) error {
		return a.each(args, func(arg string) error {
			namespace, name, ok := strings.Cut(arg, "/")
			if !ok {
				namespace, name = "default", arg
			}
			_, err := c.RemoveVolume(ctx, &huskv1.RemoveVolumeRequest{Namespace: namespace, Name: name})
			if err == nil {
				a.printRemoved([]string{namespace + "/" + name})
			}
			return err
		})
	})
	return cmd
}
