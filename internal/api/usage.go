package api

import (
	"context"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
)

// Meter reads what is used.
type Meter interface {
	// Used is what a cgroup has used; nil if there is none.
	Used(cgroup string) *huskv1.Used
	// Traffic is what went through the interfaces in a network namespace.
	Traffic(netns string) (received, sent uint64)
}

// Usage tells what running pods use.
func (s *Server) Usage(_ context.Context, req *huskv1.UsageRequest) (*huskv1.UsageResponse, error) {
	pods := s.Agent.List()
	if req.Name != "" {
		p, err := s.findPod(req.Name)
		if err != nil {
			return nil, err
		}
		if err := reachable(p); err != nil {
			return nil, err
		}
		pods = []agent.Pod{p}
	}
	out := &huskv1.UsageResponse{}
	for _, p := range pods {
		if p.Status.SandboxReady {
			out.Pods = append(out.Pods, s.usageOf(p))
		}
	}
	return out, nil
}

func (s *Server) usageOf(p agent.Pod) *huskv1.PodUsage {
	out := &huskv1.PodUsage{
		Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Uid: string(p.Manifest.UID), HostNetwork: p.Manifest.Spec.HostNetwork,
	}
	st, _ := p.Sandbox()
	cgroup := s.Sandboxes.Cgroup(st)
	out.Total = s.Meter.Used(cgroup)
	for _, c := range p.Status.Containers {
		if c.State != podplan.Running {
			continue
		}
		run, err := s.Containers.Get(c.ID)
		if err != nil {
			continue
		}
		if used := s.Meter.Used(run.Cgroup(cgroup)); used != nil {
			out.Containers = append(out.Containers, &huskv1.ContainerUsage{Name: c.Name, Used: used})
		}
	}
	if !out.HostNetwork {
		out.ReceivedBytes, out.SentBytes = s.Meter.Traffic(st.Attachment.Netns)
	}
	return out
}
