// Package kubeletapi is where the API server and others come to a node over HTTPS: for
// kubectl logs, exec, attach, port-forward and top. Everybody is asked who they are
// and whether they may.
package kubeletapi

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
	"github.com/huskd/husk/internal/stream"
)

// headerTimeout is how long a client may take to say what it wants.
const headerTimeout = 10 * time.Second

// Config is what the server works with.
type Config struct {
	Client *cluster.Client
	Node   string
	// Listen is the address to serve at.
	Listen string
	// CertFile and KeyFile are the server's certificate; it signs one for itself
	// if they are empty.
	CertFile, KeyFile string
	// ClientCA has the certificates, in PEM, of those who vouch for clients;
	// without any, only tokens are asked for.
	ClientCA []byte
	// Hosts are the names and addresses of the node.
	Hosts []string

	Pods     func() []agent.Pod
	Ended    func(container string) (<-chan struct{}, error)
	Sessions *stream.Server
	// Summary and Resource tell what the node and its pods use.
	Summary, Resource http.HandlerFunc
	Log               *slog.Logger
}

// Server serves kubectl's requests.
type Server struct {
	Config
	listener net.Listener
	guard    *guard
	tls      *tls.Config
}

// New listens.
func New(cfg Config) (*Server, error) {
	s := &Server{Config: cfg, guard: newGuard(cfg.Client, cfg.Node)}
	if err := s.guard.trust(cfg.ClientCA); err != nil {
		return nil, err
	}
	var err error
	if s.tls, err = s.identity(); err != nil {
		return nil, err
	}
	if s.listener, err = net.Listen("tcp", cfg.Listen); err != nil {
		return nil, fmt.Errorf("--node-listen: %w", err)
	}
	return s, nil
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) })
	mux.HandleFunc("GET /pods", s.list)
	mux.HandleFunc("GET /stats/summary", s.Summary)
	mux.HandleFunc("GET /metrics/resource", s.Resource)
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.logs)
	for _, name := range []string{"exec", "attach"} {
		for _, path := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
			mux.HandleFunc("/"+name+path, func(w http.ResponseWriter, r *http.Request) { s.session(w, r, name) })
		}
	}
	mux.HandleFunc("/portForward/{namespace}/{pod}", s.forward)
	mux.HandleFunc("/portForward/{namespace}/{pod}/{uid}", s.forward)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // a session takes its connection over
	server := &http.Server{
		Handler: s.guard.protect(mux), TLSConfig: s.tls, Protocols: protocols, ReadHeaderTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(s.Log.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.ServeTLS(s.listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("--node-listen: %w", err)
	}
	return nil
}

// refuse answers with an error, in one line.
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

// find returns the pod that a path names: by its name, or by that of its mirror.
func (s *Server) find(r *http.Request) (agent.Pod, error) {
	namespace, name, uid := r.PathValue("namespace"), r.PathValue("pod"), r.PathValue("uid")
	plain, isMirror := strings.CutSuffix(name, "-"+s.Node)
	for _, p := range s.Pods() {
		m := p.Manifest
		if m.Namespace == namespace && (m.Name == name || isMirror && m.Name == plain) && (uid == "" || string(m.UID) == uid) {
			return p, nil
		}
	}
	return agent.Pod{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s/%s is not on node %s", namespace, name, s.Node))
}

// run returns the newest run of the container that a path names, or the one
// before.
func (s *Server) run(r *http.Request, previous bool) (container.Status, error) {
	p, err := s.find(r)
	if err != nil {
		return container.Status{}, err
	}
	name := r.PathValue("container")
	runs := p.Runs(name)
	switch {
	case len(runs) == 0:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q in pod %q is waiting to start", name, p.Manifest.Name))
	case previous && len(runs) == 1:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q in pod %q has no previous run", name, p.Manifest.Name))
	case previous:
		return runs[1], nil
	}
	return runs[0], nil
}

// list answers with the pods of the node.
func (s *Server) list(w http.ResponseWriter, _ *http.Request) {
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for _, p := range s.Pods() {
		pod := *p.Manifest
		pod.Status.Phase, pod.Status.Message = corev1.PodPhase(p.Status.Phase), p.Status.Message
		for _, ip := range p.Status.IPs {
			pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: ip})
		}
		list.Items = append(list.Items, pod)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(list)
}

// session serves an exec or an attach.
func (s *Server) session(w http.ResponseWriter, r *http.Request, kind string) {
	st, err := s.run(r, false)
	if err != nil {
		refuse(w, err)
		return
	}
	q := r.URL.Query()
	is := func(name string) bool { return q.Get(name) == "1" || q.Get(name) == "true" }
	of := stream.Session{Kind: kind, ID: st.ID, Args: q["command"], Stdin: is("input"), Stdout: is("output"), TTY: is("tty")}
	of.Stderr = is("error") && !of.TTY
	switch {
	case !of.Stdin && !of.Stdout && !of.Stderr:
		refuse(w, errdefs.ErrInvalidArgument.WithMessage(kind+": ask for input, output or error"))
	case kind == stream.Exec && len(of.Args) == 0:
		refuse(w, errdefs.ErrInvalidArgument.WithMessage("exec: there is no command"))
	default:
		s.Sessions.Join(w, r, of)
	}
}

// forward serves ports of a pod.
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
			refuse(w, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("port %.20q is none", text)))
			return
		}
		ports = append(ports, int32(port))
	}
	s.Sessions.Join(w, r, stream.Session{Kind: stream.PortForward, ID: st.ID, Ports: ports})
}

// logs answers with what a container has written.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) {
	want, err := wantOf(r.URL.Query(), time.Now())
	if err != nil {
		refuse(w, err)
		return
	}
	st, err := s.run(r, want.previous)
	if err == nil {
		want.options.Ended, err = s.Ended(st.ID)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	flush := http.NewResponseController(w)
	if want.options.Follow {
		_ = flush.Flush() // the client is to know that there is a log
	}
	err = logs.Read(r.Context(), st.Log, want.options, func(l logs.Line) error {
		text, over := want.text(l)
		if _, err := w.Write(text); err != nil {
			return err
		}
		if over {
			return errEnough
		}
		if want.options.Follow {
			return flush.Flush()
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) && r.Context().Err() == nil {
		s.Log.Warn("log of a container", "container", st.ID, "error", err)
	}
}
