// Command husk-bgp speaks BGP for huskd, which starts it. It outlives huskd, so that no session
// ends when huskd does. It changes nothing in the kernel: huskd does that with what it learns.
//
// Usage: husk-bgp SOCKET. It is ready once it listens on the socket. See internal/network/companion
// for how it is started, and internal/network/bgp for what it exchanges with huskd.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"time"

	"github.com/huskd/husk/internal/network/bgp"
	"github.com/huskd/husk/internal/network/companion"
)

func main() { companion.Main(bgp.Program+" SOCKET", run) }

func run(args []string, ready func()) error {
	socket := args[0]
	// A socket without a program is that of one that was killed. This node's routes are still in
	// the kernel then, and the peers are told so.
	_, err := os.Stat(socket)
	restarted := err == nil
	if restarted {
		if err := os.Remove(socket); err != nil {
			return err
		}
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return err
	}
	ready()
	return serve(listener, newSpeaker(restarted))
}

// client is a connection of huskd.
type client struct {
	conn net.Conn
	told *bgp.State
}

// serve serves the newest connection until it says to stop.
func serve(listener net.Listener, s *speaker) error {
	clients := make(chan net.Conn)
	messages := make(chan bgp.Desired)
	go func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				clients <- conn
			}
		}
	}()
	var now client
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case conn := <-clients:
			if now.conn != nil {
				_ = now.conn.Close()
			}
			now = client{conn: conn}
			go read(conn, messages)
		case desired := <-messages:
			if desired.Stop {
				_ = listener.Close() // which removes the socket
				s.leave()
				return nil
			}
			s.set(desired)
		case <-s.changed:
		case <-tick.C:
			s.retry()
		}
		now.tell(s.state())
	}
}

// read passes on what huskd sends. A message of another version is only asked whether to stop.
func read(conn net.Conn, messages chan<- bgp.Desired) {
	in := json.NewDecoder(bufio.NewReader(conn))
	for {
		var d bgp.Desired
		if err := in.Decode(&d); err != nil {
			_ = conn.Close()
			return
		}
		if d.Stop || d.Version == bgp.Version {
			messages <- d
		}
	}
}

// tell sends a state unless it is the last one.
func (c *client) tell(state bgp.State) {
	if c.conn == nil || c.told != nil && c.told.Equal(state) {
		return
	}
	_ = c.conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	if err := json.NewEncoder(c.conn).Encode(state); err != nil {
		_ = c.conn.Close()
		*c = client{}
		return
	}
	c.told = &state
}
