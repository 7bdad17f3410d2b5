package huskdtest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

// AddLog adds a line to the log of a container.
func (h *Huskd) AddLog(pod, container, line string, stderr bool, at time.Time) {
	h.change(func() {
		name := pod + "/" + container
		h.logs[name] = append(h.logs[name], &huskv1.LogsResponse{Line: []byte(line), Stderr: stderr, TimeNs: at.UnixNano(), Container: container})
	})
}

// Logs streams the lines added with AddLog.
func (h *Huskd) Logs(req *huskv1.LogsRequest, stream grpc.ServerStreamingServer[huskv1.LogsResponse]) error {
	h.mu.Lock()
	p, c, err := h.findContainer(req.Name, req.Container)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if req.Previous && c.Restarts == 0 {
		return status.Errorf(codes.NotFound, "container %s of pod %s has no previous run: it never restarted", c.Name, key(p))
	}
	name := key(p) + "/" + c.Name
	if req.Previous {
		name += "/previous"
	}
	sent, first := 0, true
	for {
		var lines []*huskv1.LogsResponse
		err := h.until(stream.Context(), func() bool {
			all := slices.DeleteFunc(slices.Clone(h.logs[name]), func(l *huskv1.LogsResponse) bool { return l.TimeNs < req.SinceNs })
			if first && req.Tail >= 0 {
				sent = max(0, len(all)-int(req.Tail))
			}
			lines = all[min(sent, len(all)):]
			sent = len(all)
			ended := !req.Follow || p.Phase != "Running" || c.State == "Terminated"
			return first || len(lines) > 0 || ended
		})
		if err != nil {
			return err
		}
		first = false
		for _, l := range lines {
			if err := stream.Send(l); err != nil {
				return err
			}
		}
		h.mu.Lock()
		running := p.Phase == "Running" && c.State != "Terminated"
		h.mu.Unlock()
		if !req.Follow || len(lines) == 0 && !running {
			return nil
		}
	}
}

// process is a running program.
type process struct {
	ctx    context.Context
	crash  func() // closes huskd
	args   []string
	tty    bool
	stdin  io.Reader
	stdout io.Writer
	stderr io.Writer
	size   *huskv1.TerminalSize
	resize chan *huskv1.TerminalSize // closed with stdin
}

// programs are the programs that can be executed.
var programs = map[string]func(*process) int{
	"echo": func(p *process) int {
		fmt.Fprintln(p.stdout, strings.Join(p.args, " "))
		return 0
	},
	"cat": func(p *process) int {
		_, _ = io.Copy(p.stdout, p.stdin)
		return 0
	},
	"both": func(p *process) int {
		fmt.Fprintln(p.stdout, "to stdout")
		fmt.Fprintln(p.stderr, "to stderr")
		return 0
	},
	"exit": func(p *process) int {
		code, _ := strconv.Atoi(p.args[0])
		return code
	},
	"sha256": func(p *process) int {
		sum := sha256.New()
		n, _ := io.Copy(sum, p.stdin)
		fmt.Fprintf(p.stdout, "%d bytes %x\n", n, sum.Sum(nil))
		return 0
	},
	// bytes writes the given number of bytes, cycling through all values.
	"bytes": func(p *process) int {
		left, _ := strconv.Atoi(p.args[0])
		chunk := make([]byte, 40000)
		for i := range chunk {
			chunk[i] = byte(i)
		}
		for left > 0 {
			n, err := p.stdout.Write(chunk[:min(left, len(chunk))])
			if err != nil {
				return 1
			}
			left -= n
		}
		return 0
	},
	// sizes prints the size of the terminal and every change, and ends with the key q.
	"sizes": func(p *process) int {
		fmt.Fprintf(p.stdout, "tty=%v size=%dx%d\r\n", p.tty, p.size.GetWidth(), p.size.GetHeight())
		go func() {
			for s := range p.resize {
				fmt.Fprintf(p.stdout, "size=%dx%d\r\n", s.Width, s.Height)
			}
		}()
		return untilKey(p, 'q')
	},
	// keys prints each byte that it reads and ends with the key q.
	"keys": func(p *process) int {
		fmt.Fprint(p.stdout, "type\r\n")
		return untilKey(p, 'q')
	},
	"hang": func(p *process) int {
		fmt.Fprintln(p.stdout, "hanging")
		<-p.ctx.Done()
		return 137
	},
	// crash makes huskd go away once a byte was read.
	"crash": func(p *process) int {
		fmt.Fprint(p.stdout, "type\r\n")
		_, _ = p.stdin.Read(make([]byte, 1))
		p.crash()
		<-p.ctx.Done()
		return 0
	},
}

