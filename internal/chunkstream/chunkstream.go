// Package chunkstream reads and writes streams of bytes that calls of the API carry in chunks.
package chunkstream

import (
	"bufio"
	"bytes"
	"io"
)

// size is that of the chunks, far below the limit for a message.
const size = 256 << 10

// NewWriter returns a writer whose chunks send sends. Flush sends the last one.
func NewWriter(send func(chunk []byte) error) *bufio.Writer {
	return bufio.NewWriterSize(sender(send), size)
}

type sender func([]byte) error

func (send sender) Write(data []byte) (int, error) {
	// gRPC may read a message after it was sent.
	if err := send(bytes.Clone(data)); err != nil {
		return 0, err
	}
	return len(data), nil
}

// NewReader returns a reader of first, then of the chunks that receive returns. An error of receive
// is the reader's.
func NewReader(first []byte, receive func() ([]byte, error)) io.Reader {
	return &reader{first, receive}
}

type reader struct {
	rest    []byte
	receive func() ([]byte, error)
}

func (r *reader) Read(data []byte) (int, error) {
	for len(r.rest) == 0 {
		var err error
		if r.rest, err = r.receive(); err != nil {
			return 0, err
		}
	}
	n := copy(data, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
