package render

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// described holds the fields of Inspect's answer that a description uses.
type described struct {
	Name, Uid, Source, Phase, Reason, Message string
	HostNetwork                               bool
	IPs, WaitsFor                             []string
	Created                                   time.Time
	Conditions                                []struct {
		Type string
		Met  bool
	}
	NetworkSettings struct{ SandboxKey string }
	Sandbox         struct {
		Id, State, HostLink, Cgroup string
		MTU                         int
		Attempt                     int
	}
	Containers []describedContainer
	Manifest   corev1.Pod
}

type describedContainer struct {
	Name, Id, Image, State, Reason, Message, LogPath string
	Ready                                            bool
	OOMKilled                                        bool
	RestartCount, ExitCode, Pid                      int
	StartedAt, FinishedAt                            time.Time
	LastRun                                          *struct {
		Reason, Message       string
		OOMKilled             bool
		ExitCode              int
		StartedAt, FinishedAt time.Time
	}
	Probes struct{ Startup, Liveness, Readiness, Message string }
}

// Description returns the text of husk describe for a document of Inspect and the events of the
// pod.
func Description(document []byte, events []*huskv1.Event, now time.Time) (string, error) {
	var p described
	if err := json.Unmarshal(document, &p); err != nil {
		return "", err
	}
	var b strings.Builder
	p.head(&b, now)
	for _, c := range p.Containers {
		p.container(&b, c, now)
	}
	p.volumes(&b)
	b.WriteString("Events:\n")
	if len(events) == 0 {
		b.WriteString("  none\n")
	}
	var table strings.Builder
	_ = EventTable(events, false, now).Write(&table, false) // a Builder doesn't fail
	b.WriteString(indent(table.String()))
	return b.String(), nil
}

func indent(text string) string {
	if text == "" {
		return ""
	}
	return "  " + strings.ReplaceAll(strings.TrimSuffix(text, "\n"), "\n", "\n  ") + "\n"
}

// pairs writes the names and values of list, except for empty values.
func pairs(b *strings.Builder, margin string, list ...string) {
	for i := 0; i+1 < len(list); i += 2 {
		if list[i+1] != "" {
			fmt.Fprintf(b, "%s%-*s %s\n", margin, 16-len(margin), list[i]+":", OneLine(list[i+1]))
		}
	}
}

func (p *described) head(b *strings.Builder, now time.Time) {
	var conditions []string
	for _, c := range p.Conditions {
		conditions = append(conditions, c.Type+"="+yesNo(c.Met))
	}
	network := "not attached"
	if p.HostNetwork {
		network = "the node's"
	} else if p.NetworkSettings.SandboxKey != "" {
		parts := slices.Clone(p.IPs) // a pod that has ended has none
		if p.Sandbox.HostLink != "" {
			parts = append(parts, fmt.Sprintf("mtu %d", p.Sandbox.MTU), "on the node "+p.Sandbox.HostLink)
		}
		network = strings.Join(append(parts, "namespace "+p.NetworkSettings.SandboxKey), ", ")
	}
	pairs(b, "", "Name", p.Name, "UID", p.Uid, "Source", p.Source, "Age", Age(now.Sub(p.Created)),
		"Status", strings.TrimSpace(p.Phase+" "+p.Reason), "Message", p.Message, "Waits for", strings.Join(p.WaitsFor, "; "), "Conditions", strings.Join(conditions, ", "),
		"IPs", strings.Join(p.IPs, ", "), "Network", network, "Sandbox", strings.TrimSpace(p.Sandbox.Id+" "+p.Sandbox.State), "Cgroup", p.Sandbox.Cgroup)
}

