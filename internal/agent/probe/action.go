package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// Target is the container that a probe or hook acts on.
type Target struct {
	ID        string // of the run
	Container *corev1.Container
	// Address is an address of the pod that the node can reach.
	Address string
}

// Exec runs a program in a container and returns its exit code and output. It returns an error if
// the program could not be run, or did not end in time (context.DeadlineExceeded).
type Exec func(ctx context.Context, id string, args []string) (code int, output string, err error)

// agentName is the User-Agent of probes. Servers match its beginning to leave probes out of their
// logs.
const agentName = "kube-probe/husk"

// checkFailure is the failure of a check that was carried out. Other errors mean that the check
// could not be carried out, which says nothing about the container.
type checkFailure struct{ message string }

func (f checkFailure) Error() string { return f.message }

// checkWarning is a success with something to report.
type checkWarning struct{ message string }

func (w checkWarning) Error() string { return w.message }

func failuref(format string, args ...any) error { return checkFailure{fmt.Sprintf(format, args...)} }

// check carries out the check of a probe once.
func (e Exec) check(ctx context.Context, t Target, p *corev1.Probe) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(p.TimeoutSeconds)*time.Second)
	defer cancel()
	switch {
	case p.Exec != nil:
		return e.run(ctx, t, p.Exec.Command)
	case p.HTTPGet != nil:
		return checkHTTP(ctx, t, p.HTTPGet, func(r *http.Response) error {
			switch {
			case r.StatusCode < http.StatusOK || r.StatusCode >= http.StatusBadRequest:
				return failuref("answers %s", r.Status)
			case r.StatusCode >= http.StatusMultipleChoices: // a redirect that the client hasn't followed
				return checkWarning{"Probe terminated redirects, Response body"}
			}
			return nil
		})
	case p.TCPSocket != nil:
		return checkTCP(ctx, t, p.TCPSocket)
	}
	return checkGRPC(ctx, t, p.GRPC)
}

// Hook runs a lifecycle handler. As in kubelet, any HTTP status counts as success.
func (e Exec) Hook(ctx context.Context, t Target, h *corev1.LifecycleHandler) error {
	switch {
	case h.Exec != nil:
		return e.run(ctx, t, h.Exec.Command)
	case h.HTTPGet != nil:
		return checkHTTP(ctx, t, h.HTTPGet, func(*http.Response) error { return nil })
	case h.TCPSocket != nil:
		return checkTCP(ctx, t, h.TCPSocket)
	}
	select {
	case <-time.After(time.Duration(h.Sleep.Seconds) * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (e Exec) run(ctx context.Context, t Target, args []string) error {
	code, output, err := e(ctx, t.ID, args)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return failuref("%s: did not end in time", args[0])
	case err != nil:
		return fmt.Errorf("%s: %w", args[0], err)
	case code != 0:
		return failuref("%s: exit code %d%s", args[0], code, quote(output))
	}
	return nil
}

// maxQuoted is the number of bytes of an output or answer that a message quotes.
const maxQuoted = 200

// quote returns the beginning of text in a form that can be appended to a message.
func quote(text string) string {
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "?")), " ")
	if text == "" {
		return ""
	}
	if len(text) > maxQuoted {
		text = strings.ToValidUTF8(text[:maxQuoted], "") + "…"
	}
	return ": " + text
}

// client uses a new connection for each request. It doesn't follow redirects to other hosts: those
// are the answer.
var client = http.Client{
	Transport: transport{},
	CheckRedirect: func(r *http.Request, via []*http.Request) error {
		switch {
		case r.URL.Hostname() != via[0].URL.Hostname():
			return http.ErrUseLastResponse
		case len(via) >= maxRedirects:
			return fmt.Errorf("more than %d redirects", maxRedirects)
		}
		return nil
	},
}

const (
	maxRedirects = 10
	maxBody      = 10 << 10
)

func checkHTTP(ctx context.Context, t Target, h *corev1.HTTPGetAction, judge func(*http.Response) error) error {
	address, err := t.address(h.Host, func() (int, bool) { return manifest.Port(t.Container, h.Port) })
	if err != nil {
		return err
	}
	to, err := url.Parse(h.Path)
	if err != nil {
		to = &url.URL{Path: h.Path}
	}
	to.Scheme, to.Host = strings.ToLower(string(h.Scheme)), address
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", agentName)
	req.Header.Set("Accept", "*/*")
	for i, header := range h.HTTPHeaders {
		if strings.EqualFold(header.Name, "Host") {
			req.Host = header.Value
			continue
		}
		if i == 0 || !strings.EqualFold(header.Name, h.HTTPHeaders[i-1].Name) {
			req.Header.Del(header.Name)
		}
		req.Header.Add(header.Name, header.Value)
	}
	answer, err := client.Do(req)
	if err != nil {
		return connectionFailure(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(answer.Body, maxBody))
	err = judge(answer)
	if w, ok := errors.AsType[checkWarning](err); ok {
		return checkWarning{w.message + quote(string(body))}
	}
	if err != nil {
		return failuref("Get %q: %v%s", to, err, quote(string(body)))
	}
	return nil
}

func checkTCP(ctx context.Context, t Target, s *corev1.TCPSocketAction) error {
	address, err := t.address(s.Host, func() (int, bool) { return manifest.Port(t.Container, s.Port) })
	if err != nil {
		return err
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return connectionFailure(err)
	}
	_ = conn.Close()
	return nil
}

// connectionFailure returns the failure of a connection without the port at this end, which differs
// from check to check: a message of its own for each would be a change and an event each time.
func connectionFailure(err error) error {
	if op, ok := errors.AsType[*net.OpError](err); ok {
		op.Source = nil
	}
	return checkFailure{err.Error()}
}

// checkGRPC asks a server by the gRPC health protocol.
func checkGRPC(ctx context.Context, t Target, g *corev1.GRPCAction) error {
	address := net.JoinHostPort(t.Address, strconv.Itoa(int(g.Port)))
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(agentName),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", address)
		}))
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: *g.Service})
	switch {
	case status.Code(err) == codes.Unimplemented:
		return failuref("grpc %s: the server doesn't speak the gRPC health protocol", address)
	case status.Code(err) == codes.DeadlineExceeded:
		return failuref("grpc %s: no answer in time", address)
	case err != nil:
		return failuref("grpc %s: %s", address, status.Convert(err).Message())
	case answer.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING:
		return failuref("grpc %s: service %q is %s", address, *g.Service, answer.GetStatus())
	}
	return nil
}

// address returns the address of a port of host, or of the pod if host is empty.
func (t Target) address(host string, port func() (int, bool)) (string, error) {
	number, ok := port()
	if !ok {
		return "", fmt.Errorf("container %s has no such port", t.Container.Name)
	}
	if host == "" {
		host = t.Address
	}
	return net.JoinHostPort(strings.Trim(host, "[]"), strconv.Itoa(number)), nil
}
