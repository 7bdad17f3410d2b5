package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// TestCRIStreams tests exec, attach and port forwarding over SPDY and WebSocket.
func TestCRIStreams(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	c.pull(webImage)
	pod := c.pod()
	id := c.run(pod, forever)
	c.subtest(t, "exec", func(t *testing.T, c *criNode) { execStreams(t, c, id) })
	c.subtest(t, "attach", func(t *testing.T, c *criNode) { attachStreams(t, c, pod) })
	c.subtest(t, "port forwarding", forwardStreams)
	c.subtest(t, "tokens", func(t *testing.T, c *criNode) { tokens(t, c, id) })
	c.subtest(t, "a client disconnects", func(t *testing.T, c *criNode) { clientDisconnects(t, c, id) })
	c.subtest(t, "bad requests", func(t *testing.T, c *criNode) { badStreams(t, c, pod, id) })
	c.end()
}

// dial connects, on the node, to the address in a URL that huskd returned.
func (c *criNode) dial(rawURL string) (net.Conn, *url.URL) {
	c.t.Helper()
	u, err := url.Parse(rawURL)
	c.must(err)
	if host, _, _ := net.SplitHostPort(u.Host); host != "127.0.0.1" {
		c.t.Fatalf("%s does not point to 127.0.0.1", rawURL)
	}
	var conn net.Conn
	c.must(netns.Do(c.Net(), func() (err error) {
		conn, err = net.Dial("tcp", u.Host)
		return err
	}))
	c.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	return conn, u
}

// dialSPDY opens a session over SPDY.
func (c *criNode) dialSPDY(rawURL, protocol string) httpstream.Connection {
	c.t.Helper()
	conn, u := c.dial(rawURL)
	fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: %s\r\n\r\n", u.Path, u.Host, protocol)
	r, err := http.ReadResponse(bufio.NewReaderSize(conn, 16), nil)
	c.must(err)
	if r.StatusCode != http.StatusSwitchingProtocols {
		c.t.Fatalf("%s: %s", rawURL, r.Status)
	}
	session, err := spdy.NewClientConnection(conn)
	c.must(err)
	c.t.Cleanup(func() { _ = session.Close() })
	return session
}

// open opens a stream of a SPDY session.
func (c *criNode) open(session httpstream.Connection, headers ...string) httpstream.Stream {
	c.t.Helper()
	h := http.Header{}
	for i := 0; i < len(headers); i += 2 {
		h.Set(headers[i], headers[i+1])
	}
	stream, err := session.CreateStream(h)
	c.must(err)
	return stream
}

// dialWebSocket opens a session over WebSocket.
func (c *criNode) dialWebSocket(rawURL, protocol string) *websocket.Conn {
	c.t.Helper()
	conn, u := c.dial(rawURL)
	config, err := websocket.NewConfig("ws://"+u.Host+u.Path, "http://localhost")
	c.must(err)
	config.Protocol = []string{protocol}
	ws, err := websocket.NewClient(config, conn)
	c.must(err)
	ws.PayloadType = websocket.BinaryFrame
	return ws
}

// messages reads until the end and returns the data of each channel.
func messages(ws *websocket.Conn) map[byte]string {
	got := map[byte]string{}
	for {
		var m []byte
		if websocket.Message.Receive(ws, &m) != nil {
			return got
		}
		if len(m) > 0 {
			got[m[0]] += string(m[1:])
		}
	}
}

