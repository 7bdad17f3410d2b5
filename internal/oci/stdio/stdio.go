// Package stdio provides the standard streams of an exec: the program's pipes or terminal, and the
// copying between these and the client.
package stdio

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/poll"
)

// None means no file descriptor.
const None = -1

// Pipes are the standard streams of a program: up to three pipes, or a terminal.
type Pipes struct {
	programEnds [3]int // what the program gets
	// Our ends; nil for none.
	stdin, stdout, stderr *os.File
	terminal              *os.File
	copying               sync.WaitGroup
}

// New makes a pipe for each of stdin, stdout and stderr that is wanted.
func New(wanted [3]bool) (*Pipes, error) {
	p := &Pipes{programEnds: [3]int{None, None, None}}
	for n, ours := range []**os.File{&p.stdin, &p.stdout, &p.stderr} {
		if !wanted[n] {
			continue
		}
		var err error
		if *ours, err = p.pipe(n); err != nil {
			p.Close()
			return nil, err
		}
	}
	return p, nil
}

// pipe makes the pipe for the program's file descriptor n. It returns our end, which unlike the
// program's is non-blocking.
func (p *Pipes) pipe(n int) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	theirs, ours := ends[1], ends[0]
	if n == 0 {
		theirs, ours = ends[0], ends[1]
	}
	p.programEnds[n] = theirs
	return poll.New(ours, "stdio")
}

// ProgramEnds returns the program's ends; None for a stream without a pipe.
func (p *Pipes) ProgramEnds() [3]int { return p.programEnds }

// Chown gives the pipes to a user, if uid isn't nil, so that the program can open /dev/stdout
// again.
func (p *Pipes) Chown(uid *int) error {
	if uid == nil {
		return nil
	}
	for _, fd := range p.programEnds {
		if fd == None {
			continue
		}
		if err := unix.Fchown(fd, *uid, -1); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	return nil
}

// CloseProgramEnds closes the program's ends of the given streams, once the program has its copies.
func (p *Pipes) CloseProgramEnds(streams ...int) {
	for _, n := range streams {
		if fd := p.programEnds[n]; fd != None {
			_ = unix.Close(fd)
			p.programEnds[n] = None
		}
	}
}

// Close closes everything that is open.
func (p *Pipes) Close() {
	p.CloseProgramEnds(0, 1, 2)
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.terminal} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// UseTerminal connects a terminal instead of the pipes for stdin and stdout. It is closed with the
// pipes.
func (p *Pipes) UseTerminal(terminal *os.File) { p.terminal = terminal }

// ReadStderr returns what can be read from stderr without waiting, up to a limit.
func (p *Pipes) ReadStderr() string {
	var out limitedBuffer
	drain(p.stderr, &out)
	return string(out)
}

// limitedBuffer keeps the beginning of what is written to it.
type limitedBuffer []byte

func (b *limitedBuffer) Write(p []byte) (int, error) {
	const limit = 16 << 10
	*b = append(*b, p[:min(len(p), limit-len(*b))]...)
	return len(p), nil
}

// Connect starts copying between the streams and the program. It calls ended when all of the
// client's input has been copied.
func (p *Pipes) Connect(s oci.Streams, ended func()) {
	in, out := p.stdin, p.stdout
	errs := s.Stderr
	if p.terminal != nil {
		in, out, errs = p.terminal, p.terminal, io.Discard
	}
	if p.stderr != nil {
		p.copyTo(errs, p.stderr)
	}
	if out != nil {
		p.copyTo(s.Stdout, out)
	}
	if in != nil && s.Stdin != nil {
		// Finish doesn't wait for this goroutine: it may be blocked in the client's Read.
		go func() {
			_, _ = io.Copy(in, s.Stdin)
			if p.terminal == nil {
				_ = in.Close()
			}
			ended()
		}()
	}
}

// copyTo copies until the end of from, or until Finish interrupts it. If the client doesn't accept
// more, it closes the pipe.
func (p *Pipes) copyTo(to io.Writer, from *os.File) {
	if to == nil {
		to = io.Discard
	}
	p.copying.Go(func() {
		buf := make([]byte, 32<<10)
		for {
			n, err := from.Read(buf)
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					_ = from.Close()
					return
				}
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				drain(from, to)
				return
			}
			if err != nil {
				return // the end, which is EIO on a terminal
			}
		}
	})
}

// StallLimit is how long Finish waits, after its context has ended, for a client that doesn't read.
const StallLimit = time.Second

// Finish delivers what the program wrote before it exited. Other processes may keep the pipes open
// and go on writing: their output is lost.
func (p *Pipes) Finish(ctx context.Context) {
	for _, f := range []*os.File{p.stdout, p.stderr, p.terminal} {
		if f != nil {
			poll.Interrupt(f)
		}
	}
	done := make(chan struct{})
	go func() {
		p.copying.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(StallLimit):
	}
}

// drain copies what can be read without waiting.
func drain(from *os.File, to io.Writer) {
	raw, err := from.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n := 0
		err := raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf) })
		if err != nil || n <= 0 {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}

// ForwardSizes applies each new size of the client's terminal until ctx ends.
func ForwardSizes(ctx context.Context, sizes <-chan oci.Size, apply func(oci.Size)) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			apply(size)
		}
	}
}
