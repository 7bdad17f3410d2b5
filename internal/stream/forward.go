package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"

	"github.com/huskd/husk/internal/netns"
)

// Dial connects a client to a port on a sandbox's loopback, until one of them disconnects.
func (s *Server) Dial(ctx context.Context, sandbox string, port int32, client io.ReadWriteCloser) error {
	return s.runtime.PortForward(ctx, sandbox, "", port, client)
}

// PortForward connects a client to a port on a sandbox's loopback, by IPv4 or else IPv6.
func (r runtime) PortForward(ctx context.Context, sandbox, _ string, port int32, client io.ReadWriteCloser) error {
	defer client.Close()
	path, err := r.Netns(sandbox)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, path, port)
	if err != nil {
		return fmt.Errorf("forward port %d: %w", port, err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	answered := make(chan error, 1)
	go func() {
		_, err := io.Copy(client, conn)
		answered <- err
	}()
	go func() {
		_, _ = io.Copy(conn, client)
		// The client has closed its sending side, but may still read.
		_ = conn.CloseWrite()
	}()
	return <-answered
}

// dial connects to a port on the loopback of the network namespace at path.
func dial(ctx context.Context, path string, port int32) (*net.TCPConn, error) {
	var conn net.Conn
	var errs []error
	try := func() error {
		for _, host := range []string{"127.0.0.1", "::1"} {
			// An address, not a name: a lookup would leave this thread and its namespace.
			c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				conn = c
				return nil
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	var err error
	if path == "" {
		err = try()
	} else {
		err = netns.Do(path, try)
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}
