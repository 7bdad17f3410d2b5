package huskdtest

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	huskv1 "github.com/huskd/husk/api/v1"
)

// echoPort is the port, also named "echo", on which every pod returns what it receives in capitals.
// Other ports refuse connections.
const echoPort = 80

// FindPorts resolves the ports of a pod.
func (h *Huskd) FindPorts(_ context.Context, req *huskv1.FindPortsRequest) (*huskv1.FindPortsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, _, err := h.find(req.Name)
	switch {
	case err != nil:
		return nil, err
	case p.Phase != "Running":
		return nil, status.Errorf(codes.FailedPrecondition, "pod %s has no network now: it is %s", key(p), p.Phase)
	}
	out := &huskv1.FindPortsResponse{Namespace: p.Namespace, Name: p.Name, Uid: p.Uid}
	for _, name := range req.Ports {
		n, err := strconv.ParseUint(name, 10, 16)
		switch {
		case name == "echo":
			n = echoPort
		case err != nil || n == 0:
			return nil, status.Errorf(codes.NotFound, "pod %s has no port %q: its named ports are echo", key(p), name)
		}
		out.Ports = append(out.Ports, int32(n))
	}
	return out, nil
}

// Forward forwards one connection to the echo port.
func (h *Huskd) Forward(stream grpc.BidiStreamingServer[huskv1.ForwardInput, huskv1.ForwardOutput]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start.GetPort() < 1 || start.GetPort() > 1<<16-1 {
		return status.Error(codes.InvalidArgument, "the first message must be the start, with a port from 1 to 65535")
	}
	h.mu.Lock()
	i := slices.IndexFunc(h.pods, func(p *huskv1.Pod) bool { return p.Uid == start.Uid })
	h.mu.Unlock()
	switch {
	case i < 0:
		return status.Errorf(codes.NotFound, "pod %s not found: it was removed", start.Uid)
	case start.Port != echoPort:
		return status.Errorf(codes.Unknown, "forward port %d: connection refused", start.Port)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client sends no more
		}
		if err := stream.Send(&huskv1.ForwardOutput{Data: []byte(strings.ToUpper(string(m.GetData())))}); err != nil {
			return err
		}
	}
}

// Usage returns the usage of pods that use a quarter of a CPU.
func (h *Huskd) Usage(_ context.Context, req *huskv1.UsageRequest) (*huskv1.UsageResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := &huskv1.UsageResponse{}
	pods := h.pods
	if req.Name != "" {
		p, _, err := h.find(req.Name)
		if err != nil {
			return nil, err
		}
		if p.Phase != "Running" {
			return nil, status.Errorf(codes.FailedPrecondition, "pod %s has no network now: it is %s", key(p), p.Phase)
		}
		pods = []*huskv1.Pod{p}
	}
	now := time.Now().UnixNano()
	for _, p := range pods {
		if p.Phase != "Running" {
			continue
		}
		used := func() *huskv1.Used {
			return &huskv1.Used{AtNs: now, CpuNs: uint64(now-p.CreatedNs) / 4, MemoryBytes: 5 << 20, MemoryLimitBytes: 64 << 20, Processes: 3}
		}
		u := &huskv1.PodUsage{
			Namespace: p.Namespace, Name: p.Name, Uid: p.Uid, Total: used(), HostNetwork: p.HostNetwork,
			ReceivedBytes: 4096, SentBytes: 1 << 20,
		}
		for _, c := range p.Containers {
			if c.State == "Running" {
				u.Containers = append(u.Containers, &huskv1.ContainerUsage{Name: c.Name, Used: used()})
			}
		}
		out.Pods = append(out.Pods, u)
	}
	return out, nil
}
