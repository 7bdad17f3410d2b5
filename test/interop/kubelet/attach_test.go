package kubelet

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/huskd/husk/test/node"
)

// protocols are the protocols of sessions through the API server.
var protocols = []string{"websocket", "spdy"}

// session is a client that is attached to a container.
type session struct {
	in        io.WriteCloser
	out, errs *bufio.Reader
	size      chan remotecommand.TerminalSize
	done      chan error
	leave     context.CancelFunc
}

// Next implements remotecommand.TerminalSizeQueue.
func (s *session) Next() *remotecommand.TerminalSize {
	size, ok := <-s.size
	if !ok {
		return nil
	}
	return &size
}

// attach attaches to a container through the API server. A session ends after two minutes, so that
// readers don't block forever.
func (c *cluster) attach(protocol, container string, tty bool) *session {
	c.t.Helper()
	u := c.api.CoreV1().RESTClient().Get().Resource("pods").Namespace("default").Name("attached").SubResource("attach").
		VersionedParams(&corev1.PodAttachOptions{Container: container, Stdin: true, Stdout: true, Stderr: !tty, TTY: tty}, scheme.ParameterCodec).URL()
	e, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	if protocol == "spdy" {
		e, err = remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u)
	}
	c.must(err)
	stdin, in := io.Pipe()
	out, stdout := io.Pipe()
	errs, stderr := io.Pipe()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	s := &session{in: in, out: bufio.NewReader(out), errs: bufio.NewReader(errs), size: make(chan remotecommand.TerminalSize), done: make(chan error, 1), leave: cancel}
	options := remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Stderr: stderr}
	if tty {
		options.Stderr, options.Tty, options.TerminalSizeQueue = nil, true, s
	}
	go func() {
		err := e.StreamWithContext(ctx, options)
		for _, end := range []*io.PipeWriter{stdout, stderr} {
			_ = end.CloseWithError(err) // nil means EOF
		}
		_ = stdin.CloseWithError(io.ErrClosedPipe)
		s.done <- err
	}()
	return s
}

// testAttach attaches to containers by both protocols: to one that keeps running when the client
// disconnects, to a terminal, and to containers that end with their input.
func (c *cluster) testAttach() {
	c.create(attached)
	before := c.await("attached", ready)
	for _, protocol := range protocols {
		c.attachLines(protocol)
		c.attachTerminal(protocol)
		c.attachStdinOnce(protocol)
	}
	after := c.await("attached", func(p *corev1.Pod) bool { return len(containers(p)) == 2 })
	for _, s := range after.Status.ContainerStatuses {
		switch ended := s.State.Terminated; {
		case !strings.HasPrefix(s.Name, "once") && (s.State.Running == nil || !slices.Contains(containers(before), s.ContainerID)):
			c.t.Errorf("container %s ended with its session: %+v", s.Name, s.State)
		case strings.HasPrefix(s.Name, "once") && (ended == nil || ended.ExitCode != 0):
			c.t.Errorf("container %s didn't end with its input: %+v", s.Name, s.State)
		}
	}
	log, err := c.api.CoreV1().Pods("default").GetLogs("attached", &corev1.PodLogOptions{Container: "lines"}).DoRaw(c.t.Context())
	for _, protocol := range protocols {
		if err != nil || !strings.Contains(string(log), "heard hello by "+protocol+"\n") {
			c.t.Errorf("the log is %q, %v", log, err)
		}
	}
	c.must(c.api.CoreV1().Pods("default").Delete(c.t.Context(), "attached", metav1.DeleteOptions{}))
}

// attachLines writes to a container, reads its answer, and disconnects.
func (c *cluster) attachLines(protocol string) {
	s := c.attach(protocol, "lines", false)
	_, err := fmt.Fprintf(s.in, "hello by %s\n", protocol)
	c.must(err)
	if got, err := s.out.ReadString('\n'); err != nil || got != "heard hello by "+protocol+"\n" {
		c.t.Errorf("by %s, the container answers %q %v", protocol, got, err)
	}
	if got, err := s.errs.ReadString('\n'); err != nil || got != "noted hello by "+protocol+"\n" {
		c.t.Errorf("by %s, the container answers to stderr %q %v", protocol, got, err)
	}
	s.leave()
	<-s.done
}

// attachTerminal resizes a terminal, and checks that the container sees the size.
func (c *cluster) attachTerminal(protocol string) {
	s := c.attach(protocol, "terminal", true)
	for _, size := range []remotecommand.TerminalSize{{Width: 77, Height: 33}, {Width: 88, Height: 44}} {
		s.size <- size
		want := fmt.Sprintf("%d %d\r\n", size.Height, size.Width)
		node.Eventually(c.t, time.Minute, func() string {
			_, err := fmt.Fprintln(s.in, "size")
			c.must(err)
			echo, err := s.out.ReadString('\n')
			c.must(err)
			got, err := s.out.ReadString('\n')
			c.must(err)
			if echo != "size\r\n" || got != want {
				return fmt.Sprintf("by %s, the terminal shows %q %q, want %q", protocol, echo, got, want)
			}
			return ""
		})
	}
	s.leave()
	<-s.done
	close(s.size)
}

// attachStdinOnce sends a container data until EOF, and checks that all of it comes back.
func (c *cluster) attachStdinOnce(protocol string) {
	megabyte := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	s := c.attach(protocol, "once-"+protocol, false)
	go func() {
		_, _ = s.in.Write(megabyte)
		_ = s.in.Close()
	}()
	got, err := io.ReadAll(s.out)
	if err != nil || !bytes.Equal(got, megabyte) {
		c.t.Errorf("by %s, %d of %d bytes come back: %v", protocol, len(got), len(megabyte), err)
	}
	if err := <-s.done; err != nil {
		c.t.Errorf("by %s, the session ended with %v", protocol, err)
	}
	s.leave()
}
