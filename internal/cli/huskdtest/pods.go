package huskdtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	huskv1 "github.com/huskd/husk/api/v1"
)

// document is the part of a manifest that is read.
type document struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		RestartPolicy  string          `json:"restartPolicy"`
		InitContainers []containerSpec `json:"initContainers"`
		Containers     []containerSpec `json:"containers"`
	} `json:"spec"`
}

// containerSpec is the description of a container. Its program is one of programs.
type containerSpec struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
	Stdin   bool     `json:"stdin"`
	TTY     bool     `json:"tty"`
}

// program returns the container's program and its arguments.
func (c containerSpec) program() []string { return slices.Concat(c.Command, c.Args) }

// parse parses the documents of one file.
func parse(file string, data []byte) ([]*document, error) {
	var docs []*document
	for i, part := range bytes.Split(data, []byte("\n---")) {
		d := &document{}
		if err := yaml.Unmarshal(part, d); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "%s: document %d is no YAML: %s", file, i+1, strings.ReplaceAll(err.Error(), "\n", " "))
		}
		switch {
		case d.Kind != "Pod":
			return nil, status.Errorf(codes.InvalidArgument, "%s: document %d has kind %q: only Pod can be run", file, i+1, d.Kind)
		case d.Metadata.Name == "" || len(d.Spec.Containers) == 0:
			return nil, status.Errorf(codes.InvalidArgument, "%s: document %d needs metadata.name and spec.containers", file, i+1)
		}
		if d.Metadata.Namespace == "" {
			d.Metadata.Namespace = "default"
		}
		docs = append(docs, d)
	}
	return docs, nil
}

// id derives an ID from words, which makes it predictable.
func id(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:])
}

// Run starts the pods of a manifest.
func (h *Huskd) Run(req *huskv1.RunRequest, stream grpc.ServerStreamingServer[huskv1.RunEvent]) error {
	began := time.Now()
	docs, err := parse(req.File, req.Manifest)
	if err != nil || req.ObjectsOnly {
		return err
	}
	for _, d := range docs {
		if req.Replace {
			h.removeChanged(d)
		}
		send := func(ev *huskv1.RunEvent) error {
			ev.Namespace, ev.Name = d.Metadata.Namespace, d.Metadata.Name
			ev.ElapsedNs = int64(time.Since(began))
			return stream.Send(ev)
		}
		if err := h.start(stream.Context(), d, req.Wait, send); err != nil {
			return err
		}
	}
	return nil
}

func (h *Huskd) start(ctx context.Context, d *document, wait bool, send func(*huskv1.RunEvent) error) error {
	p, unchanged, err := h.admit(d)
	if err != nil {
		return err
	}
	if unchanged {
		err := h.until(ctx, func() bool {
			i := slices.IndexFunc(h.pods, func(other *huskv1.Pod) bool { return key(other) == key(p) })
			if i >= 0 {
				p = proto.CloneOf(h.pods[i])
			}
			return !wait || p.Phase != "Pending"
		})
		if err != nil {
			return err
		}
		return send(&huskv1.RunEvent{Id: p.Id, Unchanged: true, Message: "unchanged", Phase: p.Phase, Ready: p.Phase == "Running", Settled: p.Phase != "Pending", Ips: p.Ips})
	}
	if err := send(&huskv1.RunEvent{Id: p.Id, Message: "admitted", Phase: "Pending"}); err != nil {
		return err
	}
	launch := func(ctx context.Context, send func(*huskv1.RunEvent) error) error {
		for _, c := range slices.Concat(d.Spec.InitContainers, d.Spec.Containers) {
			if err := h.pull(ctx, c.Image, send); err != nil {
				return err
			}
		}
		ev := h.startContainers(p, d)
		if err := send(ev); err != nil || ev.Settled || !wait {
			return err
		}
		<-ctx.Done() // wait until the client gives up: this pod never completes
		return status.FromContextError(ctx.Err()).Err()
	}
	if !wait {
		go func() { _ = launch(context.Background(), func(*huskv1.RunEvent) error { return nil }) }()
		return nil
	}
	return launch(ctx, send)
}