func execStreams(t *testing.T, c *criNode, id string) {
	request := func(tty bool, args ...string) string {
		r, err := c.Exec(c.ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: args, Stdin: true, Stdout: true, Stderr: !tty, Tty: tty})
		c.must(err)
		return r.GetUrl()
	}
	session := c.dialSPDY(request(false, "/bin/sh", "-c", "cat; echo err >&2; exit 3"), "v4.channel.k8s.io")
	status := c.open(session, "streamType", "error")
	in, out, errs := c.open(session, "streamType", "stdin"), c.open(session, "streamType", "stdout"), c.open(session, "streamType", "stderr")
	_, err := io.WriteString(in, "typed")
	c.must(err)
	c.must(in.Close())
	if got := string(must(io.ReadAll(out))); got != "typed" {
		t.Errorf("SPDY: stdout %q", got)
	}
	if got := string(must(io.ReadAll(errs))); got != "err\n" {
		t.Errorf("SPDY: stderr %q", got)
	}
	if got := string(must(io.ReadAll(status))); !strings.Contains(got, `"NonZeroExitCode"`) || !strings.Contains(got, `"message":"3"`) {
		t.Errorf("SPDY: status %s", got)
	}

	ws := c.dialWebSocket(request(false, "/bin/sh", "-c", "cat; echo err >&2; exit 3"), "v5.channel.k8s.io")
	_, err = ws.Write([]byte("\x00typed"))
	c.must(err)
	_, err = ws.Write([]byte{255, 0}) // end of stdin
	c.must(err)
	got := messages(ws)
	if got[1] != "typed" || got[2] != "err\n" || !strings.Contains(got[3], `"ExitCode","message":"3"`) {
		t.Errorf("WebSocket: %q", got)
	}

	// The size and stdin reach the terminal separately, so the program waits for the size.
	ws = c.dialWebSocket(request(true, "/bin/sh", "-c", "read x; until stty size | grep '37 91'; do sleep 0.1; done; tty"), "v5.channel.k8s.io")
	for _, m := range []string{"\x04{\"Width\":91,\"Height\":37}", "\x00\n"} {
		_, err = ws.Write([]byte(m))
		c.must(err)
	}
	if got = messages(ws); !strings.Contains(got[1], "37 91") || !strings.Contains(got[1], "/dev/pts/") || !strings.Contains(got[3], "Success") {
		t.Errorf("terminal: %q", got)
	}
	ws = c.dialWebSocket(request(false, "/no/such/program"), "v5.channel.k8s.io")
	if got = messages(ws); !strings.Contains(got[2], "/no/such/program") || !strings.Contains(got[3], `"message":"127"`) {
		t.Errorf("missing program: %q", got)
	}
}

func attachStreams(t *testing.T, c *criNode, pod string) {
	id := c.run(pod, "cat; echo end; exit 4", func(k *runtimeapi.ContainerConfig) { k.Stdin, k.StdinOnce = true, true })
	r, err := c.Attach(c.ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
	c.must(err)
	ws := c.dialWebSocket(r.GetUrl(), "v5.channel.k8s.io")
	_, err = ws.Write([]byte("\x00typed"))
	c.must(err)
	_, err = ws.Write([]byte{255, 0})
	c.must(err)
	if got := messages(ws); got[1] != "typedend\n" {
		t.Errorf("attached: %q", got)
	}
	if st := c.exited(id); st.GetExitCode() != 4 {
		t.Errorf("exit code %d", st.GetExitCode())
	}
}

// forwardStreams tests port forwarding, also to programs that listen only on IPv4 or only on IPv6.
func forwardStreams(t *testing.T, c *criNode) {
	pod := c.pod()
	id := c.run(pod, "mkdir /tmp/4 /tmp/6; echo four >/tmp/4/index.html; echo six >/tmp/6/index.html; httpd -p 127.0.0.1:81 -h /tmp/4; httpd -p '[::1]:82' -h /tmp/6; "+forever)
	host := c.pod(func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	})
	forward := func(port int, session httpstream.Connection) string {
		errs := c.open(session, "streamType", "error", "port", fmt.Sprint(port), "requestID", "1")
		data := c.open(session, "streamType", "data", "port", fmt.Sprint(port), "requestID", "1")
		c.must(errs.Close())
		_, _ = io.WriteString(data, "GET / HTTP/1.0\r\n\r\n")
		c.must(data.Close())
		return string(must(io.ReadAll(data))) + string(must(io.ReadAll(errs)))
	}
	request := func(pod string) string {
		r, err := c.PortForward(c.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: pod})
		c.must(err)
		return r.GetUrl()
	}
	tunnel := func(pod string) httpstream.Connection {
		session, err := spdy.NewClientConnection(c.dialWebSocket(request(pod), "SPDY/3.1+portforward.k8s.io"))
		c.must(err)
		return session
	}
	c.ready(id)
	if got := forward(81, c.dialSPDY(request(pod), "portforward.k8s.io")); !strings.HasSuffix(got, "\r\n\r\nfour\n") {
		t.Errorf("SPDY to IPv4: %q", got)
	}
	if got := forward(82, tunnel(pod)); !strings.HasSuffix(got, "\r\n\r\nsix\n") {
		t.Errorf("WebSocket to IPv6: %q", got)
	}
	if got := forward(83, tunnel(pod)); !strings.Contains(got, "connection refused") {
		t.Errorf("a port of the pod without a listener: %q", got)
	}
	if got := forward(1, c.dialSPDY(request(host), "portforward.k8s.io")); !strings.Contains(got, "connection refused") {
		t.Errorf("a port of the node without a listener: %q", got)
	}
}

