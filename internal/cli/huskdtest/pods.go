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

// document is what is read of a manifest.
type document struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
	Spec struct {
		RestartPolicy  string `json:"restartPolicy"`
		InitContainers []made `json:"initContainers"`
		Containers     []made `json:"containers"`
	} `json:"spec"`
}

// made is what a container was made of. Command is a program of programs.
type made struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Stdin   bool     `json:"stdin"`
	TTY     bool     `json:"tty"`
}

// parse reads the documents of one file.
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

// id derives an ID from words, so that tests can know it.
func id(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:])
}

// Run starts the pods of a manifest.
func (h *Huskd) Run(req *huskv1.RunRequest, stream grpc.ServerStreamingServer[huskv1.RunEvent]) error {
	began := time.Now()
	docs, err := parse(req.File, req.Manifest)
	if err != nil {
		return err
	}
	for _, d := range docs {
		if req.Replace {
			h.makeWay(d)
		}
		tell := func(ev *huskv1.RunEvent) error {
			ev.Namespace, ev.Name = d.Metadata.Namespace, d.Metadata.Name
			ev.ElapsedNs = int64(time.Since(began))
			return stream.Send(ev)
		}
		if err := h.start(stream.Context(), d, req.Wait, tell); err != nil {
			return err
		}
	}
	return nil
}

func (h *Huskd) start(ctx context.Context, d *document, wait bool, tell func(*huskv1.RunEvent) error) error {
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
		return tell(&huskv1.RunEvent{Id: p.Id, Unchanged: true, Message: "unchanged", Phase: p.Phase, Ready: p.Phase == "Running", Settled: p.Phase != "Pending", Ips: p.Ips})
	}
	if err := tell(&huskv1.RunEvent{Id: p.Id, Message: "admitted", Phase: "Pending"}); err != nil {
		return err
	}
	bring := func(ctx context.Context, tell func(*huskv1.RunEvent) error) error {
		for _, c := range slices.Concat(d.Spec.InitContainers, d.Spec.Containers) {
			if err := h.need(ctx, c.Image, tell); err != nil {
				return err
			}
		}
		ev := h.begin(p, d)
		if err := tell(ev); err != nil || ev.Settled {
			return err
		}
		<-ctx.Done() // it never ends
		return status.FromContextError(ctx.Err()).Err()
	}
	if !wait {
		go func() { _ = bring(context.Background(), func(*huskv1.RunEvent) error { return nil }) }()
		return nil
	}
	return bring(ctx, tell)
}

// admit notes the pod; unchanged if it was there with the same manifest.
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

// need pulls an image that isn't there. One that can't be pulled is tried until ctx ends, as a pod
// does.
func (h *Huskd) need(ctx context.Context, ref string, tell func(*huskv1.RunEvent) error) error {
	if h.image(ref) != nil {
		return nil
	}
	remote := h.registry[ref]
	if remote == nil {
		ev := &huskv1.RunEvent{Message: "can't pull " + ref + ": the registry has no such image, trying again", Phase: "Pending"}
		if err := tell(ev); err != nil {
			return err
		}
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	message := "pulling " + ref
	return h.transfer(ctx, ref, remote.layers, func(p *huskv1.Progress) error {
		return tell(&huskv1.RunEvent{Message: message, Phase: "Pending", Progress: p})
	})
}

// begin runs the pod's containers and returns the event that tells of it.
func (h *Huskd) begin(p *huskv1.Pod, d *document) *huskv1.RunEvent {
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
		ev.Settled = p.Phase != "Running" || runsForGood(d)
	})
	return ev
}

// makeWay removes the pod of that name that has another manifest.
func (h *Huskd) makeWay(d *document) {
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

func runsForGood(d *document) bool {
	return d.Spec.RestartPolicy == "" || d.Spec.RestartPolicy == "Always"
}

// exitOf says how a pod ends that doesn't run for good: its command is "exit N".
func exitOf(d *document) (code int, ends bool) {
	c := d.Spec.Containers[0].Command
	if runsForGood(d) || len(c) != 2 || c[0] != "exit" {
		return 0, false
	}
	code, err := strconv.Atoi(c[1])
	return code, err == nil
}

// stop is what becomes of a stopped pod. The caller holds the lock.
func stop(p *huskv1.Pod) {
	p.Phase, p.Reason = "Stopped", ""
	for _, c := range p.Containers {
		if c.State == "Running" {
			c.State, c.Reason, c.Ready, c.Pid = "Terminated", "Completed", false, 0
			c.FinishedNs = time.Now().UnixNano()
		}
	}
}

// SetPod adds or replaces a pod as it is.
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

// Inspect answers a document about a pod or a container.
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

// Stop stops a pod; one that is stopped stays so.
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

// Remove removes a pod that doesn't run.
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
