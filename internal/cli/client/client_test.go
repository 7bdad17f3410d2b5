package client

import (
	"bytes"
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// answers is a huskd whose answers the test provides.
type answers struct {
	huskv1.UnimplementedHuskServer
	inspect func(context.Context) (*huskv1.InspectResponse, error)
	logs    func(grpc.ServerStreamingServer[huskv1.LogsResponse]) error
}

func (a answers) Inspect(ctx context.Context, _ *huskv1.InspectRequest) (*huskv1.InspectResponse, error) {
	return a.inspect(ctx)
}

func (a answers) Logs(_ *huskv1.LogsRequest, s grpc.ServerStreamingServer[huskv1.LogsResponse]) error {
	return a.logs(s)
}

// serve returns a client of a, and a function that stops a at once.
func serve(t *testing.T, a answers) (*Client, func()) {
	t.Helper()
	path := socket(t)
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	huskv1.RegisterHuskServer(server, a)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return dial(t, path), server.Stop
}

func socket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "husk")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func dial(t *testing.T, socket string) *Client {
	t.Helper()
	c, err := New(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func inspect(ctx context.Context, c *Client) error {
	_, err := c.Inspect(ctx, &huskv1.InspectRequest{})
	return err
}

// Errors of huskd are passed on in its own words.
func TestRefusals(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		err  error
		want string
	}{
		"not found":     {status.Error(codes.NotFound, "no pod web: husk ps -a lists them"), "no pod web: husk ps -a lists them"},
		"going away":    {status.Error(codes.Unavailable, "huskd is shutting down"), "huskd is shutting down"},
		"too long":      {status.Error(codes.DeadlineExceeded, "runc took longer than 2m"), "runc took longer than 2m"},
		"denied":        {status.Error(codes.PermissionDenied, "only root may do this"), "only root may do this"},
		"older":         {status.Error(codes.Unimplemented, "unknown method Inspect"), "doesn't know this command: it is older than husk, see husk version"},
		"silent":        {status.Error(codes.Internal, ""), "huskd failed without a message: Internal"},
		"no status":     {errors.New("plain"), "plain"},
		"canceled here": {status.Error(codes.Canceled, "the pod was removed"), "the pod was removed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := serve(t, answers{
				inspect: func(context.Context) (*huskv1.InspectResponse, error) { return nil, x.err },
				logs:    func(grpc.ServerStreamingServer[huskv1.LogsResponse]) error { return x.err },
			})
			check := func(call string, err error) {
				t.Helper()
				if _, ok := errors.AsType[Refused](err); !ok || !strings.HasSuffix(err.Error(), x.want) || strings.Contains(err.Error(), "rpc error") {
					t.Errorf("%s: %v, want %s", call, err, x.want)
				}
			}
			check("a call", inspect(t.Context(), c))
			stream, err := c.Logs(t.Context(), &huskv1.LogsRequest{})
			if err == nil {
				_, err = stream.Recv()
			}
			check("a stream", err)
		})
	}
}

func TestNoServer(t *testing.T) {
	t.Parallel()
	missing := socket(t)
	file := socket(t)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	stale := socket(t) // as a killed huskd leaves it
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for name, path := range map[string]string{"no socket": missing, "a file": file, "a stale socket": stale} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := inspect(t.Context(), dial(t, path))
			want := "huskd doesn't answer at unix://" + path + ": is it running? start it with huskd, or name its socket with --socket"
			if err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
		})
	}
}

// A server that isn't huskd doesn't make us hang.
func TestServerIsNotHuskd(t *testing.T) {
	t.Parallel()
	for name, talk := range map[string]func(net.Conn){
		"silence":        func(net.Conn) {},
		"hangs up":       func(c net.Conn) { c.Close() },
		"other protocol": func(c net.Conn) { _, _ = c.Write(bytes.Repeat([]byte("HTTP/1.1 400 Bad Request\r\n"), 10)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socket(t)
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					defer conn.Close()
					talk(conn)
				}
			}()
			t.Cleanup(func() {
				l.Close()
				<-done
			})
			c, err := newClient(path, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			began := time.Now()
			err = inspect(t.Context(), c)
			if err == nil || !strings.Contains(err.Error(), "huskd doesn't answer at unix://") {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > connectTimeout {
				t.Errorf("the call took %s", took)
			}
		})
	}
}

func TestConnectionIsLost(t *testing.T) {
	t.Parallel()
	c, stop := serve(t, answers{logs: func(s grpc.ServerStreamingServer[huskv1.LogsResponse]) error {
		_ = s.Send(&huskv1.LogsResponse{Line: []byte("one")})
		<-s.Context().Done()
		return nil
	}})
	stream, err := c.Logs(t.Context(), &huskv1.LogsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	stop()
	_, err = stream.Recv()
	if err == nil || !strings.HasPrefix(err.Error(), "lost huskd at unix://") {
		t.Errorf("got %v", err)
	}
}

// A canceled call returns the cause given by the caller.
func TestCancellationCause(t *testing.T) {
	t.Parallel()
	wait := func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}
	c, _ := serve(t, answers{
		inspect: func(ctx context.Context) (*huskv1.InspectResponse, error) { return nil, wait(ctx) },
		logs:    func(s grpc.ServerStreamingServer[huskv1.LogsResponse]) error { return wait(s.Context()) },
	})
	mine := errors.New("mine")
	ctx, cancel := context.WithCancelCause(t.Context())
	time.AfterFunc(20*time.Millisecond, func() { cancel(mine) })
	if err := inspect(ctx, c); !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	stream, err := c.Logs(ctx, &huskv1.LogsRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, mine) {
		t.Errorf("got %v", err)
	}
	limited, done := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer done()
	r, ok := errors.AsType[Refused](inspect(limited, c))
	if !ok || r.Code != codes.DeadlineExceeded || !strings.HasSuffix(r.Error(), "took too long to answer") {
		t.Errorf("got %v", r)
	}
}

func TestLargeAnswer(t *testing.T) {
	t.Parallel()
	const size = 20 << 20
	c, _ := serve(t, answers{inspect: func(context.Context) (*huskv1.InspectResponse, error) {
		return &huskv1.InspectResponse{Json: make([]byte, size)}, nil
	}})
	r, err := c.Inspect(t.Context(), &huskv1.InspectRequest{})
	if err != nil || len(r.Json) != size {
		t.Errorf("%d bytes, %v", len(r.GetJson()), err)
	}
}

func TestSocketPath(t *testing.T) {
	t.Parallel()
	long := "/" + strings.Repeat("a", socketPathMax)
	for in, want := range map[string]string{
		"unix:///run/husk/husk.sock": "/run/husk/husk.sock", "unix:/run/h": "/run/h", "/run/h": "/run/h", "h.sock": "h.sock",
		"./a:b": "./a:b", "/a:b/c": "/a:b/c", long[:socketPathMax]: long[:socketPathMax],
		"": "", "unix://": "", "unix:": "", "tcp://1.2.3.4:5": "", "http://x": "", "a\x00b": "", long: "", "unix://" + long: "",
	} {
		got, err := socketPath(in)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("socketPath(%q) = %q, %v; want %q", in, got, err, want)
		}
		if err != nil && !errors.As(err, new(AddressError)) {
			t.Errorf("socketPath(%q): %T", in, err)
		}
	}
}
