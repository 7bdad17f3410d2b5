package probe

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// none fails to run any program.
func none(context.Context, string, []string) (int, string, error) {
	return 0, "", errors.New("not running")
}

func target(t *testing.T, server string) (Target, int) {
	t.Helper()
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatal(err)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		t.Fatal(err)
	}
	return Target{ID: "c", Address: host, Container: &corev1.Container{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: int32(number)}}}}, number
}

// closedPort returns a port that no process listens on.
func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "a.test" || r.UserAgent() != agentName || strings.Join(r.Header["X-A"], ",") != "1,2" || r.URL.RawQuery != "q=1" {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	mux.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "out of\norder "+strings.Repeat("x", 1000), http.StatusInternalServerError)
	})
	mux.HandleFunc("/here", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/broken", http.StatusFound) })
	mux.HandleFunc("/away", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://else.invalid/", http.StatusFound)
	})
	mux.HandleFunc("/round", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/round", http.StatusFound) })
	mux.HandleFunc("/slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	mux.HandleFunc("/bare", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	plain, secure := httptest.NewServer(mux), httptest.NewTLSServer(mux)
	defer plain.Close()
	defer secure.Close()
	for _, c := range []struct{ server, scheme, path, want string }{
		{plain.URL, "HTTP", "/ok?q=1", ""},
		{secure.URL, "HTTPS", "/ok?q=1", ""},
		{plain.URL, "HTTP", "bare", ""},
		{plain.URL, "HTTP", "/%zz", "answers 404"},
		{plain.URL, "HTTP", "/missing", "answers 404 Not Found: 404 page not found"},
		{plain.URL, "HTTP", "/broken", "answers 500 Internal Server Error: out of order xxx"},
		{plain.URL, "HTTP", "/here", "answers 500"},
		{plain.URL, "HTTP", "/away", `warning: Probe terminated redirects, Response body: <a href="http://else.invalid/">Found</a>.`},
		{plain.URL, "HTTP", "/round", "more than 10 redirects"},
		{plain.URL, "HTTP", "/slow", "deadline exceeded"},
		{plain.URL, "HTTPS", "/ok", "HTTP response to HTTPS client"},
	} {
		u, _ := url.Parse(c.server)
		to, port := target(t, u.Host)
		for _, p := range []intstr.IntOrString{intstr.FromInt(port), intstr.FromString("web")} {
			spec := &corev1.Probe{TimeoutSeconds: 1}
			spec.HTTPGet = &corev1.HTTPGetAction{Path: c.path, Port: p, Scheme: corev1.URIScheme(c.scheme), HTTPHeaders: []corev1.HTTPHeader{{Name: "host", Value: "a.test"}, {Name: "x-a", Value: "1"}, {Name: "X-A", Value: "2"}}}
			err := Exec(none).check(t.Context(), to, spec)
			_, judged := errors.AsType[checkFailure](err)
			if w, warned := errors.AsType[checkWarning](err); warned {
				err, judged = errors.New("warning: "+w.message), true
			}
			switch {
			case err == nil && c.want == "":
			case err == nil || c.want == "" || !judged || !strings.Contains(err.Error(), c.want):
				t.Errorf("%s %s: %v, want %q", c.scheme, c.path, err, c.want)
			case len(err.Error()) > 400:
				t.Errorf("%s: a message of %d bytes", c.path, len(err.Error()))
			}
		}
	}
}

// TestTransport answers requests in ways that net/http's servers don't.
func TestTransport(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ answer, want string }{
		{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""},
		{strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 10), "too many informational answers"},
		{"HTTP/1.0 200 OK\r\n\r\nuntil the end", ""},
		{"HTTP/1.1 503 Service Unavailable\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n", "answers 503 Service Unavailable: bad"},
		{"HTTP/1.1 200 OK\r\n" + strings.Repeat("A: "+strings.Repeat("x", 1000)+"\r\n", 2000), "EOF"},
		{"SSH-2.0-OpenSSH\r\n", "malformed HTTP"},
		{"", "EOF"},
		{"reset", "read tcp 127.0.0.1:PORT: read: connection reset by peer"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			if c.answer == "reset" { // by what it leaves unread
				_, _ = conn.Read(make([]byte, 1))
				return
			}
			if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
				_, _ = io.WriteString(conn, c.answer)
			}
		}()
		to, port := target(t, l.Addr().String())
		spec := &corev1.Probe{TimeoutSeconds: 10, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port), Scheme: "HTTP"}}}
		err = Exec(none).check(t.Context(), to, spec)
		want := strings.ReplaceAll(c.want, "PORT", strconv.Itoa(port))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", c.answer, err, want)
		}
		_ = l.Close()
	}
}

