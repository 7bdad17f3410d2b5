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

// servePort is where the containers of the workload agent listen.
const servePort = "80"

// manifests measures huskd's own agent: from a manifest to the answer of the
// pod's server.
func manifests(ctx context.Context, s *session) error {
	all, end := s.records("agent")
	defer end()
	s.turns(ctx, all, s.Samples, func(r *record, _ int) error {
		name := r.podName()
		data, err := manifest(name, r.run, s.Image, s.Serve)
		if err != nil {
			return err
		}
		if err := r.time(Answers, func() error { return r.answer(ctx, data) }); err != nil {
			return err
		}
		return r.time(EndPod, func() error { return r.removeManifest(ctx, name) })
	})
	for _, r := range all {
		r.spent(s.Samples)
		r.residentDaemon()
	}
	return nil
}

// manifest is that of a pod with a server.
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

// answer runs a manifest and returns when its server has taken a connection.
func (r *record) answer(ctx context.Context, data []byte) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	stream, err := r.husk.Run(ctx, &huskv1.RunRequest{File: "-", Manifest: data, Wait: true})
	if err != nil {
		return err
	}
	for {
		ev, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("it is neither ready nor failed")
		case err != nil:
			return err
		case ev.Phase == "Failed":
			return fmt.Errorf("the pod failed: %s", ev.Message)
		case ev.Ready && len(ev.Ips) == 0:
			return errors.New("it is ready but has no address")
		case ev.Ready:
			return until(ctx, lookGap, func() error { return connects(ctx, ev.Ips[0]) })
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	_, err := e.husk.Remove(ctx, &huskv1.RemoveRequest{Name: namespace + "/" + name, Force: true})
	return err
}

// sweepManifests is the part of sweep that is about huskd's own pods.
func (e *endpoint) sweepManifests(ctx context.Context, mine bool) (errs []error) {
	if e.husk == nil {
		return nil
	}
	list, err := e.husk.ListPods(ctx, &huskv1.ListPodsRequest{All: true})
	if err != nil {
		return []error{err}
	}
	for _, p := range list.Pods {
		if run := runOf(p.Name); p.Namespace == namespace && run != "" && e.over(run, mine) {
			if err := e.removeManifest(ctx, p.Name); err != nil {
				errs = append(errs, fmt.Errorf("endpoint %s: pod %s is left: %w: remove it by hand", e.Name, p.Name, err))
			}
		}
	}
	return errs
}
