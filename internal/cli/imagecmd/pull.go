package imagecmd

import (
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
	"github.com/huskd/husk/internal/cli/terminal"
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
	f.StringVarP(&req.Username, "username", "u", "", "user `NAME` at the registry; husk prompts for the password")
	f.BoolVar(&fromStdin, "password-stdin", false, "read the password from standard input")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		req.Ref = args[0]
		var err error
		switch {
		case fromStdin && req.Username == "":
			return usageerror.Misuse(cmd, "--password-stdin needs --username")
		case fromStdin:
			req.Password, err = readPassword(cmd.Context(), t.In)
		case req.Username != "" && !terminal.Is(t.In):
			return usageerror.Misuse(cmd, "--username needs a password: pipe it in and add --password-stdin")
		case req.Username != "":
			prompt := fmt.Sprintf("password of %s for %s: ", render.Clean(req.Username), render.Clean(req.Ref))
			req.Password, err = terminal.Password(cmd.Context(), t.In, t.Errs, prompt)
		}
		if err != nil {
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

// passwordMax is far above the length of any password or token: anything longer is the wrong file.
const passwordMax = 64 << 10

// readPassword returns the content of r without its final newline.
func readPassword(ctx context.Context, r io.Reader) (string, error) {
	data, err := input.ReadAll(ctx, io.LimitReader(r, passwordMax+1))
	password := strings.TrimRight(string(data), "\r\n")
	switch {
	case err != nil:
		return "", fmt.Errorf("can't read the password from standard input: %w", err)
	case password == "":
		return "", errors.New("standard input contains no password")
	case len(data) > passwordMax:
		return "", errors.New("standard input is too long for a password")
	}
	return password, nil
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
