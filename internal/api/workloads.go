package api

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/controller"
)

// runWorkload starts or changes a workload of a manifest.
func (s *Server) runWorkload(ctx context.Context, w *workload.Workload, objects manifest.Objects, req *huskv1.RunRequest, send func(*huskv1.RunEvent) error) error {
	unchanged, err := s.Workloads.Apply(ctx, w, objects, sourceRun, req.Replace)
	if err != nil {
		return err
	}
	last := ""
	for {
		v, err := s.Workloads.Get(w.Ref)
		if err != nil || v.Removing {
			return errdefs.ErrAborted.WithMessage(fmt.Sprintf("%s was removed during the wait", w.Ref))
		}
		ev := workloadEvent(v)
		ev.Unchanged = unchanged
		if !req.Wait && !ev.Settled {
			ev.Message = "admitted"
		}
		if now := ev.Message + ev.Phase; now != last {
			last = now
			if err := send(ev); err != nil {
				return err
			}
		}
		if !req.Wait || ev.Settled {
			return nil
		}
		select {
		case <-v.Newer:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func workloadEvent(v controller.View) *huskv1.RunEvent {
	ev := &huskv1.RunEvent{
		Kind: strings.ToLower(string(v.Kind)), Namespace: v.Namespace, Name: v.Name,
		Message: v.Status.Message, Settled: v.Status.Done,
	}
	switch v.Status.Phase {
	case workload.Available:
		ev.Ready = true
	case workload.Complete:
		ev.Phase = string(podplan.PhaseSucceeded)
	case workload.Failed, workload.Stalled:
		ev.Phase = string(podplan.PhaseFailed)
	case workload.Scheduled, workload.Suspended, workload.Waiting:
		ev.Message = strings.ToLower(string(v.Status.Phase)) + ", " + v.Status.Message
	}
	if ev.Message == "" {
		ev.Message = "starting"
	}
	return ev
}

func workloadMessage(v controller.View) *huskv1.Workload {
	out := &huskv1.Workload{
		Kind: string(v.Kind), Namespace: v.Namespace, Name: v.Name,
		Phase: string(v.Status.Phase), Message: v.Status.Message, Done: v.Status.Done,
		Desired: v.Status.Desired, Current: v.Status.Current, Updated: v.Status.Updated,
		Ready: v.Status.Ready, Available: v.Status.Available,
		Succeeded: v.Status.Succeeded, Failed: v.Status.Failed,
		CreatedNs: nanoseconds(v.Created), Source: v.Source,
	}
	if v.Owner != nil {
		out.Owner = v.Owner.String()
	}
	if v.Removing {
		out.Phase, out.Done = "Removing", false
	}
	return out
}

// findWorkload returns the reference that a user has written.
func findWorkload(name string) (workload.Ref, error) {
	ref, ok := workload.ParseRef(name, manifest.DefaultNamespace)
	if !ok {
		return ref, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is not a workload: write its kind and name, as in deployment/web", name))
	}
	return ref, nil
}

// ListWorkloads returns the workloads.
func (s *Server) ListWorkloads(context.Context, *huskv1.ListWorkloadsRequest) (*huskv1.ListWorkloadsResponse, error) {
	r := &huskv1.ListWorkloadsResponse{}
	for _, v := range s.Workloads.List() {
		r.Workloads = append(r.Workloads, workloadMessage(v))
	}
	return r, nil
}

// WatchWorkload sends the state of a workload, and with wait each new one until it is done.
func (s *Server) WatchWorkload(req *huskv1.WatchWorkloadRequest, stream grpc.ServerStreamingServer[huskv1.Workload]) error {
	ref, err := findWorkload(req.Name)
	if err != nil {
		return err
	}
	for {
		v, err := s.Workloads.Get(ref)
		if err != nil {
			return err
		}
		if err := stream.Send(workloadMessage(v)); err != nil || !req.Wait || v.Status.Done {
			return err
		}
		select {
		case <-v.Newer:
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
}

// Scale sets the number of a workload's pods.
func (s *Server) Scale(ctx context.Context, req *huskv1.ScaleRequest) (*huskv1.Workload, error) {
	return s.changeWorkload(req.Name, func(ref workload.Ref) error { return s.Workloads.Scale(ctx, ref, req.Replicas) })
}

func (s *Server) changeWorkload(name string, change func(workload.Ref) error) (*huskv1.Workload, error) {
	ref, err := findWorkload(name)
	if err != nil {
		return nil, err
	}
	if err := change(ref); err != nil {
		return nil, err
	}
	v, err := s.Workloads.Get(ref)
	if err != nil {
		return nil, err
	}
	return workloadMessage(v), nil
}
