package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/oci"
)

type sessionStream = grpc.BidiStreamingServer[huskv1.SessionInput, huskv1.SessionOutput]

// session is an Exec or Attach in progress.
type session struct {
	stream  sessionStream
	start   *huskv1.SessionStart
	pod     agent.Pod
	run     container.Status
	sending sync.Mutex
}

// startSession receives the start of a session and finds its container.
func (s *Server) startSession(stream sessionStream) (*session, error) {
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	start := first.GetStart()
	if start == nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage("the first message of a session must be its start")
	}
	p, name, err := podref.Container(s.Agent, start.Name, start.Container)
	if err != nil {
		return nil, err
	}
	run, err := podref.Live(p, name)
	if err != nil {
		return nil, err
	}
	return &session{stream: stream, start: start, pod: p, run: run}, nil
}

// Exec runs a program in a container.
func (s *Server) Exec(stream sessionStream) error {
	n, err := s.startSession(stream)
	if err != nil {
		return err
	}
	if len(n.start.Args) == 0 {
		return errdefs.ErrInvalidArgument.WithMessage("exec needs a program")
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	streams, err := n.open(ctx, cancel, n.start.Stdin, n.start.Tty)
	if err != nil {
		return err
	}
	code, err := s.Containers.Exec(ctx, oci.Exec{ID: n.run.ID, Args: n.start.Args, Streams: streams})
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) && (refusal.Code == 126 || refusal.Code == 127) {
		to := streams.Stderr
		if n.start.Tty {
			to = streams.Stdout
		}
		_, _ = fmt.Fprintln(to, refusal.Message)
		code, err = refusal.Code, nil
	}
	if err != nil {
		return err
	}
	return n.exit(code)
}

// Attach connects a client to a container's main program.
func (s *Server) Attach(stream sessionStream) error {
	n, err := s.startSession(stream)
	if err != nil {
		return err
	}
	if len(n.start.Args) > 0 {
		return errdefs.ErrInvalidArgument.WithMessage("attach takes no program")
	}
	ended, err := s.Containers.Ended(n.run.ID)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	streams, err := n.open(ctx, cancel, n.start.Stdin && n.run.Config.GetStdin(), n.run.Config.GetTty())
	if err != nil {
		return err
	}
	if streams.Stdin != nil && !n.run.Config.GetStdinOnce() {
		streams.Stdin = endless{ctx, streams.Stdin}
	}
	if err := s.Containers.Attach(ctx, n.run.ID, streams); err != nil {
		return err
	}
	select {
	case <-ended:
	case <-ctx.Done():
		return ctx.Err()
	}
	st, err := s.Containers.Get(n.run.ID)
	if err != nil {
		return err
	}
	return n.exit(st.Exit.Code)
}

// endless is input whose end can't be seen before ctx is done. The end of input would end an
// attach, but this API's lasts until the program has ended, whose exit code it returns.
type endless struct {
	ctx context.Context
	io.Reader
}

func (e endless) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		<-e.ctx.Done()
	}
	return n, err
}

// open tells the client that the session is established, and returns its streams.
func (n *session) open(ctx context.Context, cancel context.CancelFunc, stdin, tty bool) (oci.Streams, error) {
	err := n.send(&huskv1.SessionOutput{Of: &huskv1.SessionOutput_Started{Started: &huskv1.SessionStarted{
		Namespace: n.pod.Manifest.Namespace, Name: n.pod.Manifest.Name, Container: n.run.Name(), Stdin: stdin, Tty: tty,
	}}})
	streams := oci.Streams{
		TTY: tty,
		Stdout: output{n, func(p []byte) *huskv1.SessionOutput {
			return &huskv1.SessionOutput{Of: &huskv1.SessionOutput_Stdout{Stdout: p}}
		}},
	}
	if !tty {
		streams.Stderr = output{n, func(p []byte) *huskv1.SessionOutput {
			return &huskv1.SessionOutput{Of: &huskv1.SessionOutput_Stderr{Stderr: p}}
		}}
	}
	in, typed := io.Pipe()
	if stdin {
		streams.Stdin = in
	}
	resize := make(chan oci.Size, 1)
	if size := n.start.Size; size != nil {
		resize <- sizeOf(size)
	}
	streams.Resize = resize
	go func() {
		defer cancel()
		typed.CloseWithError(n.receive(ctx, typed, resize))
	}()
	context.AfterFunc(ctx, func() { in.CloseWithError(io.ErrClosedPipe) })
	return streams, err
}

// receive passes on what the client sends. It returns when the client is gone, which ends the
// session. A client that only closes its sending side is not gone.
func (n *session) receive(ctx context.Context, typed *io.PipeWriter, resize chan oci.Size) error {
	for {
		m, err := n.stream.Recv()
		if errors.Is(err, io.EOF) {
			typed.Close()
			<-ctx.Done()
			return nil
		}
		if err != nil {
			return err
		}
		switch of := m.Of.(type) {
		case *huskv1.SessionInput_Stdin:
			_, _ = typed.Write(of.Stdin) // fails once the program no longer reads
		case *huskv1.SessionInput_CloseStdin:
			typed.Close()
		case *huskv1.SessionInput_Resize:
			latest(resize, sizeOf(of.Resize))
		}
	}
}

// latest replaces a size in the channel that was not received yet.
func latest(resize chan oci.Size, size oci.Size) {
	select {
	case <-resize:
	default:
	}
	select {
	case resize <- size:
	default:
	}
}

func sizeOf(s *huskv1.TerminalSize) oci.Size {
	return oci.Size{Width: uint16(min(s.Width, 1<<16-1)), Height: uint16(min(s.Height, 1<<16-1))}
}

func (n *session) exit(code int) error {
	return n.send(&huskv1.SessionOutput{Of: &huskv1.SessionOutput_ExitCode{ExitCode: int32(code)}})
}

func (n *session) send(m *huskv1.SessionOutput) error {
	n.sending.Lock()
	defer n.sending.Unlock()
	return n.stream.Send(m)
}

// output sends what a program writes.
type output struct {
	n    *session
	wrap func([]byte) *huskv1.SessionOutput
}

// outputChunk is far below the limit for a message.
const outputChunk = 64 << 10

func (o output) Write(p []byte) (int, error) {
	for done := 0; done < len(p); {
		end := min(done+outputChunk, len(p))
		if err := o.n.send(o.wrap(p[done:end])); err != nil {
			return done, err
		}
		done = end
	}
	return len(p), nil
}
