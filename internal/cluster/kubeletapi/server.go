// Package kubeletapi serves the kubelet's HTTPS API: sessions and logs for the API server, metrics
// and figures for those who collect them, and pages about huskd itself. Every request is
// authenticated and authorized. Only the health is also served without, on another port.
package kubeletapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
	"github.com/huskd/husk/internal/stream"
)

const (
	// headerTimeout is how long a client may take to send the header of a request, and idleTimeout
	// how long it may wait before the next one.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxConnections bounds the connections to a listener, and maxHeader the header of a request, in
	// bytes. Pods can connect without a login, and must not use up the file descriptors and the memory
	// of huskd.
	maxConnections = 1000
	maxHeader      = 64 << 10
)

// Accept says what clients may use of TLS.
type Accept struct {
	// MinVersion is the least version; 1.2 if it is 0.
	MinVersion uint16
	// CipherSuites are those of TLS 1.2; Go's defaults if there are none.
	CipherSuites []uint16
}

// Config configures a Server.
type Config struct {
	Client *cluster.Client
	// Node is the node's name.
	Node string
	// Listen is the address to listen on.
	Listen string
	// CertFile and KeyFile are the server's certificate. If they are empty, the server makes a
	// self-signed one.
	CertFile, KeyFile string
	Accept            Accept
	// Signed, if set, returns a certificate that the cluster has signed, or nil before there is
	// one. Until then the server uses its own.
	Signed func() *tls.Certificate
	// ClientCA holds the CA certificates for client certificates, in PEM. If it is empty, only
	// bearer tokens are accepted.
	ClientCA []byte
	// Hosts are the names and addresses of the node, for a self-signed certificate.
	Hosts []string

	// HealthListen is the address to serve the health on, without TLS or authentication; empty for
	// none.
	HealthListen string
	// HostLogs is the directory of the host's logs, Checkpoints that of checkpoints.
	HostLogs, Checkpoints string

	Pods func() []agent.Pod
	// Reported returns the pods of the node as they are reported to the API server.
	Reported func() []corev1.Pod
	// Ended returns a channel that is closed when the container has ended.
	Ended    func(container string) (<-chan struct{}, error)
	Sessions *stream.Server
	// Checkpoint writes a checkpoint of a container to a path.
	Checkpoint func(ctx context.Context, container, path string, timeout time.Duration) error
	Usage      Usage
	Debug      Debug
	Log        *slog.Logger
}

// Usage serves metrics and what the node and its pods use.
type Usage struct{ Metrics, Cadvisor, Resource, Probes, Summary http.HandlerFunc }

// Server serves the kubelet API.
type Server struct {
	Config
	listener, healthListener net.Listener // the latter is nil if the health isn't served
	auth                     *auth
	health                   *health
	tls                      *tls.Config
	started                  time.Time
}

// New returns a server that listens already.
func New(cfg Config) (*Server, error) {
	s := &Server{Config: cfg, auth: &auth{client: cfg.Client, node: cfg.Node}, started: time.Now()}
	s.health = newHealth(func() { s.Pods() }, cfg.Debug.LogHealth)
	if err := s.auth.trust(cfg.ClientCA); err != nil {
		return nil, err
	}
	var err error
	if s.tls, err = s.tlsConfig(); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("--node-listen: %w", err)
	}
	if cfg.HealthListen == "" {
		return s, nil
	}
	if s.healthListener, err = net.Listen("tcp", cfg.HealthListen); err != nil {
		_ = s.listener.Close()
		return nil, fmt.Errorf("--node-healthz-listen: %w", err)
	}
	return s, nil
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error {
		if err := s.serve(ctx, s.handler(s.routes()), func(server *http.Server) error {
			return server.ServeTLS(newListener(s.listener, maxConnections), "", "")
		}); err != nil {
			return fmt.Errorf("--node-listen: %w", err)
		}
		return nil
	})
	if s.healthListener != nil {
		running.Go(func() error {
			if err := s.serve(ctx, s.health.handler(), func(server *http.Server) error {
				return server.Serve(newListener(s.healthListener, maxConnections))
			}); err != nil {
				return fmt.Errorf("--node-healthz-listen: %w", err)
			}
			return nil
		})
	}
	return running.Wait()
}

