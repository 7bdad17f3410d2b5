package imagecmd

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/chunkstream"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) save() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "save IMAGE...",
		Short: "Write an archive of images, for husk image load or docker load.",
		Example: `husk image save web:1 -o web.tar
husk image save web:1 db:1 | ssh edge husk image load`,
		Args:              usageerror.Takes(1, -1, "an IMAGE"),
		ValidArgsFunction: t.completeImages,
	}
	cmd.Flags().StringVarP(&output, "output", "o", "", "`FILE` to write, instead of standard output")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if output == "" && terminal.Is(t.Out) {
			return usageerror.Misuse(cmd, "husk image save writes an archive: name its file by --output, or pipe it on")
		}
		return t.WithClient(func(ctx context.Context, c *client.Client, _ []string) error {
			stream, err := c.SaveImages(ctx, &huskv1.SaveImagesRequest{Names: args})
			if err != nil {
				return err
			}
			first, err := stream.Recv() // before a file is made
			if err != nil {
				return err
			}
			return t.writeArchive(output, chunkstream.NewReader(first.Chunk, func() ([]byte, error) {
				m, err := stream.Recv()
				return m.GetChunk(), err
			}))
		})(cmd, args)
	}
	return cmd
}

// writeArchive writes a file, or standard output if its name is empty. A file that isn't complete
// is removed.
func (t *tool) writeArchive(name string, from io.Reader) (err error) {
	if name == "" {
		_, err = io.Copy(t.Out, from)
		return err
	}
	to, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}
