package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/pod"
)

// podDocument is the output of inspect for a pod.
type podDocument struct {
	ID              string              `json:"Id" doc:"ID of the newest sandbox"`
	Name            string              `json:"Name" doc:"namespace/name"`
	UID             string              `json:"Uid" doc:"UID of the pod, from the manifest or derived from its content"`
	Source          string              `json:"Source" doc:"source of the manifest: run, or file:/path"`
	Phase           string              `json:"Phase" doc:"Pending, Running, Succeeded, Failed or Stopped"`
	Reason          string              `json:"Reason,omitempty" doc:"why it isn't running, in one word"`
	Message         string              `json:"Message,omitempty" doc:"why it isn't running, in one line"`
	Ready           bool                `json:"Ready" doc:"all containers are ready"`
	WaitsFor        []string            `json:"WaitsFor,omitempty" doc:"what it waits for until it is ready, a line for each"`
	Conditions      []conditionDocument `json:"Conditions" doc:"conditions of the pod"`
	IPs             []string            `json:"IPs" doc:"addresses, the primary one first"`
	HostNetwork     bool                `json:"HostNetwork" doc:"it uses the node's network namespace"`
	Created         time.Time           `json:"Created" doc:"when the pod was first declared"`
	NetworkSettings pod.NetworkSettings `json:"NetworkSettings" doc:"its network; SandboxKey is the path of its network namespace, which ip netns lists"`
	Sandbox         *sandboxDocument    `json:"Sandbox,omitempty" doc:"the newest sandbox"`
	Containers      []containerDocument `json:"Containers" doc:"the newest run of each container, in start order, then the ephemeral containers"`
	Manifest        *corev1.Pod         `json:"Manifest" doc:"the manifest, with all defaults"`
}

// conditionDocument is a condition of a pod.
type conditionDocument struct {
	Type string `json:"Type" doc:"PodReadyToStartContainers (it has a sandbox), Initialized, ContainersReady or Ready"`
	Met  bool   `json:"Met"`
}

// probesDocument is the state of the probes of a container.
type probesDocument struct {
	Startup   podplan.Verdict `json:"Startup,omitempty" doc:"healthy or failing; empty while unknown, as for the others"`
	Liveness  podplan.Verdict `json:"Liveness,omitempty"`
	Readiness podplan.Verdict `json:"Readiness,omitempty"`
	PostStart podplan.Verdict `json:"PostStart,omitempty" doc:"failing if the hook has failed"`
	Message   string          `json:"Message,omitempty" doc:"message of the last failed check"`
}

// sandboxDocument is the output of inspect for a sandbox.
type sandboxDocument struct {
	ID      string     `json:"Id"`
	Attempt uint32     `json:"Attempt" doc:"number of sandboxes that the pod had before"`
	Handler string     `json:"RuntimeHandler,omitempty" doc:"runtime handler that the pod names; absent for the default"`
	State   string     `json:"State" doc:"reserved, pinning, attaching, starting, ready; killing, detaching, unpinning, stopped; removing, removed"`
	Reason  string     `json:"Reason,omitempty" doc:"why it isn't ready"`
	Created time.Time  `json:"Created"`
	Cgroup  string     `json:"Cgroup" doc:"parent of the containers' cgroups, in each hierarchy"`
	Hosts   string     `json:"HostsPath" doc:"file that its containers have as /etc/hosts"`
	Resolv  string     `json:"ResolvConfPath" doc:"file that its containers have as /etc/resolv.conf"`
	MTU     int        `json:"MTU,omitempty" doc:"MTU of its interface"`
	Link    string     `json:"HostLink,omitempty" doc:"the host's end of its interface"`
	Steps   []pod.Step `json:"Steps,omitempty" doc:"steps of its creation with their durations, since huskd started"`
}

