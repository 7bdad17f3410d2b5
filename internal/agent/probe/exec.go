package probe

import (
	"bytes"
	"context"
	"errors"

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

// notFound and notExecutable are what a shell says of a program that it can't run.
const notFound, notExecutable = 127, 126

// In runs programs in containers. One that isn't there or can't be executed has
// failed as it would in a shell.
func In(containers Containers) Exec {
	return func(ctx context.Context, id string, args []string) (int, string, error) {
		var out, errs beginning
		code, err := containers.Exec(ctx, oci.Exec{ID: id, Args: args, Streams: oci.Streams{Stdout: &out, Stderr: &errs}})
		if refusal, ok := errors.AsType[*oci.StartError](err); ok && (refusal.Code == notFound || refusal.Code == notExecutable) {
			return refusal.Code, refusal.Message, nil
		}
		return code, out.String() + errs.String(), err
	}
}
