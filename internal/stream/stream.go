// Package stream serves CRI's interactive sessions, exec, attach and port forwarding, over SPDY and
// WebSocket. A client gets a URL on the node's loopback, whose token is valid once and for one
// minute.
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
	"golang.org/x/net/netutil"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/klog/v2"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/huskd/husk/internal/oci"
)

// Containers are the containers that sessions connect to.
type Containers interface {
	Exec(ctx context.Context, e oci.Exec) (code int, err error)
	Attach(ctx context.Context, id string, streams oci.Streams) error
}

// Config configures a Server.
type Config struct {
	Containers Containers
	// Netns returns the path of a sandbox's network namespace, or "" for that of the node.
	Netns func(sandbox string) (string, error)
	Log   *slog.Logger
}

// Server serves sessions.
type Server struct {
	runtime  runtime
	tokens   tokens
	listener net.Listener
	http     *http.Server
	closing  context.Context
	close    context.CancelFunc
}

const (
	// headerTimeout is how long a client may take to send the header of a request.
	headerTimeout = 10 * time.Second
	// maxConnections bounds the sessions. Every process on the node can connect.
	maxConnections = 1000
	// idleTimeout is how long a session may be idle, as for a kubelet.
	idleTimeout = 4 * time.Hour
)

// setLogger sets the library's logger once: it is global, and must not be set while it is in use.
var setLogger sync.Once

// New returns a server that listens on a free port of the loopback.
func New(cfg Config) (*Server, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve sessions: %w", err)
	}
	s := &Server{runtime: runtime{cfg}, listener: listener}
	s.closing, s.close = context.WithCancel(context.Background())
	setLogger.Do(func() { klog.SetSlogLogger(slog.New(debugHandler{cfg.Log.Handler()})) })
	s.http = &http.Server{
		Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: headerTimeout, IdleTimeout: headerTimeout,
		ErrorLog: slog.NewLogLogger(cfg.Log.Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Serve serves until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(netutil.LimitListener(s.listener, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve sessions: %w", err)
	}
	return nil
}

// Close stops the server and ends all sessions.
func (s *Server) Close() {
	s.close()
	_ = s.http.Close()
}

// Exec returns the URL by which the program of req can be run once.
func (s *Server) Exec(req *runtimeapi.ExecRequest) (string, error) {
	o := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	return s.issue(Exec, o, session{id: req.GetContainerId(), args: req.GetCmd(), options: o})
}

// Attach returns the URL by which a client can attach to the container of req once.
func (s *Server) Attach(req *runtimeapi.AttachRequest) (string, error) {
	o := remotecommand.Options{Stdin: req.GetStdin(), Stdout: req.GetStdout(), Stderr: req.GetStderr(), TTY: req.GetTty()}
	return s.issue(Attach, o, session{id: req.GetContainerId(), options: o})
}

// PortForward returns the URL by which the ports of req can be reached once.
func (s *Server) PortForward(req *runtimeapi.PortForwardRequest) (string, error) {
	return s.issue(PortForward, remotecommand.Options{Stdout: true}, session{id: req.GetPodSandboxId(), ports: req.GetPort()})
}

func (s *Server) issue(kind string, o remotecommand.Options, of session) (string, error) {
	switch {
	case o.TTY && o.Stderr:
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + ": a terminal has no stderr of its own: leave out one of tty and stderr")
	case !o.Stdin && !o.Stdout && !o.Stderr:
		return "", errdefs.ErrInvalidArgument.WithMessage(kind + ": ask for stdin, stdout or stderr")
	}
	token, err := s.tokens.issue(kind, of)
	if err != nil {
		return "", err
	}
	return "http://" + s.listener.Addr().String() + "/" + kind + "/" + token, nil
}

// session is a requested exec, attach or port forwarding.
type session struct {
	id      string // of the container or sandbox
	args    []string
	options remotecommand.Options
	ports   []int32
}

// serve serves the session of a client's token.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	kind, token, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	requested, ok := s.tokens.redeem(kind, token)
	if !ok {
		http.Error(w, "no session has this token: a token is valid once, for one minute", http.StatusNotFound)
		return
	}
	s.start(w, r, kind, requested)
}

// start serves a session. It watches the hijacked connection, because net/http no longer does, and
// ends the session when the client disconnects.
func (s *Server) start(w http.ResponseWriter, r *http.Request, kind string, of session) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(s.closing, cancel)()
	w, r = &watched{w, cancel}, r.WithContext(ctx)
	switch {
	case kind == PortForward:
		s.forward(w, r, of)
	case wsstream.IsWebSocketRequestWithStreamCloseProtocol(r):
		s.runtime.serveChannels(w, r, kind, of)
	case kind == Exec:
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
