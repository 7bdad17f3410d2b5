package api

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/api/podref"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/workload"
)

// lifecycleServer serves the part of the API that starts, restarts and signals pods.
type lifecycleServer struct {
	huskv1.UnimplementedLifecycleServer
	Config
}

// Start starts a pod again.
func (s lifecycleServer) Start(ctx context.Context, req *huskv1.StartRequest) (*huskv1.StartResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if err != nil {
		return nil, err
	}
	r := &huskv1.StartResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Ran: p.Want == podplan.Run && !p.Finished}
	if !r.Ran {
		err = s.Agent.Rerun(ctx, string(p.Manifest.UID))
	}
	return r, err
}

// Restart restarts a pod, or replaces the pods of a workload.
func (s lifecycleServer) Restart(ctx context.Context, req *huskv1.RestartRequest) (*huskv1.RestartResponse, error) {
	p, err := podref.Pod(s.Agent, req.Name)
	if ref, ok := workload.ParseRef(req.Name, manifest.DefaultNamespace); ok && errdefs.IsNotFound(err) {
		if err := s.Workloads.Restart(ctx, ref); err != nil {
			return nil, err
		}
		return &huskv1.RestartResponse{Namespace: ref.Namespace, Name: ref.Name, Kind: strings.ToLower(string(ref.Kind))}, nil
	}
	if err != nil {
		return nil, err
	}
	if err := s.Agent.Rerun(ctx, string(p.Manifest.UID)); err != nil {
		return nil, err
	}
	return &huskv1.RestartResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name}, nil
}

// Kill sends a signal to the first process of a container.
func (s lifecycleServer) Kill(ctx context.Context, req *huskv1.KillRequest) (*huskv1.KillResponse, error) {
	sig, err := oci.ParseSignal(req.Signal)
	if err != nil {
		return nil, err
	}
	p, name, err := podref.Container(s.Agent, req.Name, req.Container)
	if err != nil {
		return nil, err
	}
	run, err := podref.Live(p, name)
	if err != nil {
		return nil, err
	}
	if err := s.Containers.Kill(ctx, run.ID, sig); err != nil {
		return nil, err
	}
	return &huskv1.KillResponse{Namespace: p.Manifest.Namespace, Name: p.Manifest.Name, Container: name}, nil
}
