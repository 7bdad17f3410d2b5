package imagecmd

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) pull() *cobra.Command {
	req := &huskv1.PullImageRequest{}
	var fromStdin bool
	cmd := &cobra.Command{
		Use:   "pull REF",
		Short: "Pull an image from its registry.",
		Example: `husk image pull docker.io/library/nginx:latest
husk image pull quay.io/me/web --platform linux/arm64
husk image pull registry.local/web --username me --password-stdin < secret`,
		Args:              usageerror.Takes(1, 1, "the REF of an image"),
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	f := cmd.Flags()
	f.StringVar(&req.Platform, "platform", "", "`OS/ARCH` of the image (default: this machine's)")
	addLogin(cmd, &req.Username, &fromStdin)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Ref = args[0]
		var err error
		if req.Password, err = t.password(cmd, req.Username, req.Ref, fromStdin); err != nil {
			return err
		}
		c, err := t.Dial()
		if err != nil {
			return err
		}
		return t.pullImage(cmd.Context(), c, req)
	}
	return cmd
}

func (t *tool) pullImage(ctx context.Context, c *client.Client, req *huskv1.PullImageRequest) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.PullImage(ctx, req)
	if err != nil {
		return err
	}
	v := t.newProgressView()
	images, err := receiveImages(stream, v.update)
	v.close()
	if err != nil {
		return err
	}
	for _, i := range images {
		t.printImage("pulled", i)
	}
	return nil
}

// imageEvents is the stream of answers to a pull or a load.
type imageEvents interface {
	Recv() (*huskv1.ImageEvent, error)
}

// receiveImages returns the images that were pulled or loaded.
func receiveImages(events imageEvents, update func(*huskv1.Progress)) ([]*huskv1.Image, error) {
	var images []*huskv1.Image
	for {
		ev, err := events.Recv()
		switch {
		case errors.Is(err, io.EOF) && len(images) == 0:
			return nil, errors.New("huskd returned no image: see its log")
		case errors.Is(err, io.EOF):
			return images, nil
		case err != nil:
			return nil, err
		}
		if ev.Progress != nil {
			update(ev.Progress)
		}
		if ev.Image != nil {
			images = append(images, ev.Image)
		}
	}
}
