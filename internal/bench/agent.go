package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// servePort is the port of the servers in the workload agent.
const servePort = "80"

// manifests benchmarks huskd's agent: the time from a manifest to the answer of the pod's server.
func manifests(ctx context.Context, s *session) error {
	if s.Parallel > 1 {
		return s.manifestBatches(ctx)
	}
	all, end := s.newRecorders("agent")
	defer end()
	s.interleave(ctx, all, s.Samples, func(r *recorder, _ int) error {
		name, err := r.timedAnswer(ctx, s)
		if err != nil {
			return err
		}
		if err := r.stages(ctx, name); err != nil {
			return err
		}
		return r.time(EndPod, func() error { return r.endpoint.removeManifest(ctx, name) })
	})
	for _, r := range all {
		r.recordCost(s.Samples)
		r.recordDaemonMemory()
	}
	return nil
}

// manifestBatches runs all manifests of an endpoint, many at a time, and removes their pods when
// all have answered. No other endpoint is active as long as they exist.
func (s *session) manifestBatches(ctx context.Context) error {
	all, end := s.newRecorders(workloadTitle("agent", fmt.Sprintf(AtATime, s.Parallel)))
	defer end()
	s.interleave(ctx, all, batchRounds, func(r *recorder, _ int) error {
		names := make([]string, s.Samples)
		began := time.Now()
		err := r.time(AllAnswer, func() error {
			errs := make([]error, s.Samples)
			parallel(ctx, s.Samples, s.Parallel, func(i int) { names[i], errs[i] = r.timedAnswer(ctx, s) })
			return errors.Join(errs...)
		})
		r.addElapsed(time.Since(began), Answers)
		r.recordDaemonMemory()
		began = time.Now()
		parallel(context.WithoutCancel(ctx), len(names), s.Parallel, func(i int) {
			if names[i] != "" {
				_ = r.time(EndPod, func() error { return r.endpoint.removeManifest(ctx, names[i]) })
			}
		})
		r.addElapsed(time.Since(began), EndPod)
		return err
	})
	return nil
}

// timedAnswer runs a pod from a manifest until its server answers. It returns the name even on
// failure, if the pod may exist.
func (r *recorder) timedAnswer(ctx context.Context, s *session) (name string, err error) {
	name = r.endpoint.podName()
	data, err := manifest(name, r.endpoint.run, s.Image, s.Serve)
	if err != nil {
		return "", err
	}
	return name, r.time(Answers, func() error { return r.answer(ctx, data) })
}

// stageNames are the steps of a pod that its answer waits for, by their names in inspect.
var stageNames = map[string]string{
	"pin": "stage: namespaces", "attach": "stage: network", "mount": "stage: root file system", "create": CreateStage, "start": "stage: start",
}

// stages records the steps of a pod that huskd has measured.
func (r *recorder) stages(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	answer, err := r.endpoint.husk.Inspect(ctx, &huskv1.InspectRequest{Name: namespace + "/" + name})
	if err != nil {
		return withoutPrefix(err)
	}
	type steps []struct {
		Name        string
		Nanoseconds time.Duration
	}
	var pod struct {
		Sandbox    struct{ Steps steps }
		Containers []struct{ Steps steps }
	}
	if err := json.Unmarshal(answer.Json, &pod); err != nil {
		return err
	}
	all := pod.Sandbox.Steps
	for _, c := range pod.Containers {
		all = append(all, c.Steps...)
	}
	for _, step := range all {
		if of, ok := stageNames[step.Name]; ok {
			r.sample(of, step.Nanoseconds, nil)
		}
	}
	return nil
}

// manifest returns the manifest of a pod with a server.
func manifest(name, run, image string, serve []string) ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": map[string]any{"name": name, "namespace": namespace, "labels": map[string]string{runLabel: run}},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 0,
			"containers":                    []any{map[string]any{"name": "server", "image": image, "command": serve}},
		},
	})
}

// answer runs a manifest and returns when its server has accepted a connection.
func (r *recorder) answer(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	stream, err := r.endpoint.husk.Run(ctx, &huskv1.RunRequest{File: "-", Manifest: data, Wait: true})
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("huskd ended the stream before the pod was ready or had failed")
		case err != nil:
			return err
		case ev.Phase == "Failed":
			return fmt.Errorf("the pod failed: %s", ev.Message)
		case ev.Ready && len(ev.Ips) == 0:
			return errors.New("the pod is ready but has no address")
		case ev.Ready || ev.Phase == "Running" && len(ev.Ips) > 0: // husk run --wait doubts it for a while
			return poll(ctx, pollInterval, func() error { return connects(ctx, ev.Ips[0]) })
		}
	}
}

func connects(ctx context.Context, ip string) error {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", net.JoinHostPort(ip, servePort))
	if err != nil {
		return err
	}
	return conn.Close()
}

func (e *endpoint) removeManifest(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	_, err := e.husk.Remove(ctx, &huskv1.RemoveRequest{Name: namespace + "/" + name, Force: true})
	return err
}

// cleanUpManifests is the part of cleanUp for pods of huskd's agent.
func (e *endpoint) cleanUpManifests(ctx context.Context, own bool) (errs []error) {
	if e.husk == nil {
		return nil
	}
	list, err := e.husk.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	if err != nil {
		return []error{err}
	}
	for _, p := range list.Pods {
		if run := runOf(p.Name); p.Namespace == namespace && run != "" && e.isStale(run, own) {
			if err := e.removeManifest(ctx, p.Name); err != nil {
				errs = append(errs, fmt.Errorf("endpoint %s: remove pod %s: %w: remove it by hand", e.Name, p.Name, err))
			}
		}
	}
	return errs
}
