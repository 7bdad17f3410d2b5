// Package volumecmd has the commands for volumes and other objects of manifests: husk volume and
// husk objects.
package volumecmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/flags"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/terminal"
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
		Short: "List, copy and remove the volumes of PersistentVolumeClaims.",
		Long: `List, copy and remove the volumes of PersistentVolumeClaims.

A claim in a manifest is a directory of this node. It stays when its pods are
removed, until husk volume rm removes it.`,
		Example: `husk volume ls
husk volume rm default/data`,
		Args: usageerror.NoSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(t.ls(), t.inspect(), t.export(), t.load(), t.rm())
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
	o := flags.AddOutput(cmd, flags.JSON, flags.YAML, flags.JSONPath, flags.Columns, flags.Name)
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

// claimOf returns the namespace and name of a claim on the command line.
func claimOf(arg string) (namespace, name string) {
	if namespace, name, ok := strings.Cut(arg, "/"); ok {
		return namespace, name
	}
	return "default", arg
}

func (t *tool) inspect() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "inspect NAME",
		Short: "Print what is known of a volume, and the space that its files take.",
		Example: `husk volume inspect data
husk volume inspect shop/uploads`,
		Args:              usageerror.Takes(1, 1, "the NAME of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		namespace, name := claimOf(args[0])
		v, err := c.InspectVolume(ctx, &huskv1.InspectVolumeRequest{Namespace: namespace, Name: name})
		if err != nil {
			return err
		}
		out := json.NewEncoder(t.Out)
		out.SetIndent("", "  ")
		return out.Encode(render.VolumeDetailsOf(v))
	})
	return cmd
}

func (t *tool) export() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "export NAME",
		Short: "Write a tar archive of a volume's files.",
		Long: `Write a tar archive of a volume's files.

It goes to standard output, or to a file. A pod may use the volume meanwhile:
stop it first if the files must fit together, as those of a database.`,
		Example: `husk volume export data -o data.tar
husk volume export shop/uploads | gzip >uploads.tar.gz`,
		Args:              usageerror.Takes(1, 1, "the NAME of a volume"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "file to write, instead of standard output")
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) (err error) {
		namespace, name := claimOf(args[0])
		to := t.Out
		switch {
		case output != "":
			if to, err = os.Create(output); err != nil {
				return err
			}
			defer func() {
				if err = errors.Join(err, to.Close()); err != nil {
					_ = os.Remove(output)
				}
			}()
		case terminal.Is(t.Out):
			return usageerror.Misuse(cmd, "a tar archive is nothing for a terminal: name a file with -o, or pipe it on")
		}
		stream, err := c.ExportVolume(ctx, &huskv1.ExportVolumeRequest{Namespace: namespace, Name: name})
		if err != nil {
			return err
		}
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err == nil {
				_, err = to.Write(m.Chunk)
			}
			if err != nil {
				return err
			}
		}
	})
	return cmd
}

// importChunk is the size of the chunks in which an archive is sent.
const importChunk = 256 << 10

func (t *tool) load() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "import NAME FILE",
		Short: "Replace the files of a volume by those of a tar archive.",
		Long: `Replace the files of a volume by those of a tar archive.

If there is no such volume, it is made. FILE is a tar archive that isn't
compressed; "-" is standard input. A volume that a running pod uses stays as it
is.`,
		Example: `husk volume import data data.tar
zcat uploads.tar.gz | husk volume import shop/uploads -`,
		Args: usageerror.Takes(2, 2, "the NAME of a volume and a FILE"),
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		namespace, name := claimOf(args[0])
		from := os.Stdin
		if args[1] != "-" {
			var err error
			if from, err = os.Open(args[1]); err != nil {
				return err
			}
			defer from.Close()
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := c.ImportVolume(ctx)
		if err != nil {
			return err
		}
		m := &huskv1.ImportVolumeRequest{Namespace: namespace, Name: name}
		chunk := make([]byte, importChunk)
		for ; ; m = &(huskv1.ImportVolumeRequest{}) {
			n, readErr := from.Read(chunk)
			m.Chunk = chunk[:n]
			if err := stream.Send(m); err != nil {
				break // CloseAndRecv says why
			}
			if errors.Is(readErr, io.EOF) {
				break
			}
			if readErr != nil {
				return readErr
			}
		}
		if _, err := stream.CloseAndRecv(); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(t.Out, "imported %s/%s\n", namespace, name)
		return nil
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
			namespace, name := claimOf(arg)
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
