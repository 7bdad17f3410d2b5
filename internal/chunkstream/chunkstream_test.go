package chunkstream

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

// TestStream writes a stream in pieces of many sizes, and reads it back.
func TestStream(t *testing.T) {
	t.Parallel()
	var sent [][]byte
	w := NewWriter(func(chunk []byte) error {
		sent = append(sent, chunk)
		return nil
	})
	var want []byte
	for n := range 2000 {
		piece := bytes.Repeat([]byte{byte(n)}, n)
		want = append(want, piece...)
		if _, err := w.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if len(sent) < 5 || len(sent) > len(want)/size+1 {
		t.Errorf("%d bytes were sent in %d chunks", len(want), len(sent))
	}
	chunks := append([][]byte{{}}, sent[1:]...) // an empty one, such as that of the first message
	ended := errors.New("ended")
	got, err := io.ReadAll(NewReader(sent[0], func() ([]byte, error) {
		if len(chunks) == 0 {
			return nil, ended
		}
		chunk := chunks[0]
		chunks = chunks[1:]
		return chunk, nil
	}))
	if !errors.Is(err, ended) || !bytes.Equal(got, want) {
		t.Errorf("read %d bytes of %d, %v", len(got), len(want), err)
	}
}

func TestWriterFails(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	w := NewWriter(func([]byte) error { return broken })
	_, err := w.Write(make([]byte, 3*size))
	if err = errors.Join(err, w.Flush()); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
