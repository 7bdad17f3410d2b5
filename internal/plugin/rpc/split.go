package rpc

import (
	"errors"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Split returns a listener for the connections of l, except for those that start with a request.
// Those are passed to serve, each in its own goroutine. So one socket serves both gRPC and
// husk-cni.
func Split(l net.Listener, serve func(net.Conn)) net.Listener {
	s := &splitter{Listener: l, serve: serve, others: make(chan net.Conn), failed: make(chan error, 1), closed: make(chan struct{})}
	go s.run()
	return s
}

type splitter struct {
	net.Listener
	serve  func(net.Conn)
	others chan net.Conn
	failed chan error
	once   sync.Once
	closed chan struct{}
}

// shortage is how long to wait after the process or the node has run out of file descriptors.
const shortage = 100 * time.Millisecond

func (s *splitter) run() {
	for {
		conn, err := s.Listener.Accept()
		switch {
		case err == nil:
			go s.sort(conn)
			continue
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ECONNABORTED):
			select {
			case <-time.After(shortage):
				continue
			case <-s.closed:
			}
		}
		s.failed <- err
		return
	}
}

// sort dispatches a connection by its first byte: JSON starts with a brace, HTTP/2 with a letter.
func (s *splitter) sort(conn net.Conn) {
	_ = conn.SetReadDeadline(time.Now().Add(requestTimeout))
	var first [1]byte
	if _, err := conn.Read(first[:]); err != nil {
		_ = conn.Close()
		return
	}
	_ = conn.SetReadDeadline(time.Time{})
	conn = &unread{Conn: conn, first: first[:]}
	if first[0] == '{' {
		s.serve(conn)
		return
	}
	select {
	case s.others <- conn:
	case <-s.closed:
		_ = conn.Close()
	}
}

// Accept waits for the next connection that isn't a request.
func (s *splitter) Accept() (net.Conn, error) {
	select {
	case conn := <-s.others:
		return conn, nil
	case err := <-s.failed:
		s.failed <- err // for the next call
		return nil, err
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

// Close closes the underlying listener.
func (s *splitter) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Listener.Close()
}

// unread is a connection that returns the bytes in first before any others.
type unread struct {
	net.Conn
	first []byte
}

func (u *unread) Read(p []byte) (int, error) {
	if len(u.first) == 0 {
		return u.Conn.Read(p)
	}
	n := copy(p, u.first)
	u.first = u.first[n:]
	return n, nil
}