// tokens checks that the URL of a stream works only once, and that variations of it don't work.
func tokens(t *testing.T, c *criNode, id string) {
	r, err := c.Exec(c.ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	c.must(err)
	messages(c.dialWebSocket(r.GetUrl(), "v5.channel.k8s.io"))
	for _, u := range []string{r.GetUrl(), strings.Replace(r.GetUrl(), "/exec/", "/attach/", 1), r.GetUrl() + "x", r.GetUrl()[:strings.LastIndex(r.GetUrl(), "/")] + "/"} {
		conn, parsed := c.dial(u)
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", parsed.Path)
		answer := string(must(io.ReadAll(conn)))
		if !strings.HasPrefix(answer, "HTTP/1.1 404 ") {
			t.Errorf("%s, which is invalid: %.200s", u, answer)
		}
	}
}

// clientDisconnects checks that an exec ends when its client disconnects, even if the program
// neither reads nor writes.
func clientDisconnects(t *testing.T, c *criNode, id string) {
	for name, connect := range map[string]func(u string) io.Closer{
		"WebSocket": func(u string) io.Closer { return c.dialWebSocket(u, "v5.channel.k8s.io") },
		"SPDY": func(u string) io.Closer {
			session := c.dialSPDY(u, "v4.channel.k8s.io")
			c.open(session, "streamType", "error")
			c.open(session, "streamType", "stdout")
			return session
		},
	} {
		r, err := c.Exec(c.ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sleep", "3602"}, Stdout: true})
		c.must(err)
		client := connect(r.GetUrl())
		count := func(want string) {
			t.Helper()
			node.Eventually(t, 20*time.Second, func() string {
				if n := c.sh(id, "ps -o args | grep -c '[s]leep 3602' || true"); n != want {
					return fmt.Sprintf("%s: %s processes of the exec run, want %s", name, n, want)
				}
				return ""
			})
		}
		count("1")
		c.must(client.Close())
		count("0")
	}
}

func badStreams(t *testing.T, c *criNode, pod, id string) {
	exec := func(r *runtimeapi.ExecRequest) error { return ignore(c.Exec(c.ctx, r)) }
	fails(t, exec(&runtimeapi.ExecRequest{}), codes.InvalidArgument, "needs a command")
	fails(t, exec(&runtimeapi.ExecRequest{Cmd: []string{"true"}, Stdout: true}), codes.InvalidArgument, "ID is empty")
	fails(t, exec(&runtimeapi.ExecRequest{ContainerId: "none", Cmd: []string{"true"}, Stdout: true}), codes.NotFound, "not found")
	fails(t, exec(&runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}}), codes.InvalidArgument, "stdin, stdout or stderr")
	fails(t, exec(&runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true, Stderr: true, Tty: true}), codes.InvalidArgument, "tty and stderr")
	ended := c.run(pod, "true")
	c.exited(ended)
	fails(t, exec(&runtimeapi.ExecRequest{ContainerId: ended, Cmd: []string{"true"}, Stdout: true}), codes.FailedPrecondition, "is not running")
	fails(t, ignore(c.Attach(c.ctx, &runtimeapi.AttachRequest{ContainerId: ended, Stdout: true})), codes.FailedPrecondition, "is not running")
	for _, port := range []int32{0, -1, 65536} {
		fails(t, ignore(c.PortForward(c.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: pod, Port: []int32{port}})), codes.InvalidArgument, "is not within 1 to 65535")
	}
	stopped := c.pod()
	c.must(ignore(c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: stopped})))
	fails(t, ignore(c.PortForward(c.ctx, &runtimeapi.PortForwardRequest{PodSandboxId: stopped})), codes.FailedPrecondition, "nothing listens")
}
