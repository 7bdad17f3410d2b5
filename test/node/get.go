package node

import (
	"io"
	"net"
	"strings"
	"time"

	"github.com/huskd/husk/internal/netns"
)

// Get sends a GET request to the web server at address ("10.1.2.3:80") from the network namespace
// at path, and returns the body.
func Get(path, address string) (body string, err error) {
	err = netns.Do(path, func() error {
		conn, err := net.DialTimeout("tcp", address, 3*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		answer, err := io.ReadAll(conn)
		_, body, _ = strings.Cut(string(answer), "\r\n\r\n")
		return err
	})
	return body, err
}
