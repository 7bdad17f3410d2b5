package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// earlyHints is the number of the server that brings answers before the answer.
const earlyHints = 3

// hostileAnswers are what servers answer probes with. Each is written until the client goes away.
var hostileAnswers = []func(c net.Conn) error{
	func(c net.Conn) error { // a header without end
		_, err := io.WriteString(c, "X: "+strings.Repeat("x", 1000)+"\r\n")
		return err
	},
	func(c net.Conn) error { // one byte after the other
		time.Sleep(20 * time.Millisecond)
		_, err := io.WriteString(c, "X")
		return err
	},
	func(c net.Conn) error { // a body without end
		_, err := io.WriteString(c, "\r\n"+strings.Repeat("x", 1000))
		return err
	},
	func(c net.Conn) error { // early answers without end
		_, err := io.WriteString(c, "\r\nHTTP/1.1 103 Early Hints\r\n")
		return err
	},
	func(c net.Conn) error { // nothing
		_, err := io.Copy(io.Discard, c)
		if err == nil {
			err = io.EOF
		}
		return err
	},
}

// TestStorms floods huskd's sockets and lets it meet hostile servers. It stays usable, and when
// that is over it has no more goroutines, files, processes or anything else than before.
func TestStorms(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("busy", only("command: [/bin/httpd, -f, -p, '80', -h, /www]")), "--wait")
	w.MustHusk("exec", "busy", "--", "true")
	w.healthy = w.Left()
	before := usageOf(t, w.Node)
	for name, storm := range map[string]func(t *testing.T, w *testEnv){
		"probes": stormOfProbes, "the socket": stormOfTheSocket, "sessions": stormOfSessions,
	} {
		t.Run(name, func(t *testing.T) {
			storm(t, w)
			node.Eventually(t, 30*time.Second, func() string {
				now := usageOf(t, w.Node)
				if now.goroutines > before.goroutines || now.files > before.files {
					return fmt.Sprintf("huskd has %+v, and had %+v before", now, before)
				}
				return ""
			})
		})
	}
	w.MustHusk("rm", "-f", "busy")
	w.end()
}