// admit adds the pod; unchanged is set if it exists with the same manifest.
func (h *Huskd) admit(d *document) (pod *huskv1.Pod, unchanged bool, err error) {
	h.change(func() {
		name := d.Metadata.Namespace + "/" + d.Metadata.Name
		i := slices.IndexFunc(h.pods, func(p *huskv1.Pod) bool { return key(p) == name })
		if i >= 0 {
			pod = h.pods[i]
			x, _ := json.Marshal(d)
			y, _ := json.Marshal(h.given[name])
			if unchanged = bytes.Equal(x, y); !unchanged {
				err = status.Errorf(codes.AlreadyExists, "pod %s exists with another manifest: husk rm -f %s removes it", name, name)
			}
			return
		}
		now := time.Now().UnixNano()
		p := &huskv1.Pod{
			Id: id(name), Uid: id("uid", name)[:32], Namespace: d.Metadata.Namespace, Name: d.Metadata.Name,
			Phase: "Pending", CreatedNs: now, Source: "run",
		}
		for i, c := range slices.Concat(d.Spec.InitContainers, d.Spec.Containers) {
			p.Containers = append(p.Containers, &huskv1.Container{
				Id: id(name, c.Name), Name: c.Name, Image: c.Image, State: "Waiting", Reason: "ContainerCreating",
				CreatedNs: now, Init: i < len(d.Spec.InitContainers),
			})
		}
		h.pods = append(h.pods, p)
		h.given[name] = d
		pod = p
	})
	return pod, unchanged, err
}

