package probe

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dialer sets SO_LINGER, so that probes don't leave connections in TIME_WAIT.
var dialer = net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
	return c.Control(func(fd uintptr) {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 1})
	})
}}

// transport sends each request over a connection of its own, in the caller's goroutine. An
// http.Transport starts three goroutines for a connection, whose stacks grow and which wake each
// other: that took most of the processor time of a probe.
type transport struct{}

const (
	// maxAnswer bounds what is read of an answer.
	maxAnswer = 1 << 20
	// maxInformational is how many answers such as 103 Early Hints may come before the answer.
	maxInformational = 5
)

// RoundTrip sends a request and reads the head of the answer. Closing its body closes the
// connection.
func (transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	conn, err := connect(ctx, r)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	answer, err := exchange(conn, r)
	if err != nil {
		stop()
		_ = conn.Close()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil, context.DeadlineExceeded
		}
		return nil, err
	}
	answer.Body = &body{answer.Body, conn, stop}
	return answer, nil
}

// connect connects to the server of a request. All that is done with the connection ends at ctx's
// deadline.
func connect(ctx context.Context, r *http.Request) (net.Conn, error) {
	port := "80"
	if r.URL.Scheme == "https" {
		port = "443"
	}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(r.URL.Hostname(), cmp.Or(r.URL.Port(), port)))
	if err != nil {
		return nil, err
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if r.URL.Scheme != "https" {
		return conn, nil
	}
	//nolint:gosec // as in kubelet, probes don't verify certificates
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true, ServerName: r.URL.Hostname()}), nil
}

// exchange sends a request and reads the head of the answer.
func exchange(conn net.Conn, r *http.Request) (*http.Response, error) {
	once := r.WithContext(r.Context())
	once.Close = true // says so to the server
	if err := once.Write(conn); err != nil {
		return nil, err
	}
	from := bufio.NewReader(io.LimitReader(conn, maxAnswer))
	for range maxInformational + 1 {
		answer, err := http.ReadResponse(from, once)
		if err != nil || answer.StatusCode >= http.StatusOK || answer.StatusCode == http.StatusSwitchingProtocols {
			return answer, err
		}
	}
	return nil, errors.New("too many informational answers")
}

// body is the body of an answer.
type body struct {
	io.ReadCloser
	conn net.Conn
	stop func() bool
}

// Close closes the connection. It doesn't read the rest of the body.
func (b *body) Close() error {
	b.stop()
	return b.conn.Close()
}
