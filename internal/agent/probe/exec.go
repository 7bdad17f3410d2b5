package probe

import (
	"bytes"
	"context"

	"github.com/huskd/husk/internal/oci"
)

// maxOutput is the number of bytes that are kept of each output stream of a program.
const maxOutput = 10 << 10

// prefixBuffer keeps the first maxOutput bytes and drops the rest without an error.
type prefixBuffer struct{ kept bytes.Buffer }

func (b *prefixBuffer) Write(p []byte) (int, error) {
	_, _ = b.kept.Write(p[:min(len(p), maxOutput-b.kept.Len())])
	return len(p), nil
}

// NewExec returns an Exec that runs programs by run. A program that doesn't exist or can't be
// executed is an error: as in kubelet, it says nothing about the container.
func NewExec(run func(ctx context.Context, e oci.Exec) (code int, err error)) Exec {
	return func(ctx context.Context, id string, args []string) (int, string, error) {
		var out, errs prefixBuffer
		code, err := run(ctx, oci.Exec{ID: id, Args: args, Streams: oci.Streams{Stdout: &out, Stderr: &errs}})
		return code, out.kept.String() + errs.kept.String(), err
	}
}
