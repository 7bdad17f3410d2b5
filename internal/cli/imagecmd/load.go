package imagecmd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync/atomic"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/client"
	"github.com/huskd/husk/internal/cli/input"
	"github.com/huskd/husk/internal/cli/terminal"
	"github.com/huskd/husk/internal/cli/usageerror"
)

func (t *tool) load() *cobra.Command {
	return &cobra.Command{
		Use:   "load [FILE]",
		Short: "Load images from an OCI or docker archive, or from standard input.",
		Example: `husk image load web.tar
docker save web | husk image load`,
		Args: usageerror.Takes(0, 1, "one FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := input.Stdin
			if len(args) > 0 {
				name = args[0]
			}
			if name == input.Stdin && terminal.Is(t.In) {
				return usageerror.Misuse(cmd, "husk image load reads an archive: name its FILE, or pipe it in")
			}
			file, size, err := t.openArchive(name)
			if err != nil {
				return err
			}
			defer file.Close()
			c, err := t.Dial()
			if err != nil {
				return err
			}
			return t.loadArchive(cmd.Context(), c, &archive{r: file, name: name, size: size})
		},
	}
}

// openArchive opens the named file. The size is 0 if it isn't known.
func (t *tool) openArchive(name string) (*os.File, int64, error) {
	if name == input.Stdin {
		info, err := t.In.Stat()
		if err != nil {
			return nil, 0, fmt.Errorf("can't read standard input: %w", err)
		}
		return t.In, regularSize(info), nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, input.FileError(name, err)
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		err = fmt.Errorf("%s is a directory: pack it first, as in tar -C %s -cf image.tar .", name, name)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, regularSize(info), nil
}

func regularSize(info fs.FileInfo) int64 {
	if info.Mode().IsRegular() {
		return info.Size()
	}
	return 0
}

// archive is a file that is sent to huskd.
type archive struct {
	r       io.Reader
	name    string
	size    int64
	sent    int64
	sentAll atomic.Bool // set when all of it was sent
}

// archiveChunk is the size of the chunks in which an archive is sent.
const archiveChunk = 256 << 10

// loadStream is the stream of a LoadImage call.
type loadStream = grpc.BidiStreamingClient[huskv1.LoadImageRequest, huskv1.ImageEvent]

func (t *tool) loadArchive(ctx context.Context, c *client.Client, file *archive) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.LoadImage(ctx)
	if err != nil {
		return err
	}
	v := t.newProgressView()
	go func() {
		defer terminal.Guard()
		if err := file.send(stream, v.update); err != nil {
			cancel(err)
		}
	}()
	images, err := receiveImages(stream, func(p *huskv1.Progress) {
		if file.sentAll.Load() { // until then the bytes sent are the better measure
			v.update(p)
		}
	})
	v.close()
	if err != nil {
		return err
	}
	for _, i := range images {
		t.printImage("loaded", i)
	}
	return nil
}

// send sends the whole file. Recv returns the reason of a failed Send.
func (f *archive) send(stream loadStream, update func(*huskv1.Progress)) error {
	for {
		chunk := make([]byte, archiveChunk)
		n, err := io.ReadFull(f.r, chunk)
		if n > 0 {
			if stream.Send(&huskv1.LoadImageRequest{Chunk: chunk[:n]}) != nil {
				return nil
			}
			f.sent += int64(n)
			update(&huskv1.Progress{Ref: f.name, Stage: "sending", DoneBytes: f.sent, TotalBytes: f.size})
		}
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			f.sentAll.Store(true)
			return stream.CloseSend()
		case err != nil:
			return input.FileError(f.name, err)
		}
	}
}
