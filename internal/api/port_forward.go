package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// FindPorts resolves the name of a pod, or of a workload, and of its ports.
func (s *Server) FindPorts(_ context.Context, req *huskv1.FindPortsRequest) (*huskv1.FindPortsResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if errdefs.IsNotFound(err) {
		p, _, err = podref.One(s.Agent, req.Name)
	}
	if err != nil {
		return nil, err
	}
	if err := checkReachable(p); err != nil {
		return nil, err
	}
	out := &huskv1.FindPortsResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Uid: string(p.Manifest.UID)}
	for _, name := range req.Ports {
		port, err := resolvePort(p, name)
		if err != nil {
			return nil, err
		}
		out.Ports = append(out.Ports, port)
	}
	return out, nil
}

// checkReachable returns an error if the pod has no network to connect to.
func checkReachable(p agent.Pod) error {
	if p.Status.SandboxReady {
		return nil
	}
	why := string(p.Status.Phase)
	if p.Status.Reason != "" {
		why = p.Status.Reason
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s has no network now: it is %s", p.Name(), why))
}

// resolvePort returns the TCP port of a pod with that number or name.
func resolvePort(p agent.Pod, name string) (int32, error) {
	if n, err := strconv.ParseUint(name, 10, 16); err == nil && n > 0 {
		return int32(n), nil
	}
	var named []string
	for c := range podspec.Lasting(&p.Manifest.Spec) {
		for _, port := range c.Ports {
			switch {
			case port.Name == name && port.Protocol == corev1.ProtocolTCP:
				return port.ContainerPort, nil
			case port.Name == name:
				return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("port %s of pod %s is %s: only TCP can be forwarded", name, p.Name(), port.Protocol))
			case port.Name != "":
				named = append(named, port.Name)
			}
		}
	}
	if len(named) == 0 {
		return 0, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s has no port %q and no named ports: give a number from 1 to 65535", p.Name(), name))
	}
	return 0, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s has no port %q: its named ports are %s", p.Name(), name, strings.Join(named, ", ")))
}

// Forward forwards one connection to a port of a pod.
func (s *Server) Forward(stream grpc.BidiStreamingServer[huskv1.ForwardInput, huskv1.ForwardOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil || start.Port < 1 || start.Port > 1<<16-1 {
		return errdefs.ErrInvalidArgument.WithMessage("the first message must be the start, with a port from 1 to 65535")
	}
	p, err := s.Agent.Get(start.Uid)
	if err != nil {
		return err
	}
	if err := checkReachable(p); err != nil {
		return err
	}
	st, _ := p.Sandbox()
	return s.Dial(stream.Context(), st.ID, start.Port, &tunnel{stream: stream})
}

// tunnel is the client's side of a forwarded connection.
type tunnel struct {
	stream grpc.BidiStreamingServer[huskv1.ForwardInput, huskv1.ForwardOutput]
	rest   []byte // received but not read yet
}

func (t *tunnel) Read(p []byte) (int, error) {
	for len(t.rest) == 0 {
		m, err := t.stream.Recv()
		if err != nil {
			return 0, err // io.EOF once the client has closed its side
		}
		t.rest = m.GetData()
	}
	n := copy(p, t.rest)
	t.rest = t.rest[n:]
	return n, nil
}

func (t *tunnel) Write(p []byte) (int, error) {
	if err := t.stream.Send(&huskv1.ForwardOutput{Data: p}); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrClosedPipe
		}
		return 0, err
	}
	return len(p), nil
}

// Close does nothing: the connection ends with the call.
func (t *tunnel) Close() error { return nil }
