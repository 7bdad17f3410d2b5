// Package stdio has the standard streams of a program that a driver of OCI
// runtimes execs: the pipes or the terminal that it gets, and the copying
// between those and the client.
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

// None stands for no file descriptor.
const None = -1

// Pipes are the standard streams of a program: up to three pipes, or a terminal.
type Pipes struct {
	theirs [3]int // what the program gets
	// ours are the other ends; nil for none.
	stdin, stdout, stderr *os.File
	terminal              *os.File
	copying               sync.WaitGroup
}

// New makes a pipe for each of stdin, stdout and stderr that is wanted.
func New(wanted [3]bool) (*Pipes, error) {
	p := &Pipes{theirs: [3]int{None, None, None}}
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

// pipe makes the pipe for the program's file descriptor n and returns our end,
// the only one that doesn't block.
func (p *Pipes) pipe(n int) (*os.File, error) {
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe2", err)
	}
	theirs, ours := ends[1], ends[0]
	if n == 0 {
		theirs, ours = ends[0], ends[1]
	}
	p.theirs[n] = theirs
	return poll.New(ours, "stdio")
}

// Theirs are the program's ends; None for a stream that has no pipe.
func (p *Pipes) ProgramEnds() [3]int { return p.theirs }

// Own gives the pipes to a user, if one is given, so that it can open
// /dev/stdout anew.
func (p *Pipes) Chown(uid *int) error {
	if uid == nil {
		return nil
	}
	for _, fd := range p.theirs {
		if fd == None {
			continue
		}
		if err := unix.Fchown(fd, *uid, -1); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	return nil
}

// CloseTheirs closes the program's ends of the given streams, of which it has
// copies of its own.
func (p *Pipes) CloseProgramEnds(streams ...int) {
	for _, n := range streams {
		if fd := p.theirs[n]; fd != None {
			_ = unix.Close(fd)
			p.theirs[n] = None
		}
	}
}

// Close closes all that is open.
func (p *Pipes) Close() {
	p.CloseProgramEnds(0, 1, 2)
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.terminal} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// UseTerminal has the program's input and output go through a terminal, which
// is closed with the pipes.
func (p *Pipes) UseTerminal(terminal *os.File) { p.terminal = terminal }

// Words returns what there is to read on stderr.
func (p *Pipes) ReadStderr() string {
	var said limitedBuffer
	drain(p.stderr, &said)
	return string(said)
}

// limitedBuffer keeps the beginning of what is written to it.
type limitedBuffer []byte

func (b *limitedBuffer) Write(p []byte) (int, error) {
	const limit = 16 << 10
	*b = append(*b, p[:min(len(p), limit-len(*b))]...)
	return len(p), nil
}

// Connect begins to copy between the streams and the program. When the client's
// input has ended and was passed on, ended is called.
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
		// Not waited for: it may stay in a Read of the client's.
		go func() {
			_, _ = io.Copy(in, s.Stdin)
			if p.terminal == nil {
				_ = in.Close()
			}
			ended()
		}()
	}
}

// copyTo copies until the end of from, or until Finish has it stop. A client
// that takes no more closes the pipe to the program.
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
				return // the end; of a terminal it is EIO
			}
		}
	})
}

// StallLimit is how long the output of a program that was killed may wait for a
// client that doesn't take it.
const StallLimit = time.Second

// Finish delivers what the program wrote before it ended. Others that hold the
// same pipe may go on writing: that is lost.
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

// ForwardSizes applies the sizes of a terminal as the client's changes, until ctx
// ends.
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
