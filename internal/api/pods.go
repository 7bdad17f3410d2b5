package api

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/workload"
)

// ListPods lists pods, newest first.
func (s *Server) ListPods(_ context.Context, req *huskv1.ListPodsRequest) (*huskv1.ListPodsResponse, error) {
	r := &huskv1.ListPodsResponse{}
	for _, p := range s.Agent.List() {
		if req.All || podref.Running(p) {
			r.Pods = append(r.Pods, podMessage(p))
		}
	}
	return r, nil
}

func podMessage(p agent.Pod) *huskv1.Pod {
	out := &huskv1.Pod{
		Namespace:   p.Manifest.Namespace,
		Name:        p.Manifest.Name,
		Uid:         string(p.Manifest.UID),
		Phase:       string(p.Status.Phase),
		Reason:      p.Status.Reason,
		Message:     p.Status.Message,
		Ips:         p.Status.IPs,
		CreatedNs:   p.Created.UnixNano(),
		Source:      p.Source,
		HostNetwork: p.Manifest.Spec.HostNetwork,
		Labels:      p.Manifest.Labels,
		Initialized: p.Status.Initialized,
	}
	if p.Problem != "" && out.Message == "" {
		out.Message = p.Problem
	}
	if st, ok := p.Sandbox(); ok {
		out.Id, out.RuntimeHandler = st.ID, st.Handler
	}
	if owner, ok := podref.Owner(p); ok {
		out.Owner = owner.String()
	}
	for _, c := range p.Status.Containers {
		out.Containers = append(out.Containers, containerMessage(p, c))
	}
	for _, c := range p.Status.Ephemeral {
		out.Ephemeral = append(out.Ephemeral, containerMessage(p, c))
	}
	return out
}

func containerMessage(p agent.Pod, c podplan.ContainerStatus) *huskv1.Container {
	out := &huskv1.Container{
		Id: c.ID, Name: c.Name, Image: c.Image,
		State: string(c.State), Reason: c.Reason, Message: c.Message,
		Restarts: int32(c.Restarts), ExitCode: int32(c.ExitCode),
		StartedNs: nanoseconds(c.Started), FinishedNs: nanoseconds(c.Finished),
		Init: c.Init, Ready: c.Ready, Sidecar: podspec.HasSidecar(&p.Manifest.Spec, c.Name),
	}
	if i := slices.IndexFunc(p.Containers, func(st container.Status) bool { return st.ID == c.ID }); i >= 0 {
		out.CreatedNs = nanoseconds(p.Containers[i].Created)
		if c.State == podplan.Running {
			out.Pid = int32(p.Containers[i].Process.PID)
		}
	}
	return out
}

func nanoseconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

// Stop stops a pod and returns when nothing of it is left on the host.
func (s *Server) Stop(ctx context.Context, req *huskv1.StopRequest) (*huskv1.StopResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if err != nil {
		return nil, err
	}
	var grace *time.Duration
	if req.HasGrace {
		d := max(time.Duration(req.GraceNs), 0)
		grace = &d
	}
	if err := s.Agent.Stop(ctx, string(p.Manifest.UID), grace); err != nil {
		return nil, err
	}
	return &huskv1.StopResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name}, nil
}

// Remove removes a pod that isn't running, a workload with its pods, or an object.
func (s *Server) Remove(ctx context.Context, req *huskv1.RemoveRequest) (*huskv1.RemoveResponse, error) {
	if ref, ok := workload.ParseRef(req.Name, manifest.DefaultNamespace); ok {
		err := s.Workloads.Remove(ctx, ref)
		if _, pod := podref.Pod(s.Agent, req.Name); errdefs.IsNotFound(err) && pod == nil {
			return s.removePod(ctx, req)
		}
		if err != nil {
			return nil, err
		}
		return &huskv1.RemoveResponse{Namespace: ref.Namespace, Name: ref.Name, Kind: strings.ToLower(string(ref.Kind))}, nil
	}
	if r, err := s.Services.Remove(ctx, req.Name); r != nil || err != nil {
		return r, err
	}
	if o, ok := objects.ParseName(req.Name); ok {
		err := removeObject(ctx, s.Objects, o)
		if _, pod := podref.Pod(s.Agent, req.Name); errdefs.IsNotFound(err) && pod == nil {
			return s.removePod(ctx, req)
		}
		return &huskv1.RemoveResponse{Namespace: o.Namespace, Name: o.Name, Kind: strings.ToLower(o.Kind)}, err
	}
	return s.removePod(ctx, req)
}

func (s *Server) removePod(ctx context.Context, req *huskv1.RemoveRequest) (*huskv1.RemoveResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if err != nil {
		return nil, err
	}
	if !req.Force && podref.Running(p) {
		return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is running: stop it first, or remove it with -f", p.Name()))
	}
	if err := s.Agent.Remove(ctx, string(p.Manifest.UID)); err != nil {
		return nil, err
	}
	return &huskv1.RemoveResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name}, nil
}