// containerDocument is the output of inspect for a container.
type containerDocument struct {
	ID        string          `json:"Id" doc:"ID of its newest run; empty before the first"`
	Name      string          `json:"Name"`
	Pod       string          `json:"Pod" doc:"namespace/name"`
	Image     string          `json:"Image" doc:"as in the manifest"`
	ImageID   string          `json:"ImageId,omitempty" doc:"digest of the image's configuration"`
	State     string          `json:"State" doc:"Waiting, Running or Terminated"`
	Reason    string          `json:"Reason,omitempty" doc:"why it waits, or how it ended"`
	Message   string          `json:"Message,omitempty"`
	Ready     bool            `json:"Ready" doc:"it is running and its readiness probe, if any, has succeeded"`
	Restarts  int             `json:"RestartCount"`
	Pid       int             `json:"Pid,omitempty" doc:"its first process, as a PID of the host"`
	ExitCode  int             `json:"ExitCode" doc:"exit code of the newest run that has ended"`
	OOMKilled bool            `json:"OOMKilled" doc:"the kernel killed it because of its memory limit"`
	Started   time.Time       `json:"StartedAt,omitzero"`
	Finished  time.Time       `json:"FinishedAt,omitzero"`
	LogPath   string          `json:"LogPath,omitempty" doc:"log file, in CRI's format"`
	Cgroup    string          `json:"Cgroup,omitempty"`
	Last      *runDocument    `json:"LastRun,omitempty" doc:"its newest run that has ended, other than the one whose end is its state"`
	Probes    *probesDocument `json:"Probes,omitempty" doc:"state of the probes of the newest run"`
	Steps     []pod.Step      `json:"Steps,omitempty" doc:"steps of this run with their durations, since huskd started"`
}

// runDocument is a run of a container that has ended.
type runDocument struct {
	ID        string    `json:"Id"`
	Reason    string    `json:"Reason,omitempty" doc:"how it ended: Completed, Error, OOMKilled or another word of the runtime"`
	Message   string    `json:"Message,omitempty"`
	ExitCode  int       `json:"ExitCode"`
	OOMKilled bool      `json:"OOMKilled" doc:"the kernel killed it because of its memory limit"`
	Started   time.Time `json:"StartedAt,omitzero"`
	Finished  time.Time `json:"FinishedAt,omitzero"`
}

