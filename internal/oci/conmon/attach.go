package conmon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
)

// The first byte of a message of conmon's attach socket says which stream the
// rest is of.
const (
	fromStdout = 2
	fromStderr = 3
)

const (
	// largestMessage is more than what conmon sends at once, 1 + 8192 bytes.
	largestMessage = 16 << 10
	// inputSize is what is sent at once; conmon takes up to 32 KiB.
	inputSize = 8 << 10
)

// Client is a connection to conmon's attach socket.
type Client struct {
	conn *net.UnixConn
	stop func() bool
}

// Attach connects to the conmon of a bundle, until ctx ends. The path goes
// through /proc, for that of a socket can't be longer than 107 bytes.
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

// Close hangs up. To conmon that is the end of the input, if it was started to
// care (no --leave-stdin-open).
func (c *Client) Close() {
	c.stop()
	_ = c.conn.Close()
}

// Linger stays connected until the container ends, in the background.
func (c *Client) Linger() {
	c.stop()
	_ = c.conn.SetDeadline(time.Time{})
	go func() {
		_ = c.Receive(nil, nil)
		_ = c.conn.Close()
	}()
}

// Receive hands out what the container writes until conmon hangs up. A nil
// writer gets nothing.
func (c *Client) Receive(stdout, stderr io.Writer) error {
	buf := make([]byte, largestMessage)
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

// Send passes the client's input on. Its end is told by closing our half.
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

// Input says what becomes of what clients type.
type Input struct {
	// Open says that the container has a standard input, Once that the first
	// client's leaving ends it.
	Open, Once bool
}

// Serve connects the streams until conmon hangs up or the client takes no more,
// and then hangs up itself. A Read of s.Stdin may go on after that, until the
// client's side is closed.
func (c *Client) Serve(s oci.Streams, input Input) error {
	switch {
	case s.Stdin == nil:
	case input.Open:
		go c.Send(s.Stdin)
	default:
		go func() { _, _ = io.Copy(io.Discard, s.Stdin) }() // so that typing doesn't block
	}
	err := c.Receive(s.Stdout, s.Stderr)
	// With Once conmon takes any client's leaving for the end of the input. One
	// that gave none stays connected for as long as it lasts.
	if input.Open && input.Once && s.Stdin == nil {
		c.Linger()
	} else {
		c.Close()
	}
	return err
}
