package api

import (
	"context"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/stats"
)

// Usage returns the resource usage of running pods.
func (s *Server) Usage(_ context.Context, req *huskv1.UsageRequest) (*huskv1.UsageResponse, error) {
	pods := s.Agent.List()
	if req.Name != "" {
		p, err := podref.Pod(s.Agent, req.Name)
		if err != nil {
			return nil, err
		}
		if err := checkReachable(p); err != nil {
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
	out.Total = used(s.Meter, cgroup)
	for _, c := range p.Status.Containers {
		if c.State != podplan.Running {
			continue
		}
		run, err := s.Containers.Get(c.ID)
		if err != nil {
			continue
		}
		if used := used(s.Meter, run.Cgroup(cgroup)); used != nil {
			out.Containers = append(out.Containers, &huskv1.ContainerUsage{Name: c.Name, Used: used})
		}
	}
	if !out.HostNetwork {
		out.ReceivedBytes, out.SentBytes = traffic(st.Attachment.Netns)
	}
	return out
}

// used returns the usage of a cgroup, or nil if nothing has run in it yet or it is gone.
func used(m *stats.Meter, cgroup string) *huskv1.Used {
	u, err := m.Cgroup(cgroup)
	if err != nil {
		return nil
	}
	return &huskv1.Used{
		AtNs: u.At.UnixNano(), CpuNs: u.CPU.Used,
		MemoryBytes: u.Memory.WorkingSet, MemoryLimitBytes: u.Memory.Limit, Processes: u.Processes,
	}
}

// traffic returns the traffic of all interfaces in a network namespace; 0 if it is gone.
func traffic(netns string) (received, sent uint64) {
	interfaces, err := stats.Network(netns)
	if err != nil {
		return 0, 0
	}
	for _, i := range interfaces {
		received += i.Received.Bytes
		sent += i.Sent.Bytes
	}
	return received, sent
}