// Inspect returns everything known about a pod or a container, as JSON.
func (s *Server) Inspect(_ context.Context, req *huskv1.InspectRequest) (*huskv1.InspectResponse, error) {
	p, name, err := s.Agent.Find(req.Name)
	if err != nil {
		return nil, err
	}
	var document any = s.podDocument(p)
	if name != "" {
		all := slices.Concat(p.Status.Containers, p.Status.Ephemeral)
		if i := slices.IndexFunc(all, func(c podplan.ContainerStatus) bool { return c.Name == name }); i >= 0 {
			document = s.containerDocument(p, all[i])
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err = encoder.Encode(document)
	return &huskv1.InspectResponse{Json: out.Bytes()}, err
}

func (s *Server) podDocument(p agent.Pod) podDocument {
	out := podDocument{
		Name: p.Name(), UID: string(p.Manifest.UID), Source: p.Source,
		Phase: string(p.Status.Phase), Reason: p.Status.Reason, Message: p.Status.Message, Ready: p.Status.Ready,
		IPs: append([]string{}, p.Status.IPs...), HostNetwork: p.Manifest.Spec.HostNetwork, Created: p.Created,
		Manifest: p.Manifest, Containers: []containerDocument{}, NetworkSettings: pod.NewNetworkSettings(pod.Attachment{}, nil),
	}
	if out.Message == "" {
		out.Message = p.Problem
	}
	out.WaitsFor = waitsFor(p)
	out.Conditions = []conditionDocument{
		{"PodReadyToStartContainers", p.Status.SandboxReady}, {"Initialized", p.Status.Initialized},
		{"ContainersReady", p.Status.Ready}, {"Ready", p.Status.Ready},
	}
	if st, ok := p.Sandbox(); ok {
		out.ID = st.ID
		files := s.Sandboxes.Files(st)
		out.NetworkSettings = pod.NewNetworkSettings(st.Attachment, st.Attached)
		out.Sandbox = &sandboxDocument{
			ID: st.ID, Attempt: st.Config.GetMetadata().GetAttempt(), Handler: st.Handler, State: string(st.State), Reason: st.Reason, Created: st.Created,
			Cgroup: s.Sandboxes.Cgroup(st), Hosts: files.Hosts, Resolv: files.ResolvConf, Steps: st.Steps,
		}
		if len(st.Attached) > 0 {
			out.Sandbox.MTU, out.Sandbox.Link = st.Attached[0].MTU, st.Attached[0].HostLink
		}
	}
	for _, c := range slices.Concat(p.Status.Containers, p.Status.Ephemeral) {
		out.Containers = append(out.Containers, s.containerDocument(p, c))
	}
	return out
}

func (s *Server) containerDocument(p agent.Pod, c podplan.ContainerStatus) containerDocument {
	out := containerDocument{
		ID: c.ID, Name: c.Name, Pod: p.Name(), Image: c.Image, State: string(c.State), Reason: c.Reason, Message: c.Message,
		Ready: c.Ready, Restarts: c.Restarts, ExitCode: c.ExitCode, Started: c.Started, Finished: c.Finished,
	}
	out.Last = lastRun(p, c)
	if h := c.Health; h != (podplan.Health{}) {
		out.Probes = &probesDocument{h.Startup, h.Liveness, h.Readiness, h.PostStart, h.Message}
	}
	i := slices.IndexFunc(p.Containers, func(st container.Status) bool { return st.ID == c.ID })
	if i < 0 {
		return out
	}
	run := p.Containers[i]
	out.ImageID, out.OOMKilled, out.LogPath, out.Steps = run.ImageID, run.Exit.OOMKilled, run.Log, run.Steps
	if c.State == podplan.Running {
		out.Pid = run.Process.PID
	}
	for _, st := range p.Sandboxes {
		if st.ID == run.Sandbox {
			out.Cgroup = run.Cgroup(s.Sandboxes.Cgroup(st))
		}
	}
	return out
}

// lastRun returns the newest run of a container that has ended, unless its end is the container's
// state.
func lastRun(p agent.Pod, c podplan.ContainerStatus) *runDocument {
	for _, run := range p.Runs(c.Name) {
		if run.Exit.At.IsZero() || run.ID == c.ID && c.State == podplan.Terminated {
			continue
		}
		out := &runDocument{ID: run.ID, Reason: run.Reason, Message: run.Message, ExitCode: run.Exit.Code, OOMKilled: run.Exit.OOMKilled, Started: run.Started, Finished: run.Exit.At}
		if out.Reason == "" {
			out.Reason = podplan.ExitReason(out.ExitCode, out.OOMKilled)
		}
		return out
	}
	return nil
}

// InspectReference returns the reference page of Inspect's documents in Markdown.
func InspectReference() string {
	var b strings.Builder
	b.WriteString("# husk inspect\n\nGenerated from `internal/api`. `husk inspect NAME` prints one JSON document, about a pod or, if NAME is the ID of a\ncontainer, about that container. Times are RFC 3339, durations nanoseconds. Empty fields may be omitted.\n")
	for _, d := range []struct {
		title string
		of    any
	}{
		{"A pod", podDocument{}}, {"Its `NetworkSettings`", pod.NetworkSettings{}}, {"One of its `Networks`", pod.Endpoint{}},
		{"Its `Sandbox`", sandboxDocument{}}, {"A container", containerDocument{}}, {"Its `LastRun`", runDocument{}}, {"Its `Probes`", probesDocument{}}, {"One of a pod's `Conditions`", conditionDocument{}},
		{"One of the `Steps`", pod.Step{}},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| field | type | meaning |\n|---|---|---|\n", d.title)
		for f := range reflect.TypeOf(d.of).Fields() {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, jsonType(f.Type), f.Tag.Get("doc"))
		}
	}
	return b.String()
}

// jsonType describes a type in the terms of JSON.
func jsonType(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Slice:
		return "list of " + jsonType(t.Elem())
	case reflect.Map:
		return "map of " + jsonType(t.Elem())
	case reflect.Struct:
		return "object"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "text"
	}
	return "number"
}
