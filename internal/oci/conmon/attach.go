package conmon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
)

// The first byte of a message on conmon's attach socket is the stream of the rest.
const (
	fromStdout = 2
	fromStderr = 3
)

const (
	// messageLimit is more than conmon's largest message, 1 + 8192 bytes.
	messageLimit = 16 << 10
	// inputSize is the size of a message of input; conmon accepts up to 32 KiB.
	inputSize = 8 << 10
)

// Client is a connection to conmon's attach socket.
type Client struct {
	conn *net.UnixConn
	stop func() bool
}

// Attach connects to the conmon of a bundle, until ctx ends. It goes through /proc, because the
// path of a socket can't be longer than 107 bytes.
func Attach(ctx context.Context, bundle string) (*Client, error) {
	dir, err := os.OpenFile(bundle, unix.O_PATH|unix.O_DIRECTORY, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Net: "unixpacket", Name: fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), attachSocket)})
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return &Client{conn, stop}, nil
}

// Close disconnects. conmon then closes the container's stdin, unless it was started with
// --leave-stdin-open.
func (c *Client) Close() {
	c.stop()
	_ = c.conn.Close()
}

// Linger stays connected in the background until the container exits.
func (c *Client) Linger() {
	c.stop()
	_ = c.conn.SetDeadline(time.Time{})
	go func() {
		_ = c.Receive(nil, nil)
		_ = c.conn.Close()
	}()
}

// Receive copies the container's output until conmon disconnects. Output for a nil writer is
// discarded.
func (c *Client) Receive(stdout, stderr io.Writer) error {
	buf := make([]byte, messageLimit)
	for {
		n, err := c.conn.Read(buf)
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
			return nil
		}
		if err != nil {
			return err
		}
		if n == 0 {
			continue
		}
		to := stdout
		if buf[0] == fromStderr {
			to = stderr
		} else if buf[0] != fromStdout {
			continue
		}
		if to == nil {
			continue
		}
		if _, err := to.Write(buf[1:n]); err != nil {
			return err
		}
	}
}

// Send copies the client's input. At its end, Send shuts down the connection for writing.
func (c *Client) Send(stdin io.Reader) {
	buf := make([]byte, inputSize)
	for {
		n, err := stdin.Read(buf)
		if n > 0 {
			if _, err := c.conn.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			_ = c.conn.CloseWrite()
			return
		}
	}
}

// takenInterval is how often awaitTaken looks.
const takenInterval = 5 * time.Millisecond

// awaitTaken waits until conmon has read all that was sent, or the connection is closed. Closing it
// earlier can lose input: conmon gets an error instead if it has sent output that wasn't read.
func (c *Client) awaitTaken() {
	raw, err := c.conn.SyscallConn()
	for err == nil {
		var unread int
		var failed error
		err = raw.Control(func(fd uintptr) { unread, failed = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err != nil || failed != nil || unread == 0 {
			return
		}
		time.Sleep(takenInterval)
	}
}

// Input says what happens to the input of clients.
type Input struct {
	// Open says that the container has stdin. Once says that it is closed when the first client
	// disconnects.
	Open, Once bool
}

// drainTime is how long a client still receives output after its input, which may be an answer to
// it.
const drainTime = 200 * time.Millisecond

// Serve connects the streams until conmon disconnects or writing to the client fails. Without Once,
// the end of s.Stdin ends it too, as in containerd: otherwise a client whose input is a file or a
// pipe would wait for the end of a container that its input can't end. A Read of s.Stdin may still
// be blocked when Serve returns, until the client closes its side.
func (c *Client) Serve(s oci.Streams, input Input) error {
	var inputEnded atomic.Bool
	switch {
	case s.Stdin == nil:
	case input.Open && input.Once:
		go c.Send(s.Stdin)
	case input.Open:
		go func() {
			c.Send(s.Stdin)
			c.awaitTaken()
			inputEnded.Store(true)
			_ = c.conn.SetReadDeadline(time.Now().Add(drainTime))
		}()
	default:
		go func() { _, _ = io.Copy(io.Discard, s.Stdin) }() // so that the client doesn't block
	}
	err := c.Receive(s.Stdout, s.Stderr)
	if errors.Is(err, os.ErrDeadlineExceeded) && inputEnded.Load() {
		err = nil
	}
	// With Once, conmon closes stdin when any client disconnects. So a client without input stays
	// connected until the container exits.
	if input.Open && input.Once && s.Stdin == nil {
		c.Linger()
	} else {
		c.Close()
	}
	return err
}
