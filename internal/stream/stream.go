// Package stream serves CRI's interactive sessions, exec, attach and port
// forwarding, over SPDY and WebSocket. Whoever asks for one gets a URL on the
// node's loopback with a token that serves once and for a minute only.
package stream

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/huskd/husk/internal/oci"
)

// Containers are what sessions are with.
type Containers interface {
	Exec(ctx context.Context, e oci.Exec) (code int, err error)
	Attach(ctx context.Context, id string, streams oci.Streams) error
}

// Config is what the server needs.
type Config struct {
	Containers Containers
	// Netns returns the path of a sandbox's network namespace; empty for that
	// of the node.
	Netns func(sandbox string) (string, error)
	Log   *slog.Logger
}

// Server serves sessions.
type Server struct {
	runtime  runtime
	tickets  tickets
	listener net.Listener
	http     *http.Server
	closing  context.Context
	close    context.CancelFunc
}

const (
	// headerTimeout is how long a client may take to say what it wants.
	headerTimeout = 10 * time.Second
	// idleTimeout is how long a session may be silent, as kubelet has it.
	idleTimeout = 4 * time.Hour
)

// quieten keeps the library's logger, which a process has one of, from being set
// while it is used.
var quieten sync.Once

// New listens on a free port of the loopback.
func New(cfg Config) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve sessions: %w", err)
	}
	s := &Server{runtime: runtime{cfg}, listener: listener}
	s.closing, s.close = context.WithCancel(context.Background())
	quieten.Do(func() { klog.SetSlogLogger(slog.New(quiet{cfg.Log.Handler()})) })
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: headerTimeout,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve serves until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve sessions: %w", err)
	}
	return nil
}

// Close ends the server and the sessions under way.
func (s *Server) Close() {
	s.close()
	_ = s.http.Close()
}

// Exec returns where the program of req can be run once.
func (s *Server) Exec(req *runtimeapi.ExecRequest) (string, error) {
	o := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	return s.issue("exec", o, session{id: req.GetContainerId(), args: req.GetCmd(), options: o})
}

// Attach returns where the container of req can be attached to once.
func (s *Server) Attach(req *runtimeapi.AttachRequest) (string, error) {
	o := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	return s.issue("attach", o, session{id: req.GetContainerId(), options: o})
}

// PortForward returns where the ports of req can be reached once.
func (s *Server) PortForward(req *runtimeapi.PortForwardRequest) (string, error) {
	return s.issue("portforward", remotecommand.Options{Stdout: true}, session{id: req.GetPodSandboxId(), ports: req.GetPort()})
}

func (s *Server) issue(kind string, o remotecommand.Options, of session) (string, error) {
	switch {
	case o.TTY && o.Stderr:
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + ": a terminal has no stderr of its own: leave out one of tty and stderr")
	case !o.Stdin && !o.Stdout && !o.Stderr:
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + ": ask for stdin, stdout or stderr")
	}
	token, err := s.tickets.issue(kind, of)
	if err != nil {
		return "", err
	}
	return "http://" + s.listener.Addr().String() + "/" + kind + "/" + token, nil
}

// session is what a token stands for: an exec, an attach or a port forwarding.
type session struct {
	id      string // of the container or the sandbox
	args    []string
	options remotecommand.Options
	ports   []int32
}

// serve lets a client in that has a token.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	kind, token, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	of, ok := s.tickets.take(kind, token)
	if !ok {
		http.Error(w, "no session has this token: it serves once, for a minute", http.StatusNotFound)
		return
	}
	s.begin(w, r, kind, of)
}

// begin serves a session. It ends when its client leaves: the server no longer
// looks at a connection that was taken over.
func (s *Server) begin(w http.ResponseWriter, r *http.Request, kind string, of session) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	w, r = &watched{w, cancel}, r.WithContext(ctx)
	switch {
	case kind == "portforward":
		s.forward(w, r, of)
	case wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		s.runtime.serveChannels(w, r, kind, of)
	case kind == "exec":
		remotecommand.ServeExec(w, r, s.runtime, "", "", of.id, of.args, &of.options,
			idleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
	default:
		remotecommand.ServeAttach(w, r, s.runtime, "", "", of.id, &of.options,
			idleTimeout, remotecommand.DefaultStreamCreationTimeout, remotecommand.SupportedStreamingProtocols)
	}
}

func (s *Server) forward(w http.ResponseWriter, r *http.Request, of session) {
	options, err := portforward.BuildV4Options(of.ports)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	serve := func(w http.ResponseWriter, r *http.Request) {
		portforward.ServePortForward(w, r, s.runtime, of.id, "", options,
			idleTimeout, remotecommand.DefaultStreamCreationTimeout, portforward.SupportedProtocols)
	}
	if wsstream.IsWebSocketRequestWithTunnelingProtocol(r) {
		serveTunnel(w, r, serve)
		return
	}
	serve(w, r)
}