// serve runs a server of handler until ctx ends.
func (s *Server) serve(ctx context.Context, handler http.Handler, run func(*http.Server) error) error {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // sessions hijack their connection
	server := &http.Server{
		Handler: handler, TLSConfig: s.tls, Protocols: protocols, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeader, ConnContext: withConnection,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := run(server); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// refuse responds with an error, in one line.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errdefs.IsNotFound(err):
		code = http.StatusNotFound
	case errdefs.IsInvalidArgument(err), errdefs.IsFailedPrecondition(err):
		code = http.StatusBadRequest
	}
	http.Error(w, err.Error(), code)
}

// run returns the last run of the container in the request's path, or the one before it.
func (s *Server) run(r *http.Request, previous bool) (container.Status, error) {
	p, err := s.find(r)
	if err != nil {
		return container.Status{}, err
	}
	name := r.PathValue("container")
	runs := p.Runs(name)
	switch {
	case len(runs) == 0:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q in pod %q is waiting to start: %s", name, p.Manifest.Name, waitReason(p, name)))
	case previous && len(runs) == 1:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q in pod %q has no previous run", name, p.Manifest.Name))
	case previous:
		return runs[1], nil
	}
	return runs[0], nil
}

// waitReason returns why a container that has never run waits.
func waitReason(p agent.Pod, name string) string {
	for _, c := range slices.Concat(p.Status.Containers, p.Status.Ephemeral) {
		if c.Name == name && c.Reason != "" {
			return c.Reason
		}
	}
	return "ContainerCreating"
}

// session serves exec and attach.
func (s *Server) session(w http.ResponseWriter, r *http.Request, kind string) {
	st, err := s.run(r, false)
	if err != nil {
		refuse(w, err)
		return
	}
	q := r.URL.Query()
	set := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	session := stream.Session{Kind: kind, ID: st.ID, Args: q["command"], Stdin: set("input"), Stdout: set("output"), TTY: set("tty")}
	session.Stderr = set("error") && !session.TTY
	switch {
	case !session.Stdin && !session.Stdout && !session.Stderr:
		refuse(w, errdefs.ErrInvalidArgument.WithMessage(kind+": ask for input, output or error"))
	case kind == stream.Exec && len(session.Args) == 0:
		refuse(w, errdefs.ErrInvalidArgument.WithMessage("exec: the command is missing"))
	default:
		s.Sessions.Join(w, r, session)
	}
}

// forward serves port forwarding to a pod.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	p, err := s.find(r)
	if err != nil {
		refuse(w, err)
		return
	}
	st, ok := p.Sandbox()
	if !ok || !p.Status.SandboxReady {
		refuse(w, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %q isn't running", p.Manifest.Name)))
		return
	}
	var ports []int32
	for _, text := range r.URL.Query()["port"] {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			refuse(w, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("port %.20q is not a number from 0 to 65535", text)))
			return
		}
		ports = append(ports, int32(port))
	}
	s.Sessions.Join(w, r, stream.Session{Kind: stream.PortForward, ID: st.ID, Ports: ports})
}

// logs responds with the log of a container.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	query, err := parseLogQuery(r.URL.Query(), time.Now())
	if err != nil {
		refuse(w, err)
		return
	}
	st, err := s.run(r, query.previous)
	if err == nil {
		query.options.Ended, err = s.Ended(st.ID)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	flush := http.NewResponseController(w)
	// The API server drops what it reads together with the end of the answer, if it passes a log on
	// over WebSockets. So there must be no Content-Length, and the end must come by itself.
	_ = flush.Flush()
	defer func() { _ = flush.Flush() }()
	err = logs.Read(r.Context(), st.Log, query.options, func(l logs.Line) error {
		text, done := query.format(l)
		if _, err := w.Write(text); err != nil {
			return err
		}
		if done {
			return errLimit
		}
		if query.options.Follow {
			return flush.Flush()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errLimit) && r.Context().Err() == nil {
		s.Log.Warn("reading the log of a container failed", "container", st.ID, "error", err)
	}
}
