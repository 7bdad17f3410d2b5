package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest"
)

// sourceRun is the source of pods that came through Run.
const sourceRun = "run"

// Run starts the pods of a manifest.
func (s *Server) Run(req *huskv1.RunRequest, stream grpc.ServerStreamingServer[huskv1.RunEvent]) error {
	began := time.Now()
	file := req.File
	if file == "-" {
		file = "standard input"
	}
	parsed, err := manifest.Parse(req.Manifest, manifest.Origin{File: file, Node: s.Node, Source: sourceRun})
	if err != nil {
		return err
	}
	pods := parsed.Pods
	if len(pods) == 0 {
		return errdefs.ErrInvalidArgument.WithMessage(file + ": there is no pod in it: write its config maps and secrets beside the pods that use them")
	}
	var sending sync.Mutex
	send := func(ev *huskv1.RunEvent) error {
		sending.Lock()
		defer sending.Unlock()
		ev.ElapsedNs = int64(time.Since(began))
		return stream.Send(ev)
	}
	// One pod that can't run doesn't end the wait for the others.
	var all sync.WaitGroup
	failures := make([]error, len(pods))
	for i := range pods {
		all.Go(func() { failures[i] = s.runPod(stream.Context(), &pods[i], parsed.Objects, req, send) })
	}
	all.Wait()
	return errors.Join(failures...)
}

func (s *Server) runPod(ctx context.Context, pod *corev1.Pod, objects manifest.Objects, req *huskv1.RunRequest, send func(*huskv1.RunEvent) error) error {
	if req.Replace {
		if err := s.Agent.Replace(pod, sourceRun); err != nil {
			return err
		}
	}
	p, unchanged, err := s.Agent.Apply(ctx, pod, objects, sourceRun)
	if err != nil {
		return err
	}
	said := ""
	for {
		ev := runEvent(p)
		ev.Unchanged = unchanged
		admitted := said == "" && !unchanged && !ev.Ready && ev.Progress == nil
		if admitted {
			ev.Message = "admitted"
		}
		ev.Settled = turnedOut(p)
		done := !req.Wait || ev.Settled
		if unchanged && (ev.Ready || !req.Wait) {
			ev.Message = "unchanged"
		}
		if now := fmt.Sprint(ev.Message, ev.Phase, ev.Ready, ev.Progress != nil); now != said || ev.Progress != nil {
			said = now
			if err := send(ev); err != nil {
				return err
			}
		}
		switch {
		case done:
			return nil
		case admitted:
			continue // what there is to say about it has not been said
		}
		select {
		case <-p.Newer:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p, err = s.Agent.Get(string(pod.UID)); err != nil || p.Want != podplan.Run {
			return errdefs.ErrAborted.WithMessage(fmt.Sprintf("pod %s was stopped while it was waited for", agentName(pod)))
		}
	}
}

func agentName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// turnedOut says whether there is nothing more to wait for: the pod is ready,
// or, if it isn't to run for good, at its end.
func turnedOut(p agent.Pod) bool {
	ended := p.Status.Phase == podplan.PhaseSucceeded || p.Status.Phase == podplan.PhaseFailed
	return ended || p.Status.Ready && p.Manifest.Spec.RestartPolicy == corev1.RestartPolicyAlways
}

// runEvent tells how the pod is.
func runEvent(p agent.Pod) *huskv1.RunEvent {
	ev := &huskv1.RunEvent{
		Namespace: p.Manifest.Namespace,
		Name:      p.Manifest.Name,
		Phase:     string(p.Status.Phase),
		Ready:     p.Status.Ready,
		Ips:       p.Status.IPs,
		Message:   runMessage(p),
	}
	if st, ok := p.Sandbox(); ok {
		ev.Id = st.ID
	}
	if len(p.Pulls) > 0 && !ev.Ready {
		ev.Progress = progress(p.Pulls[0])
		ev.Message = "pulling " + p.Pulls[0].Ref
	}
	return ev
}

func runMessage(p agent.Pod) string {
	st := p.Status
	switch {
	case st.Phase == podplan.PhaseSucceeded:
		return "completed"
	case st.Phase == podplan.PhaseFailed:
		return failureOf(p)
	case st.Ready:
		return "ready"
	case st.Message != "" && st.Reason != "":
		return st.Reason + ": " + st.Message
	case st.Reason != "":
		return st.Reason
	}
	return "starting"
}

// failureOf says what of a failed pod has failed.
func failureOf(p agent.Pod) string {
	for _, c := range p.Status.Containers {
		if c.State != podplan.Terminated || c.ExitCode == 0 {
			continue
		}
		text := fmt.Sprintf("container %s ended with exit code %d", c.Name, c.ExitCode)
		switch {
		case c.Message != "":
			text += ": " + c.Message
		case c.Reason != "" && c.Reason != "Error":
			text += ": " + c.Reason
		}
		return text
	}
	if p.Status.Message != "" {
		return p.Status.Reason + ": " + p.Status.Message
	}
	return p.Status.Reason
}
