package stream

import (
	"net/http"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
)

// Kinds of sessions.
const (
	Exec        = "exec"
	Attach      = "attach"
	PortForward = "portforward"
)

// Session is a session that another server has authorized.
type Session struct {
	Kind string
	// ID is the ID of the container or, for PortForward, of the sandbox.
	ID                         string
	Args                       []string
	Stdin, Stdout, Stderr, TTY bool
	Ports                      []int32 // may be empty: WebSocket clients name them first, SPDY clients in each stream
}

// Join serves a session to a client of another server.
func (s *Server) Join(w http.ResponseWriter, r *http.Request, want Session) {
	s.start(w, r, want.Kind, session{id: want.ID, args: want.Args, ports: want.Ports, options: remotecommand.Options{
		Stdin: want.Stdin, Stdout: want.Stdout, Stderr: want.Stderr, TTY: want.TTY,
	}})
}
