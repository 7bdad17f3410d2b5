// Package copycmd has the command husk cp.
package copycmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/chunkstream"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
	"github.com/huskd/husk/internal/filecopy"
)

// App is what the command needs of the command line.
type App struct {
	In, Out, Errs *os.File
	// WithClient returns the RunE of a command that sends requests to huskd.
	WithClient func(do func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error
	// AddContainer adds the flag that names a container.
	AddContainer func(cmd *cobra.Command, name *string)
}

// New returns the command.
func New(app App) *cobra.Command {
	container := ""
	cmd := &cobra.Command{
		Use:   "cp SOURCE DESTINATION",
		Short: "Copy files out of a running container, or into one.",
		Long: `Copy files out of a running container, or into one.

A path in a container is POD:PATH. The container needs no tar program. As with
cp -r, a directory that exists gets the source in it; DIR/. stands for what is
in DIR. New files belong to the container's root user, or to you. "-" is a tar
stream on standard input or output.`,
		Example: `husk cp web:/var/log/app logs
husk cp site/. web/server:/srv
husk cp shop/db:/etc/hosts -c postgres .
tar -c site | husk cp - web:/srv`,
		Args:              usageerror.Takes(2, 2, "a SOURCE and a DESTINATION, one of them POD:PATH"),
		ValidArgsFunction: cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault),
	}
	app.AddContainer(cmd, &container)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		source, destination := parse(args[0]), parse(args[1])
		if (source.pod == "") == (destination.pod == "") {
			return usageerror.Misuse(cmd, "one of %s and %s must be POD:PATH, and the other a path on this machine", args[0], args[1])
		}
		return app.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			if source.pod != "" {
				return app.from(ctx, c, source, container, destination.path)
			}
			return app.to(ctx, c, source.path, destination, container)
		})(cmd, args)
	}
	return cmd
}

// place is a path in a container, or on this machine if pod is empty.
type place struct{ pod, path string }

// parse parses an argument. What begins like a path is one, even if it has a colon.
func parse(arg string) place {
	for _, prefix := range []string{"/", "./", "../"} {
		if strings.HasPrefix(arg, prefix) {
			return place{path: arg}
		}
	}
	if pod, path, ok := strings.Cut(arg, ":"); ok && pod != "" {
		return place{pod, path}
	}
	return place{path: arg}
}

const stream = "-"

// from copies files out of a container.
func (a App) from(ctx context.Context, c *client.Client, source place, container, to string) error {
	answer, err := c.CopyFrom(ctx, &huskv1.CopyFromRequest{Name: source.pod, Container: container, Path: source.path})
	if err != nil {
		return err
	}
	var skipped []string
	var failure error // huskd's
	in := chunkstream.NewReader(nil, func() ([]byte, error) {
		m, err := answer.Recv()
		if err != nil && !errors.Is(err, io.EOF) {
			failure = err
		}
		skipped = append(skipped, m.GetSkipped()...)
		return m.GetChunk(), err
	})
	if err := a.receive(in, filecopy.SourceOf(source.path), to); err != nil {
		return cmp.Or(failure, err)
	}
	if _, err := io.Copy(io.Discard, in); err != nil { // the last message
		return err
	}
	for _, line := range skipped {
		_, _ = fmt.Fprintf(a.Errs, "skipped: %s\n", render.OneLine(line))
	}
	return nil
}

func (a App) receive(in io.Reader, source filecopy.Source, to string) error {
	if to == stream {
		return filecopy.Rename(in, a.Out, source.Base)
	}
	to, err := absolute(to)
	if err != nil {
		return err
	}
	tree, err := filecopy.Local()
	if err != nil {
		return err
	}
	defer tree.Close()
	return tree.Write(in, to, source)
}

// to copies files into a container.
func (a App) to(ctx context.Context, c *client.Client, from string, destination place, container string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := c.CopyTo(ctx)
	if err != nil {
		return err
	}
	first := &huskv1.CopyToRequest{Name: destination.pod, Container: container, Path: destination.path, Contents: true}
	var send func() error
	out := chunkstream.NewWriter(func(chunk []byte) error { return req.Send(&huskv1.CopyToRequest{Chunk: chunk}) })
	if from == stream {
		send = func() error {
			_, err := io.Copy(out, a.In)
			return err
		}
	} else {
		full, err := absolute(from)
		if err != nil {
			return err
		}
		tree, err := filecopy.Local()
		if err != nil {
			return err
		}
		defer tree.Close()
		source := filecopy.SourceOf(full)
		first.Base, first.Contents = source.Base, source.Contents
		send = func() error {
			skipped, err := tree.Read(ctx, full, out)
			for _, line := range skipped {
				_, _ = fmt.Fprintf(a.Errs, "skipped: %s\n", render.OneLine(line))
			}
			return err
		}
	}
	err = req.Send(first)
	if err == nil {
		err = errors.Join(send(), out.Flush())
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: huskd has refused, and CloseAndRecv says why
		return err
	}
	_, err = req.CloseAndRecv()
	return err
}

// absolute makes a path absolute, and keeps "/" or "/." at its end.
func absolute(name string) (string, error) {
	full, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	switch {
	case name == "." || strings.HasSuffix(name, "/."):
		return full + "/.", nil
	case strings.HasSuffix(name, "/"):
		return full + "/", nil
	}
	return full, nil
}