// stormOfProbes runs pods whose probes meet hostile servers, or are redirected to servers of the
// node that only its processes should reach.
func stormOfProbes(t *testing.T, w *testEnv) {
	secret := w.listen()
	reached := make(chan string, 100)
	server := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case reached <- r.URL.String():
		default:
		}
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(secret) })
	_, secretPort, _ := net.SplitHostPort(secret.Addr().String())
	listeners := []net.Listener{}
	serve := func(answer func(net.Conn)) string {
		l := w.listen()
		listeners = append(listeners, l)
		serving.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				serving.Go(func() {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(time.Minute))
					_, _ = c.Read(make([]byte, 1)) // the request
					answer(c)
				})
			}
		})
		_, port, _ := net.SplitHostPort(l.Addr().String())
		return port
	}
	var ports []string
	for i, more := range hostileAnswers {
		start := "200 OK\r\n"
		if i == earlyHints {
			start = "103 Early Hints\r\n"
		}
		ports = append(ports, serve(func(c net.Conn) {
			_, err := io.WriteString(c, "HTTP/1.1 "+start)
			for err == nil {
				err = more(c)
			}
		}))
	}
	for _, to := range []string{"http://127.0.0.1:" + secretPort, "http://[::1]:" + secretPort, "http://169.254.169.254", "http://localhost:" + secretPort} {
		ports = append(ports, serve(func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.1 302 Found\r\nLocation: "+to+"/\r\n\r\n") }))
	}
	var names []string
	for i, port := range ports {
		probe := func(kind string) string {
			return kind + ": {periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1000, httpGet: {port: " + port + "}}"
		}
		name := fmt.Sprint("probed-", i)
		names = append(names, name)
		w.run(podOf(name, "hostNetwork: true, "+only("command: [sleep, '1000'], "+probe("readinessProbe")+", "+probe("livenessProbe"))))
	}
	// All servers have been asked when those that are not redirected have failed.
	for _, i := range []int{0, 1, earlyHints, 4} {
		node.Eventually(t, 30*time.Second, func() string {
			if got := w.MustHusk("events", names[i]); !strings.Contains(got, "Unhealthy") {
				return "a failed probe of " + names[i] + ": " + got
			}
			return ""
		})
	}
	select {
	case url := <-reached:
		t.Errorf("a redirected probe reached a server on the node's loopback: %s", url)
	default:
	}
	w.remove(names...)
	for _, l := range append(listeners, secret) {
		_ = l.Close()
	}
	_ = server.Close()
	serving.Wait()
}

// stormOfTheSocket holds and fills connections to huskd's socket.
func stormOfTheSocket(t *testing.T, w *testEnv) {
	var conns []net.Conn
	dial := func() net.Conn {
		c, err := net.Dial("unix", w.Socket())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
		return c
	}
	for i := range 1000 {
		c := dial()
		switch i % 4 {
		case 1: // garbage
			_, _ = c.Write([]byte(strings.Repeat("\x00\xff garbage", 100)))
		case 2: // a frame that is longer than what follows
			_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00\x00\x3f\xff\x01\x05\x00\x00\x00\x01"))
		}
	}
	client, err := grpc.NewClient("unix://"+w.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	cri := runtimeapi.NewRuntimeServiceClient(client)
	for range 50 { // nobody reads what they bring
		if _, err := cri.GetContainerEvents(t.Context(), &runtimeapi.GetEventsRequest{}); err != nil {
			t.Error(err)
		}
	}
	long := strings.Repeat("x", 17<<20)
	if _, err := cri.Version(t.Context(), &runtimeapi.VersionRequest{Version: long}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of 17 MiB: %v", err)
	}
	var bad runtimeapi.VersionResponse
	if err := client.Invoke(t.Context(), "/runtime.v1.RuntimeService/RunPodSandbox", &runtimeapi.VersionRequest{Version: "\xff\xff\xff"}, &bad); err == nil {
		t.Error("a message of another type is accepted")
	}
	w.run(podOf("amid", only("command: [sleep, '1000']")), "--wait")
	w.remove("amid")
	_ = client.Close()
	for _, c := range conns {
		_ = c.Close()
	}
}

// stormOfSessions starts sessions in a pod, many at once, and forwards many connections to it, most
// of which are cut off.
func stormOfSessions(t *testing.T, w *testEnv) {
	client, err := grpc.NewClient("unix://"+w.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	cri := runtimeapi.NewRuntimeServiceClient(client)
	id := w.pod("busy").Containers[0].ID
	var running sync.WaitGroup
	for range 20 {
		running.Go(func() {
			for range 3 {
				if r, err := cri.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"echo", "x"}}); err != nil || string(r.Stdout) != "x\n" {
					t.Errorf("exec: %v, %v", r, err)
				}
			}
		})
	}
	running.Wait()
	// A URL is for one session, and what asks for others gets none.
	r, err := cri.Exec(t.Context(), &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	if err != nil {
		t.Fatal(err)
	}
	outside := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (c net.Conn, err error) {
		if doErr := netns.Do(w.Net(), func() error {
			c, err = net.DialTimeout(network, address, 10*time.Second)
			return nil
		}); doErr != nil {
			return nil, doErr
		}
		return c, err
	}}}
	get := func(url string) int {
		t.Helper()
		answer, err := outside.Get(url)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}
	guessed := r.Url[:len(r.Url)-1] + map[bool]string{true: "B", false: "A"}[strings.HasSuffix(r.Url, "A")]
	for _, url := range []string{guessed, strings.Replace(r.Url, "/exec/", "/attach/", 1), r.Url[:strings.LastIndex(r.Url, "/")+1]} {
		if code := get(url); code < 400 {
			t.Errorf("%s: status %d", url, code)
		}
	}
	_ = get(r.Url) // not a session, but the token is used
	if code := get(r.Url); code != http.StatusNotFound {
		t.Errorf("a second session of a URL: status %d", code)
	}
	local, end := w.portForward("busy", ":80")
	var conns []net.Conn
	err = netns.Do(w.Net(), func() error {
		for i := range 500 {
			c, err := net.DialTimeout("tcp", "127.0.0.1:"+local[0], 10*time.Second)
			if err != nil {
				return fmt.Errorf("connection %d: %w", i, err)
			}
			conns = append(conns, c)
			if i%2 == 0 {
				_, _ = io.WriteString(c, "GET / HTTP/1.0\r\n\r\n")
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	end()
	_ = client.Close()
}
