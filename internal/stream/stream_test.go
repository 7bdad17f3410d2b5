package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	"golang.org/x/net/websocket"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// program implements Containers by a function that takes the place of a program.
type program func(ctx context.Context, e oci.Exec) (int, error)

func (p program) Exec(ctx context.Context, e oci.Exec) (int, error) { return p(ctx, e) }

func (p program) Attach(ctx context.Context, id string, s oci.Streams) error {
	_, err := p(ctx, oci.Exec{ID: id, Streams: s})
	return err
}

func serve(t *testing.T, p program) *Server {
	t.Helper()
	s, err := New(Config{Containers: p, Netns: func(string) (string, error) { return "", nil }, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- s.Serve() }()
	t.Cleanup(func() {
		s.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func connect(t *testing.T, at, protocol string) (*websocket.Conn, error) {
	t.Helper()
	u, err := url.Parse(at)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	config, err := websocket.NewConfig("ws://"+u.Host+u.Path, "http://localhost")
	if err != nil {
		t.Fatal(err)
	}
	config.Protocol = []string{protocol}
	return websocket.NewClient(config, conn)
}

func execURL(t *testing.T, s *Server) string {
	t.Helper()
	u, err := s.Exec(&runtimeapi.ExecRequest{ContainerId: "c", Cmd: []string{"x"}, Stdin: true, Stdout: true, Stderr: true})
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestTokenIsValidOnce(t *testing.T) {
	s := serve(t, func(context.Context, oci.Exec) (int, error) { return 0, nil })
	u := execURL(t, s)
	if _, err := connect(t, strings.Replace(u, "/exec/", "/attach/", 1), channelProtocol); err == nil {
		t.Error("a token for exec is accepted for attach")
	}
	ws, err := connect(t, u, channelProtocol)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, ws)
	if _, err := connect(t, u, channelProtocol); err == nil {
		t.Error("a token is accepted twice")
	}
}

func TestTokensAreBounded(t *testing.T) {
	var x tokens
	for range maxTokens {
		if _, err := x.issue("exec", session{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.issue("exec", session{}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one token too many: %v", err)
	}
	for key, old := range x.pending {
		old.expires = time.Now().Add(-time.Second)
		x.pending[key] = old
		if _, ok := x.redeem("exec", strings.TrimPrefix(key, "exec/")); ok {
			t.Error("an expired token is accepted")
		}
		break
	}
	for key, old := range x.pending {
		old.expires = time.Now().Add(-time.Second)
		x.pending[key] = old
	}
	if _, err := x.issue("exec", session{}); err != nil || len(x.pending) != 1 {
		t.Errorf("expired tokens are kept: %d, %v", len(x.pending), err)
	}
}

// TestSessionEnds: a session ends with its client, and with the server.
func TestSessionEnds(t *testing.T) {
	for name, end := range map[string]func(s *Server, client io.Closer){
		"client closes": func(_ *Server, client io.Closer) { _ = client.Close() },
		"server closes": func(s *Server, _ io.Closer) { s.Close() },
	} {
		began, ended := make(chan bool), make(chan bool)
		s := serve(t, func(ctx context.Context, _ oci.Exec) (int, error) {
			close(began)
			<-ctx.Done()
			close(ended)
			return 0, ctx.Err()
		})
		ws, err := connect(t, execURL(t, s), channelProtocol)
		if err != nil {
			t.Fatal(err)
		}
		<-began
		end(s, ws)
		select {
		case <-ended:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: the program is still running", name)
		}
	}
}

func TestUnknownProtocol(t *testing.T) {
	s := serve(t, func(context.Context, oci.Exec) (int, error) { return 0, nil })
	if _, err := connect(t, execURL(t, s), "v9.channel.k8s.io"); err == nil {
		t.Error("an unknown protocol is accepted")
	}
	u, err := s.PortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := connect(t, u, "SPDY/3.1+"); err == nil {
		t.Error("a tunnel without a protocol is accepted")
	}
}

func TestStatus(t *testing.T) {
	for want, err := range map[string]error{
		`{"status":"Success"}`: nil,
		`{"status":"Failure","message":"command terminated with non-zero exit code: exit code 3","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"3"}]}}`: fmt.Errorf("x: %w", exitError{3}),
		`{"status":"Failure","message":"none","reason":"InternalError","code":500}`:                                                                                                      errors.New("none"),
	} {
		if got := string(status(err)); got != want {
			t.Errorf("%v: %s", err, got)
		}
	}
}

func TestInvalidRequests(t *testing.T) {
	s := serve(t, nil)
	for _, r := range []*runtimeapi.ExecRequest{{}, {Tty: true, Stderr: true}} {
		if _, err := s.Exec(r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", r, err)
		}
		if _, err := s.Attach(&runtimeapi.AttachRequest{Tty: r.GetTty(), Stderr: r.GetStderr()}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestConnectionsAreBounded checks that processes on the node can't hold more than a number of
// connections.
func TestConnectionsAreBounded(t *testing.T) {
	s := serve(t, nil)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", s.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var idle []net.Conn
	for range maxConnections {
		idle = append(idle, dial())
	}
	client := dial()
	if _, err := io.WriteString(client, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = client.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("one connection more was served: %v", err)
	}
	_ = client.SetReadDeadline(time.Time{})
	for _, c := range idle {
		_ = c.Close()
	}
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("after the others were closed: %v", err)
	}
}
