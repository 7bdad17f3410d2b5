package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// sourceRun is the source of pods that were started by Run.
const sourceRun = "run"

// crashLoop is the reason of a container that has failed and waits for its restart.
const crashLoop = "CrashLoopBackOff"

// Run keeps the objects of a manifest and starts its pods.
func (s *Server) Run(req *huskv1.RunRequest, stream grpc.ServerStreamingServer[huskv1.RunEvent]) error {
	began := time.Now()
	file := req.File
	if file == "-" {
		file = "standard input"
	}
	parsed, err := manifest.Parse(req.Manifest, manifest.Origin{File: file, Node: s.Node, Source: sourceRun, Policies: s.Objects.Policies(), Services: s.Services.Accepts()})
	if err != nil {
		return err
	}
	if req.DryRun {
		return dryRun(parsed, s.Agent, s.Objects.All().With(parsed.Objects), stream)
	}
	unchanged, err := s.Objects.Keep(stream.Context(), parsed.Documents, file)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var sending sync.Mutex
	send := func(ev *huskv1.RunEvent) error {
		sending.Lock()
		defer sending.Unlock()
		if ev.ElapsedNs == 0 {
			ev.ElapsedNs = int64(time.Since(began))
		}
		return stream.Send(ev)
	}
	for i, doc := range parsed.Documents {
		ev := &huskv1.RunEvent{Kind: strings.ToLower(doc.Kind), Namespace: doc.Namespace, Name: doc.Name, Message: "kept", Settled: true}
		if unchanged[i] {
			ev.Message, ev.Unchanged = "unchanged", true
		}
		if err := send(ev); err != nil {
			return err
		}
	}
	// Services come before the pods, which have their addresses in variables.
	refused := s.Services.Run(stream.Context(), parsed, file, sourceRun, send)
	if req.ObjectsOnly {
		return nil
	}
	for _, unused := range parsed.Unused {
		if err := send(&huskv1.RunEvent{Note: fmt.Sprintf("%s: %v", file, unused)}); err != nil {
			return err
		}
	}
	// One pod that fails doesn't end the wait for the others.
	var all sync.WaitGroup
	pods, objects := parsed.Pods, s.Objects.All()
	failures := make([]error, len(pods)+len(parsed.Workloads))
	for i := range pods {
		all.Go(func() { failures[i] = s.runPod(stream.Context(), &pods[i], objects, req, send) })
	}
	for i, w := range parsed.Workloads {
		all.Go(func() {
			failures[len(pods)+i] = s.runWorkload(stream.Context(), w, objects, req, send)
		})
	}
	all.Wait()
	return errors.Join(errors.Join(failures...), refused, s.Services.Note(parsed, send))
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
	last, crashes := "", crashCount{}
	var readied int64 // the event's ElapsedNs when the pod became ready
	for {
		ev := runEvent(p)
		ev.Unchanged = unchanged
		var steady <-chan time.Time
		if left := unsteady(p, time.Now()); req.Wait && left > 0 {
			ev.Ready, ev.Message, steady = false, "", time.After(left)
		} else if ev.Ready {
			ev.ElapsedNs = readied
		}
		stuck := req.Wait && p.Status.Stuck && !p.Status.Ready && len(p.Pulls) == 0
		crashing := crashes.tooMany(p)
		admitted := last == "" && !unchanged && !p.Status.Ready && ev.Progress == nil && !stuck
		if admitted {
			ev.Message = "admitted"
		}
		ev.Settled = waitIsOver(p) && steady == nil
		if stuck || req.Wait && crashing != "" {
			ev.Phase, ev.Settled, ev.Message = string(podplan.PhaseFailed), true, cmp.Or(crashing, ev.Message)
		}
		done := !req.Wait || ev.Settled
		if unchanged && (ev.Ready || !req.Wait) {
			ev.Message = "unchanged"
		}
		if now := fmt.Sprint(ev.Message, ev.Phase, ev.Ready, ev.Progress != nil); now != last || ev.Progress != nil {
			last = now
			if err := send(ev); err != nil {
				return err
			}
		}
		if steady == nil {
			readied = 0
		} else if readied == 0 {
			readied = ev.ElapsedNs
		}
		switch {
		case done:
			return nil
		case admitted:
			continue // the real message is still to be sent
		}
		select {
		case <-p.Newer:
		case <-steady:
		case <-ctx.Done():
			return ctx.Err()
		}
		if p, err = s.Agent.Get(string(pod.UID)); err != nil || p.Want != podplan.Run {
			return errdefs.ErrAborted.WithMessage(fmt.Sprintf("pod %s was stopped during the wait", podName(pod)))
		}
	}
}

// crashesMax is how often a container may crash until a wait gives up. A program that needs another
// one, such as a database that starts beside it, may crash a few times; the fifth time is after
// more than a minute.
const crashesMax = 5

// crashCount has the restarts of each container when a wait first saw it.
type crashCount map[string]int

// tooMany says which container of a pod has crashed too often since the wait began. It is empty if
// none has.
func (n crashCount) tooMany(p agent.Pod) string {
	for _, c := range p.Status.Containers {
		before, known := n[c.Name]
		if !known {
			n[c.Name] = c.Restarts
		} else if crashes := c.Restarts - before + 1; c.Reason == crashLoop && crashes >= crashesMax {
			return fmt.Sprintf("container %s has crashed %d times, last with exit code %d: it goes on restarting, husk logs -p %s shows why", c.Name, crashes, c.ExitCode, p.Name())
		}
	}
	return ""
}

func podName(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// steadyTime is how long a container without a readiness or startup probe must have run before a
// wait believes that it is ready: a program that can't work ends at once.
const steadyTime = 100 * time.Millisecond

// unsteady returns how long it still takes to believe that a ready pod is ready.
func unsteady(p agent.Pod, now time.Time) (left time.Duration) {
	if !p.Status.Ready {
		return 0
	}
	for _, c := range p.Manifest.Spec.Containers {
		i := slices.IndexFunc(p.Status.Containers, func(s podplan.ContainerStatus) bool { return s.Name == c.Name })
		if c.ReadinessProbe == nil && c.StartupProbe == nil && i >= 0 && p.Status.Containers[i].State == podplan.Running {
			// The host's clock may have been set.
			left = max(left, min(steadyTime-now.Sub(p.Status.Containers[i].Started), steadyTime))
		}
	}
	return left
}

// waitIsOver reports whether a wait for the pod ends: it is ready or, if its restartPolicy is not
// Always, has ended.
func waitIsOver(p agent.Pod) bool {
	ended := p.Status.Phase == podplan.PhaseSucceeded || p.Status.Phase == podplan.PhaseFailed
	return ended || p.Status.Ready && p.Manifest.Spec.RestartPolicy == corev1.RestartPolicyAlways
}

// runEvent returns an event with the status of the pod.
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
		return st.Reason + ": " + st.Message + lastExit(st)
	case st.Reason != "":
		return st.Reason
	}
	return "starting"
}

// lastExit names the exit code of the container whose restart a pod waits for.
func lastExit(st podplan.Status) string {
	for _, c := range st.Containers {
		if c.Reason == crashLoop && c.Message == st.Message {
			return fmt.Sprintf(" (exit code %d)", c.ExitCode)
		}
	}
	return ""
}

// failureOf describes what failed in a failed pod.
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
