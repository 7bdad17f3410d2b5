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

// Session is what a client that another server has let in asks for.
type Session struct {
	Kind string
	// ID is that of the container or, for ports, of the sandbox.
	ID                         string
	Args                       []string
	Stdin, Stdout, Stderr, TTY bool
	Ports                      []int32 // if the client names them beforehand
}

// Join serves a session to a client of another server.
func (s *Server) Join(w http.ResponseWriter, r *http.Request, of Session) {
	s.begin(w, r, of.Kind, session{id: of.ID, args: of.Args, ports: of.Ports, options: remotecommand.Options{
		Stdin: of.Stdin, Stdout: of.Stdout, Stderr: of.Stderr, TTY: of.TTY,
	}})
}
