package stream

import (
	"bufio"
	"net"
	"net/http"
)

// watched calls disconnected when the hijacked connection is closed or can't be read any more.
type watched struct {
	http.ResponseWriter
	disconnected func()
}

// Hijack returns the connection, watched.
func (w *watched) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(w.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	// The data that the server has already read comes first.
	ahead, _ := rw.Reader.Peek(rw.Reader.Buffered())
	c := &watchedConn{Conn: conn, ahead: append([]byte(nil), ahead...), disconnected: w.disconnected}
	return c, bufio.NewReadWriter(bufio.NewReader(c), bufio.NewWriter(c)), nil
}

// Flush sends what is buffered.
func (w *watched) Flush() { _ = http.NewResponseController(w.ResponseWriter).Flush() }

type watchedConn struct {
	net.Conn
	ahead        []byte // read by the server before the hijack
	disconnected func()
}

func (c *watchedConn) Read(p []byte) (int, error) {
	if len(c.ahead) > 0 {
		n := copy(p, c.ahead)
		c.ahead = c.ahead[n:]
		return n, nil
	}
	n, err := c.Conn.Read(p)
	if err != nil && !isTimeout(err) {
		c.disconnected()
	}
	return n, err
}

// Close closes the connection. The handler of the client's protocol calls it when the client says
// goodbye.
func (c *watchedConn) Close() error {
	c.disconnected()
	return c.Conn.Close()
}

func isTimeout(err error) bool {
	timeout, ok := err.(net.Error) // net doesn't wrap its errors
	return ok && timeout.Timeout()
}