// pull pulls an image that is missing. If it can't be pulled, it waits until ctx ends, like a pod
// in back-off.
func (h *Huskd) pull(ctx context.Context, ref string, send func(*huskv1.RunEvent) error) error {
	if h.image(ref) != nil {
		return nil
	}
	remote := h.registry[ref]
	if remote == nil {
		ev := &huskv1.RunEvent{Message: "can't pull " + ref + ": the registry has no such image, trying again", Phase: "Pending"}
		if err := send(ev); err != nil {
			return err
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	message := "pulling " + ref
	return h.transfer(ctx, ref, remote.layers, func(p *huskv1.Progress) error {
		return send(&huskv1.RunEvent{Message: message, Phase: "Pending", Progress: p})
	})
}

// startContainers starts the containers of the pod and returns the event for it.
func (h *Huskd) startContainers(p *huskv1.Pod, d *document) *huskv1.RunEvent {
	ev := &huskv1.RunEvent{Id: p.Id}
	h.change(func() {
		now := time.Now().UnixNano()
		p.Phase = "Running"
		p.Ips = []string{fmt.Sprintf("10.1.2.%d", 2+len(h.pods))}
		for _, c := range p.Containers {
			c.State, c.Reason, c.Ready, c.StartedNs, c.Pid = "Running", "", true, now, 100
			if c.Init {
				c.State, c.Reason, c.Ready, c.FinishedNs, c.Pid = "Terminated", "Completed", false, now, 0
			}
		}
		ev.Message, ev.Ready = "ready", true
		if code, ends := exitOf(d); ends {
			ev.Message, ev.Ready, p.Phase = "completed", false, "Succeeded"
			reason := "Completed"
			if code != 0 {
				ev.Message, p.Phase = fmt.Sprintf("container %s ended with exit code %d", d.Spec.Containers[0].Name, code), "Failed"
				reason = "Error"
			}
			for _, c := range p.Containers {
				c.State, c.Reason, c.Ready, c.FinishedNs, c.ExitCode = "Terminated", reason, false, now, int32(code)
			}
		}
		ev.Phase, ev.Ips = p.Phase, p.Ips
		ev.Settled = p.Phase != "Running" || restartsAlways(d)
	})
	return ev
}

// removeChanged removes the pod of that name if its manifest differs.
func (h *Huskd) removeChanged(d *document) {
	h.change(func() {
		name := d.Metadata.Namespace + "/" + d.Metadata.Name
		x, _ := json.Marshal(d)
		y, _ := json.Marshal(h.given[name])
		if !bytes.Equal(x, y) {
			h.pods = slices.DeleteFunc(h.pods, func(p *huskv1.Pod) bool { return key(p) == name })
			delete(h.given, name)
		}
	})
}

func restartsAlways(d *document) bool {
	return d.Spec.RestartPolicy == "" || d.Spec.RestartPolicy == "Always"
}

// exitOf returns the exit code of a pod that runs to completion: its command is "exit N".
func exitOf(d *document) (code int, ends bool) {
	c := d.Spec.Containers[0].program()
	if restartsAlways(d) || len(c) != 2 || c[0] != "exit" {
		return 0, false
	}
	code, err := strconv.Atoi(c[1])
	return code, err == nil
}

// stop marks a pod as stopped. The caller holds h.mu.
func stop(p *huskv1.Pod) {
	p.Phase, p.Reason = "Stopped", ""
	for _, c := range p.Containers {
		if c.State == "Running" {
			c.State, c.Reason, c.Ready, c.Pid = "Terminated", "Completed", false, 0
			c.FinishedNs = time.Now().UnixNano()
		}
	}
}

// SetPod adds or replaces a pod.
func (h *Huskd) SetPod(p *huskv1.Pod) {
	h.change(func() {
		h.pods = slices.DeleteFunc(h.pods, func(old *huskv1.Pod) bool { return key(old) == key(p) })
		h.pods = append(h.pods, p)
	})
}

// ListPods lists pods in no particular order.
func (h *Huskd) ListPods(_ context.Context, req *huskv1.ListPodsRequest) (*huskv1.ListPodsResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := &huskv1.ListPodsResponse{}
	for _, p := range slices.Backward(h.pods) {
		if req.All || p.Phase == "Running" || p.Phase == "Pending" {
			r.Pods = append(r.Pods, proto.CloneOf(p))
		}
	}
	return r, nil
}

// Inspect returns a document about a pod or a container.
func (h *Huskd) Inspect(_ context.Context, req *huskv1.InspectRequest) (*huskv1.InspectResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p, c, err := h.find(req.Name)
	if err != nil {
		return nil, err
	}
	about := map[string]any{"Id": p.Id, "Name": key(p), "NetworkSettings": map[string]any{"SandboxKey": "/run/netns/husk-" + p.Id[:12]}}
	if c != nil {
		about = map[string]any{"Id": c.Id, "Name": c.Name, "Pod": key(p)}
	}
	data, err := json.Marshal(about)
	return &huskv1.InspectResponse{Json: data}, err
}

// Stop stops a pod. Stopping a stopped pod succeeds.
func (h *Huskd) Stop(ctx context.Context, req *huskv1.StopRequest) (*huskv1.StopResponse, error) {
	if err := h.step(ctx); err != nil {
		return nil, err
	}
	var p *huskv1.Pod
	var err error
	h.change(func() {
		if p, _, err = h.find(req.Name); err == nil {
			stop(p)
		}
	})
	if err != nil {
		return nil, err
	}
	return &huskv1.StopResponse{Namespace: p.Namespace, Name: p.Name}, nil
}

// Remove removes a pod that isn't running.
func (h *Huskd) Remove(_ context.Context, req *huskv1.RemoveRequest) (*huskv1.RemoveResponse, error) {
	var p *huskv1.Pod
	var err error
	h.change(func() {
		if p, _, err = h.find(req.Name); err != nil {
			return
		}
		if !req.Force && (p.Phase == "Running" || p.Phase == "Pending") {
			err = status.Errorf(codes.FailedPrecondition, "pod %s is running: stop it first, or remove it with -f", key(p))
			return
		}
		h.pods = slices.DeleteFunc(h.pods, func(other *huskv1.Pod) bool { return other == p })
		delete(h.given, key(p))
	})
	if err != nil {
		return nil, err
	}
	return &huskv1.RemoveResponse{Namespace: p.Namespace, Name: p.Name}, nil
}
