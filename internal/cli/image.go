package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/render"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func newImage(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Pull, load, list and remove images.",
		Example: `husk image pull docker.io/library/nginx:latest
husk image load web.tar
husk image ls`,
		Args: usageerror.NoSuchCommand,
		RunE: showHelp,
	}
	cmd.AddCommand(newImagePull(a), newImageLoad(a), newImageLs(a), newImageRm(a), newImagePrune(a))
	return cmd
}

// printImage reports an image that was pulled or loaded.
func (a *app) printImage(verb string, i *huskv1.Image) {
	_, _ = fmt.Fprintf(a.out, "%s %s %s %s\n", verb, render.Clean(render.ImageName(i)), render.ShortID(i.Id), render.Size(i.Size))
}