func (p *described) container(b *strings.Builder, c describedContainer, now time.Time) {
	fmt.Fprintf(b, "Container %s:\n", Clean(c.Name))
	state := c.State
	if c.Reason != "" {
		state += " " + c.Reason
	}
	switch {
	case c.State == "Running":
		state += fmt.Sprintf(" for %s, process %d", Age(now.Sub(c.StartedAt)), c.Pid)
	case c.State == "Terminated":
		state += ended(now, c.StartedAt, c.FinishedAt, c.ExitCode, c.OOMKilled)
	}
	last, lastMessage := "", ""
	if run := c.LastRun; run != nil {
		last, lastMessage = "Terminated "+run.Reason+ended(now, run.StartedAt, run.FinishedAt, run.ExitCode, run.OOMKilled), run.Message
	}
	pairs(b, "  ", "Image", c.Image, "ID", c.Id, "State", state, "Message", c.Message, "Last state", last, "Last message", lastMessage, "Ready", yesNo(c.Ready), "Restarts", fmt.Sprint(c.RestartCount), "Log", c.LogPath)
	spec := p.spec(c.Name)
	if spec == nil {
		return
	}
	pairs(b, "  ", "Startup", probeLine(spec.StartupProbe, c.Probes.Startup), "Liveness", probeLine(spec.LivenessProbe, c.Probes.Liveness),
		"Readiness", probeLine(spec.ReadinessProbe, c.Probes.Readiness), "Last failure", c.Probes.Message)
	for _, m := range spec.VolumeMounts {
		text := m.MountPath + " from " + m.Name
		if part := m.SubPath + m.SubPathExpr; part != "" {
			text += "/" + part
		}
		if m.ReadOnly {
			text += ", read-only"
		}
		pairs(b, "  ", "Mount", text)
	}
}

// ended describes the end of a run.
func ended(now, started, finished time.Time, code int, oom bool) string {
	text := fmt.Sprintf(" %s ago, exit code %d", Age(now.Sub(finished)), code)
	if !started.IsZero() {
		text += ", after " + Elapsed(finished.Sub(started))
	}
	if oom {
		text += ": the kernel killed it because of its memory limit"
	}
	return text
}

func (p *described) spec(name string) *corev1.Container {
	for c := range podspec.Containers(&p.Manifest.Spec) {
		if c.Name == name {
			return c
		}
	}
	return nil // an ephemeral container, which has no probes
}

// probeLine describes a probe and its verdict in one line.
func probeLine(p *corev1.Probe, verdict string) string {
	if p == nil {
		return ""
	}
	if verdict == "" {
		verdict = "unknown"
	}
	what := ""
	switch {
	case p.Exec != nil:
		what = "exec " + strings.Join(p.Exec.Command, " ")
	case p.HTTPGet != nil:
		what = fmt.Sprintf("%s %s:%s%s", strings.ToLower(string(p.HTTPGet.Scheme)), p.HTTPGet.Host, p.HTTPGet.Port.String(), p.HTTPGet.Path)
	case p.TCPSocket != nil:
		what = fmt.Sprintf("tcp %s:%s", p.TCPSocket.Host, p.TCPSocket.Port.String())
	case p.GRPC != nil:
		what = fmt.Sprintf("grpc :%d", p.GRPC.Port)
	}
	return fmt.Sprintf("%s; %s every %ds after %ds, timeout %ds, %d successes, %d failures", verdict, what, p.PeriodSeconds, p.InitialDelaySeconds, p.TimeoutSeconds, p.SuccessThreshold, p.FailureThreshold)
}

func (p *described) volumes(b *strings.Builder) {
	for _, v := range p.Manifest.Spec.Volumes {
		text := ""
		switch {
		case v.HostPath != nil:
			text = "the node's " + v.HostPath.Path
		case v.ConfigMap != nil:
			text = "config map " + v.ConfigMap.Name
		case v.Secret != nil:
			text = "secret " + v.Secret.SecretName
		case v.DownwardAPI != nil:
			text = "fields of the pod"
		case v.Projected != nil:
			text = "config maps, secrets and fields of the pod"
		case v.PersistentVolumeClaim != nil:
			text = "claim " + v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			text = "a claim of its own"
		case v.Image != nil:
			text = "image " + v.Image.Reference
		case v.EmptyDir != nil && v.EmptyDir.Medium != "":
			text = "an empty directory in " + strings.ToLower(string(v.EmptyDir.Medium))
		case v.EmptyDir != nil:
			text = "an empty directory"
		}
		fmt.Fprintf(b, "Volume %s: %s\n", Clean(v.Name), Clean(text))
	}
}
