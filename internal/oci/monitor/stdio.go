package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/poll"
)

// stdio are the standard streams of an exec'd program: three pipes, or a
// terminal.
type stdio struct {
	theirs [3]int // what the program gets
	// ours are the other ends; nil for none.
	stdin, stdout, stderr *os.File
	terminal              *os.File
	copying               sync.WaitGroup
}

// newStdio makes a pipe for each stream that the client has. There is always
// one for stderr: the runtime says there why it can't start the program.
func newStdio(s oci.Streams) (*stdio, error) {
	p := &stdio{theirs: [3]int{conmon.None, conmon.None, conmon.None}}
	var err error
	if s.Stdin != nil && !s.TTY {
		p.stdin, err = p.pipe(0)
	}
	if err == nil && s.Stdout != nil && !s.TTY {
		p.stdout, err = p.pipe(1)
	}
	if err == nil {
		p.stderr, err = p.pipe(2)
	}
	if err != nil {
		p.closeTheirs()
		p.close()
		return nil, err
	}
	return p, nil
}

// pipe makes the pipe for the program's file descriptor n and returns our end,
// the only one that doesn't block.
func (p *stdio) pipe(n int) (*os.File, error) {
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

// own gives the pipes to a user: see ownStdio.
func (p *stdio) own(uid *int) error {
	if uid == nil {
		return nil
	}
	for _, fd := range p.theirs {
		if fd == conmon.None {
			continue
		}
		if err := unix.Fchown(fd, *uid, -1); err != nil {
			return os.NewSyscallError("fchown", err)
		}
	}
	return nil
}

func (p *stdio) closeTheirs() {
	for i, fd := range p.theirs {
		if fd != conmon.None {
			_ = unix.Close(fd)
			p.theirs[i] = conmon.None
		}
	}
}

func (p *stdio) close() {
	for _, f := range []*os.File{p.stdin, p.stdout, p.stderr, p.terminal} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// words returns what there is to read on stderr.
func (p *stdio) words() string {
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

// connect begins to copy between the streams and the program.
func (p *stdio) connect(ctx context.Context, s oci.Streams) {
	in, out := p.stdin, p.stdout
	if p.terminal != nil {
		in, out = p.terminal, p.terminal
		if s.Resize != nil {
			go eachSize(ctx, s.Resize, p.resize)
		}
		p.copyTo(io.Discard, p.stderr)
	} else {
		p.copyTo(s.Stderr, p.stderr)
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
		}()
	}
}

// copyTo copies until the end of from, or until finish has it stop. A client
// that takes no more closes the pipe to the program.
func (p *stdio) copyTo(to io.Writer, from *os.File) {
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

// stalled is how long the output of a program that was killed may wait for a
// client that doesn't take it.
const stalled = time.Second

// finish delivers what the program wrote before it ended. Others that hold the
// same pipe may go on writing: that is lost.
func (p *stdio) finish(ctx context.Context) {
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
	case <-time.After(stalled):
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

// consoleFile is the name of the socket through which the runtime hands out the
// terminal. It goes by its name alone, in the working directory: the whole
// path may be too long for a socket.
const consoleFile = "console"

type consoleSocket struct{ *net.UnixListener }

func (c *consoleSocket) close() { _ = c.UnixListener.Close() }

func listenConsole(dir string) (*consoleSocket, error) {
	d, err := os.OpenFile(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	name := filepath.Join(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), consoleFile)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: name})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // the name is void by then; the directory goes
	return &consoleSocket{l}, nil
}

// useTerminal takes the terminal from the socket, where the runtime has left
// it.
func (p *stdio) useTerminal(console *consoleSocket) error {
	deadline := time.Now().Add(stalled)
	_ = console.SetDeadline(deadline)
	conn, err := console.AcceptUnix()
	if err != nil {
		return fmt.Errorf("the runtime hands out no terminal: %w", err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(deadline)
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 4096), control)
	if err != nil {
		return fmt.Errorf("take the terminal: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) == 0 {
		return fmt.Errorf("take the terminal: no file in the message (%v)", err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return fmt.Errorf("take the terminal: %w", err)
	}
	unix.CloseOnExec(fds[0])
	p.terminal, err = poll.New(fds[0], "terminal")
	return err
}

// resize sets the size of the terminal.
func (p *stdio) resize(size oci.Size) {
	raw, err := p.terminal.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: size.Height, Col: size.Width})
	})
}
