package probe

import (
	"bytes"
	"context"

	"github.com/huskd/husk/internal/oci"
)

// maxOutput is how much is kept of what a program writes.
const maxOutput = 10 << 10

// prefixBuffer keeps the first bytes that are written to it, and drops the rest:
// the program must not notice.
type prefixBuffer struct{ bytes.Buffer }

func (b *prefixBuffer) Write(p []byte) (int, error) {
	_, _ = b.Buffer.Write(p[:min(len(p), maxOutput-b.Len())])
	return len(p), nil
}

// NewExec runs programs in containers. One that isn't there or can't be executed is
// an error: like the kubelet, we take that to say nothing of the container.
func NewExec(run func(ctx context.Context, e oci.Exec) (code int, err error)) Exec {
	return func(ctx context.Context, id string, args []string) (int, string, error) {
		var out, errs prefixBuffer
		code, err := run(ctx, oci.Exec{ID: id, Args: args, Streams: oci.Streams{Stdout: &out, Stderr: &errs}})
		return code, out.String() + errs.String(), err
	}
}
