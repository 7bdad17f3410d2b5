package nameserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// What a client, and all clients, may have in progress: questions that are forwarded, and
// connections. Each may always have some, so that not even many pods together take all of it.
const (
	maxOfClient = 100
	maxOfAll    = 1000
	always      = 5
)

// clients counts what clients have in progress.
type clients struct {
	mu    sync.Mutex
	total int
	of    map[string]int
}

// begin counts one more, or returns false if that is too many.
func (c *clients) begin(client string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has := c.of[client]; has >= maxOfClient || c.total >= maxOfAll && has >= always {
		return false
	}
	if c.of == nil {
		c.of = map[string]int{}
	}
	c.total++
	c.of[client]++
	return true
}

// end counts one less.
func (c *clients) end(client string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.of[client]--; c.of[client] == 0 {
		delete(c.of, client)
	}
}

// limited accepts the connections of clients of the server, as many as they may have.
type limited struct {
	net.Listener
	server *Server
}

// Accept returns the next connection, and closes those that are not accepted.
func (l limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := l.server.client(conn.RemoteAddr())
		if client != "" && l.server.limiter.admits(client, time.Now()) && l.server.connections.begin(client) {
			return &counted{Conn: conn, end: sync.OnceFunc(func() { l.server.connections.end(client) })}, nil
		}
		_ = conn.Close()
	}
}

// counted is a connection that counts until it is closed.
type counted struct {
	net.Conn
	end func()
}

// Close closes the connection.
func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}

// reader reads the questions that are answered, of those that arrive. The others cost no more than
// that.
type reader struct {
	dns.Reader
	server *Server
}

// ReadUDP returns the next question that is answered.
func (r *reader) ReadUDP(conn *net.UDPConn, timeout time.Duration) ([]byte, *dns.SessionUDP, error) {
	for {
		m, session, err := r.Reader.ReadUDP(conn, timeout)
		if err != nil {
			return m, session, err
		}
		if client := r.server.client(session.RemoteAddr()); client != "" && r.server.limiter.admits(client, time.Now()) {
			return m, session, nil
		}
	}
}

// ReadTCP returns the next question of a connection. An error closes it: so ends one with a
// question too many, or too long, or that doesn't arrive in time.
func (r *reader) ReadTCP(conn net.Conn, timeout time.Duration) ([]byte, error) {
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var size uint16
	if err := binary.Read(conn, binary.BigEndian, &size); err != nil {
		return nil, err
	}
	if size > querySize {
		return nil, fmt.Errorf("a query of %d bytes", size)
	}
	m := make([]byte, size)
	if _, err := io.ReadFull(conn, m); err != nil {
		return nil, err
	}
	if client := r.server.client(conn.RemoteAddr()); client == "" || !r.server.limiter.admits(client, time.Now()) {
		return nil, errors.New("a query too many")
	}
	return m, nil
}
