package probe

import (
	"bytes"
	"context"

	"github.com/huskd/husk/internal/oci"
)

// Containers run programs.
type Containers interface {
	Exec(ctx context.Context, e oci.Exec) (code int, err error)
}

// maxOutput is how much is kept of what a program writes.
const maxOutput = 10 << 10

// beginning keeps the first bytes that are written to it, and drops the rest:
// the program must not notice.
type beginning struct{ bytes.Buffer }

func (b *beginning) Write(p []byte) (int, error) {
	_, _ = b.Buffer.Write(p[:min(len(p), maxOutput-b.Len())])
	return len(p), nil
}

// In runs programs in containers. One that isn't there or can't be executed is
// an error: like the kubelet, we take that to say nothing of the container.
func In(containers Containers) Exec {
	return func(ctx context.Context, id string, args []string) (int, string, error) {
		var out, errs beginning
		code, err := containers.Exec(ctx, oci.Exec{ID: id, Args: args, Streams: oci.Streams{Stdout: &out, Stderr: &errs}})
		return code, out.String() + errs.String(), err
	}
}
