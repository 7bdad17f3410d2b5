// Package session connects the terminal or pipes of this process to a program in a container, for
// exec and attach.
package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/cli/terminal"
)

// Streams are the standard streams of this process: terminals, pipes or files.
type Streams struct{ In, Out, Errs *os.File }

// Opener starts an exec or an attach.
type Opener func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[huskv1.SessionInput, huskv1.SessionOutput], error)

// ErrDetached is returned when the user detached from a program that keeps running.
var ErrDetached = errors.New("detached")

// stdinChunk is how much input one message carries at most.
const stdinChunk = 32 << 10

// session is an exec or an attach in progress.
type session struct {
	Streams
	stream grpc.BidiStreamingClient[huskv1.SessionInput, huskv1.SessionOutput]
	// sending serializes messages with input and with terminal sizes.
	sending sync.Mutex
	detach  *terminal.Detach // nil if its keys have no meaning
	cancel  context.CancelCauseFunc
}

// Run connects the streams to a program until it ends, and returns its exit code. An attach, which
// has no args, may end with ErrDetached. When Run returns, the terminal is restored; a goroutine
// may still be blocked reading standard input, so the process should end soon.
func (s Streams) Run(ctx context.Context, open Opener, start *huskv1.SessionStart) (code int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer terminal.Restore()
	// Subscribe before the first look at the size, so that no change is missed.
	resized, stop := terminal.Resized()
	defer stop()
	if start.Tty {
		start.Size = s.size()
	}
	stream, err := open(ctx)
	if err != nil {
		return 0, err
	}
	n := &session{Streams: s, stream: stream, cancel: cancel}
	started, err := n.begin(start)
	if err != nil {
		return 0, err
	}
	if started.Tty && started.Stdin && start.Tty {
		if err := terminal.Raw(s.In); err != nil {
			return 0, fmt.Errorf("can't set the terminal to raw mode: %w", err)
		}
		if start.Args == nil {
			n.detach = &terminal.Detach{}
		}
	}
	if started.Tty {
		go n.sendSizes(resized, start.Size)
	}
	if started.Stdin {
		go n.sendInput()
	}
	return n.receive()
}

// begin sends the start and waits until the session is established.
func (s *session) begin(start *huskv1.SessionStart) (*huskv1.SessionStarted, error) {
	// Recv returns the reason of a failed Send.
	_ = s.send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Start{Start: start}})
	first, err := s.recv()
	if err != nil {
		return nil, err
	}
	started := first.GetStarted()
	if started == nil {
		return nil, errors.New("huskd answered with something other than the start of the session: compare versions with husk version")
	}
	return started, nil
}

func (s *session) recv() (*huskv1.SessionOutput, error) {
	m, err := s.stream.Recv()
	if errors.Is(err, io.EOF) {
		err = errors.New("huskd ended the session without the program's exit code: see its log")
	}
	return m, err
}

func (s *session) send(in *huskv1.SessionInput) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	return s.stream.Send(in)
}

// receive writes the program's output until it ends.
func (s *session) receive() (code int, err error) {
	for {
		m, err := s.recv()
		if err != nil {
			return 0, err
		}
		switch of := m.Of.(type) {
		case *huskv1.SessionOutput_Stdout:
			_, err = s.Out.Write(of.Stdout)
		case *huskv1.SessionOutput_Stderr:
			_, err = s.Errs.Write(of.Stderr)
		case *huskv1.SessionOutput_ExitCode:
			return exitByte(of.ExitCode), nil
		}
		if err != nil {
			return 0, fmt.Errorf("can't write the program's output: %w", err)
		}
	}
}

// exitByte returns an exit code that a process can have.
func exitByte(code int32) int {
	if code < 0 || code > 255 {
		return 255
	}
	return int(code)
}

// sendInput sends standard input until it ends. It stays blocked in a read when the session ends,
// until the process does.
func (s *session) sendInput() {
	defer terminal.Guard()
	buf := make([]byte, stdinChunk)
	for {
		n, err := s.In.Read(buf)
		data, leave := buf[:n], false
		if s.detach != nil {
			data, leave = s.detach.Filter(data)
		}
		if len(data) > 0 && s.send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Stdin{Stdin: bytes.Clone(data)}}) != nil {
			return
		}
		if leave {
			s.cancel(ErrDetached)
			return
		}
		if err != nil {
			_ = s.send(&huskv1.SessionInput{Of: &huskv1.SessionInput_CloseStdin{CloseStdin: true}})
			return
		}
	}
}

// sendSizes sends the terminal's size whenever it differs from the last one sent.
func (s *session) sendSizes(resized <-chan os.Signal, sent *huskv1.TerminalSize) {
	defer terminal.Guard()
	for {
		size := s.size()
		if size != nil && (size.Width != sent.GetWidth() || size.Height != sent.GetHeight()) {
			if s.send(&huskv1.SessionInput{Of: &huskv1.SessionInput_Resize{Resize: size}}) != nil {
				return
			}
			sent = size
		}
		select {
		case <-resized:
		case <-s.stream.Context().Done():
			return
		}
	}
}

// size returns the size of the terminal that shows the output, or else of the one that reads the
// input; nil if there is none.
func (s Streams) size() *huskv1.TerminalSize {
	for _, f := range []*os.File{s.Out, s.In} {
		if w, h, ok := terminal.Size(f); ok {
			return &huskv1.TerminalSize{Width: uint32(w), Height: uint32(h)}
		}
	}
	return nil
}
