// Package input reads what the user names on the command line: files, directories, URLs and
// standard input.
package input

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/huskd/husk/internal/cli/terminal"
)

// Stdin names standard input on the command line.
const Stdin = "-"

// FileError returns err with the file's name, without that of the system call.
func FileError(name string, err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok {
		err = path.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// ReadAll reads r until EOF or until ctx ends: input typed on a terminal may never end.
func ReadAll(ctx context.Context, r io.Reader) ([]byte, error) {
	var data []byte
	var err error
	done := make(chan struct{})
	go func() {
		defer terminal.Guard()
		defer close(done)
		data, err = io.ReadAll(r)
	}()
	select {
	case <-done:
		return data, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
