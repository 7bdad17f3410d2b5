package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) tag() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tag IMAGE NAME",
		Short: "Give an image another name.",
		Example: `husk image tag web:1 registry.local/web:1
husk image tag 3f2a1b4c5d6e web:old`,
		Args:              usageerror.Takes(2, 2, "an IMAGE and its new NAME"),
		ValidArgsFunction: t.completeFirstImage,
	}
	cmd.RunE = t.WithClient(func(ctx context.Context, c *client.Client, args []string) error {
		r, err := c.TagImage(ctx, &huskv1.TagImageRequest{Name: args[0], Tag: args[1]})
		if err != nil {
			return err
		}
		former := ""
		if r.FormerId != "" {
			former = ", which was " + render.ShortID(r.FormerId)
		}
		_, _ = fmt.Fprintf(t.Out, "tagged %s as %s%s\n", render.ShortID(r.Id), render.Clean(r.Name), former)
		return nil
	})
	return cmd
}

func (t *tool) push() *cobra.Command {
	req := &huskv1.PushImageRequest{}
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "push IMAGE [NAME]",
		Short: "Push an image to a registry.",
		Long: `Push an image to a registry.

It is that of the image's name, or of another NAME. Without --username, huskd
uses the login of husk login.`,
		Example: `husk image push registry.local/web:1
husk image push web:1 quay.io/me/web:1`,
		Args:              usageerror.Takes(1, 2, "an IMAGE, and maybe its NAME at the registry"),
		ValidArgsFunction: t.completeFirstImage,
	}
	addLogin(cmd, &req.Username, &fromStdin)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Name, req.To = args[0], append(args, "")[1]
		var err error
		if req.Password, err = t.password(cmd, req.Username, append(args, args[0])[1], fromStdin); err != nil {
			return err
		}
		return t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error { return t.pushImage(ctx, c, req) })(cmd, args)
	}
	return cmd
}

// pushImage prints each blob that the registry has got, and then the image.
func (t *tool) pushImage(ctx context.Context, c *client.Client, req *huskv1.PushImageRequest) error {
	stream, err := c.PushImage(ctx, req)
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
		case ev.Name == "":
			_, _ = fmt.Fprintf(t.Errs, "%s %s\n", render.ShortID(ev.Digest), render.Size(ev.Size))
		default:
			_, _ = fmt.Fprintf(t.Out, "pushed %s %s\n", render.Clean(ev.Name), render.Clean(ev.Digest))
		}
	}
}