func untilKey(p *process, last byte) int {
	key := make([]byte, 1)
	for {
		if _, err := p.stdin.Read(key); err != nil {
			fmt.Fprint(p.stdout, "eof\r\n")
			return 1
		}
		if key[0] == last {
			return 0
		}
		fmt.Fprintf(p.stdout, "key=%d\r\n", key[0])
	}
}

type sessionStream = grpc.BidiStreamingServer[huskv1.SessionInput, huskv1.SessionOutput]

// Exec runs one of the programs.
func (h *Huskd) Exec(stream sessionStream) error {
	start, _, c, err := h.receiveStart(stream)
	if err != nil {
		return err
	}
	if len(start.Args) == 0 {
		return status.Error(codes.InvalidArgument, "exec needs a program")
	}
	if c.State != "Running" {
		return status.Errorf(codes.FailedPrecondition, "container %s isn't running: see husk ps", c.Name)
	}
	return h.converse(stream, start, c.Name)
}

// Attach runs the container's main program for this client.
func (h *Huskd) Attach(stream sessionStream) error {
	start, p, c, err := h.receiveStart(stream)
	if err != nil {
		return err
	}
	if len(start.Args) > 0 {
		return status.Error(codes.InvalidArgument, "attach takes no program")
	}
	h.mu.Lock()
	m := specOf(h, p, c)
	h.mu.Unlock()
	start.Args = m.program()
	start.Stdin, start.Tty = start.Stdin && m.Stdin, m.TTY
	return h.converse(stream, start, c.Name)
}

// receiveStart receives the start of a session.
func (h *Huskd) receiveStart(stream sessionStream) (*huskv1.SessionStart, *huskv1.Pod, *huskv1.Container, error) {
	m, err := stream.Recv()
	if err != nil {
		return nil, nil, nil, err
	}
	start := m.GetStart()
	if start == nil {
		return nil, nil, nil, status.Error(codes.InvalidArgument, "the first message of a session must be its start")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p, c, err := h.findContainer(start.Name, start.Container)
	return start, p, c, err
}

// output sends the output of a program.
type output struct {
	mu     *sync.Mutex // serializes messages on the stream
	stream sessionStream
	stderr bool
}

func (o output) Write(b []byte) (int, error) {
	m := &huskv1.SessionOutput{Of: &huskv1.SessionOutput_Stdout{Stdout: slices.Clone(b)}}
	if o.stderr {
		m = &huskv1.SessionOutput{Of: &huskv1.SessionOutput_Stderr{Stderr: slices.Clone(b)}}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(b), o.stream.Send(m)
}

func (h *Huskd) converse(stream sessionStream, start *huskv1.SessionStart, container string) error {
	h.mu.Lock()
	p, _, err := h.findContainer(start.Name, start.Container)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	started := &huskv1.SessionStarted{Namespace: p.Namespace, Name: p.Name, Container: container, Stdin: start.Stdin, Tty: start.Tty}
	if err := stream.Send(&huskv1.SessionOutput{Of: &huskv1.SessionOutput_Started{Started: started}}); err != nil {
		return err
	}
	var mu sync.Mutex
	stdin, typed := io.Pipe()
	run := &process{
		ctx: stream.Context(), crash: h.crash, args: start.Args[1:], tty: start.Tty, size: start.Size, stdin: stdin,
		stdout: output{&mu, stream, false}, stderr: output{&mu, stream, !start.Tty},
		resize: make(chan *huskv1.TerminalSize, 16),
	}
	if !start.Stdin {
		typed.Close()
	}
	go run.receive(stream, typed)
	code := 127
	if program := programs[start.Args[0]]; program != nil {
		code = program(run)
	} else {
		fmt.Fprintf(run.stderr, "%s: not found in the container\n", start.Args[0])
	}
	stdin.Close()
	mu.Lock()
	defer mu.Unlock()
	return stream.Send(&huskv1.SessionOutput{Of: &huskv1.SessionOutput_ExitCode{ExitCode: int32(code)}})
}

// receive passes input on until the session ends.
func (p *process) receive(stream sessionStream, typed *io.PipeWriter) {
	defer close(p.resize)
	for {
		m, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			typed.CloseWithError(err)
			return
		}
		switch of := m.Of.(type) {
		case *huskv1.SessionInput_Stdin:
			_, _ = typed.Write(of.Stdin) // fails once the program has ended
		case *huskv1.SessionInput_CloseStdin:
			typed.Close()
		case *huskv1.SessionInput_Resize:
			select {
			case p.resize <- of.Resize:
			case <-p.ctx.Done():
			}
		}
	}
}
