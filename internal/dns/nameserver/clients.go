package nameserver

import (
	"net"
	"net/netip"
	"sync"
)

// What the clients of an address, and all clients, may have in progress: questions that are
// forwarded, and connections. No pod can take all of it.
const (
	maxOfClient = 100
	maxOfAll    = 1000
)

// clients counts what clients have in progress.
type clients struct {
	mu    sync.Mutex
	total int
	of    map[netip.Addr]int
}

// begin counts one more, or returns false if that is too many.
func (c *clients) begin(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= maxOfAll || c.of[a] >= maxOfClient {
		return false
	}
	if c.of == nil {
		c.of = map[netip.Addr]int{}
	}
	c.total++
	c.of[a]++
	return true
}

// end counts one less.
func (c *clients) end(a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.total--
	if c.of[a]--; c.of[a] == 0 {
		delete(c.of, a)
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
		client := addressOf(conn.RemoteAddr())
		if l.server.serves(client) && l.server.connections.begin(client) {
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