func TestTCP(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	to, port := target(t, l.Addr().String())
	for _, c := range []struct {
		host string
		port intstr.IntOrString
		want string
	}{
		{"", intstr.FromInt(port), ""},
		{"localhost", intstr.FromString("web"), ""},
		{"", intstr.FromInt(closedPort(t)), "connection refused"},
		{"", intstr.FromString("nope"), "no such port"},
	} {
		spec := &corev1.Probe{TimeoutSeconds: 1}
		spec.TCPSocket = &corev1.TCPSocketAction{Host: c.host, Port: c.port}
		if err := Exec(none).check(t.Context(), to, spec); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q %v: %v, want %q", c.host, &c.port, err, c.want)
		}
	}
}

func TestGRPC(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	mute, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	bare, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	healthy, plain := grpc.NewServer(), grpc.NewServer()
	states := health.NewServer()
	states.SetServingStatus("down", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(healthy, states)
	go func() { _ = healthy.Serve(l) }()
	go func() { _ = plain.Serve(bare) }()
	defer healthy.Stop()
	defer plain.Stop()
	for _, c := range []struct {
		port          int
		service, want string
	}{
		{l.Addr().(*net.TCPAddr).Port, "", ""},
		{l.Addr().(*net.TCPAddr).Port, "down", `service "down" is NOT_SERVING`},
		{l.Addr().(*net.TCPAddr).Port, "nobody", "unknown service"},
		{bare.Addr().(*net.TCPAddr).Port, "", "doesn't speak the gRPC health protocol"},
		{mute.Addr().(*net.TCPAddr).Port, "", "no answer in time"},
		{closedPort(t), "", "connection refused"},
	} {
		spec := &corev1.Probe{TimeoutSeconds: 1}
		spec.GRPC = &corev1.GRPCAction{Port: int32(c.port), Service: &c.service}
		err := Exec(none).check(t.Context(), Target{Address: "127.0.0.1"}, spec)
		if _, judged := errors.AsType[checkFailure](err); (err == nil) != (c.want == "") || err != nil && (!judged || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v, want %q", c.service, err, c.want)
		}
	}
}

func TestExec(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code      int
		output    string
		err       error
		want      string
		isFailure bool
	}{
		{0, "fine", nil, "", false},
		{3, "no\n\nluck\n", nil, "check: exit code 3: no luck", true},
		{1, "", nil, "check: exit code 1", true},
		{0, "", context.DeadlineExceeded, "check: did not end in time", true},
		{0, "", errors.New("no such container"), "check: no such container", false},
	} {
		e := Exec(func(ctx context.Context, id string, args []string) (int, string, error) {
			if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > 2*time.Second || id != "c" || args[0] != "check" {
				t.Errorf("exec in %s: %v with deadline %v", id, args, deadline)
			}
			return c.code, c.output, c.err
		})
		spec := &corev1.Probe{TimeoutSeconds: 2}
		spec.Exec = &corev1.ExecAction{Command: []string{"check"}}
		err := e.check(t.Context(), Target{ID: "c"}, spec)
		_, judged := errors.AsType[checkFailure](err)
		if err == nil && c.want != "" || err != nil && err.Error() != c.want || judged != c.isFailure {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestHooks(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	u, _ := url.Parse(server.URL)
	to, port := target(t, u.Host)
	get := &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(port), Scheme: corev1.URISchemeHTTP}
	refused := &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt(closedPort(t)), Scheme: corev1.URISchemeHTTP}
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		hook corev1.LifecycleHandler
		want string
	}{
		{"any answer is a success", t.Context(), corev1.LifecycleHandler{HTTPGet: get}, ""},
		{"no answer", t.Context(), corev1.LifecycleHandler{HTTPGet: refused}, "connection refused"},
		{"tcp", t.Context(), corev1.LifecycleHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}, ""},
		{"exec", t.Context(), corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"x"}}}, "not running"},
		{"no sleep", t.Context(), corev1.LifecycleHandler{Sleep: &corev1.SleepAction{}}, ""},
		{"long sleep", cut, corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 1000}}, "canceled"},
	} {
		if err := Exec(none).Hook(c.ctx, to, &c.hook); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}
