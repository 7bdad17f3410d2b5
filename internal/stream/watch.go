package stream

import (
	"bufio"
	"net"
	"net/http"
)

// watched has gone called when a connection that was taken over is closed or
// can no longer be read: its client has left.
type watched struct {
	http.ResponseWriter
	gone func()
}

// Hijack hands out the connection.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// What the server has read ahead comes first.
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	c := &watchedConn{Conn: conn, ahead: append([]byte(nil), ahead...), gone: w.gone}
	return c, bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c)), nil
}

// Flush sends what was written.
func (w *watched) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

type watchedConn struct {
	net.Conn
	ahead []byte
	gone  func()
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if err != nil && !isTimeout(err) {
		c.gone()
	}
	return n, err
}

// Close closes the connection. A client that says goodbye is heard by whoever
// speaks its protocol, who then closes.
func (c *watchedConn) Close() error {
	c.gone()
	return c.Conn.Close()
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) // net's own, never wrapped
	return ok && timeout.Timeout()
}
