package render

import (
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// PodView is a pod in the JSON and YAML of husk ps. Scripts rely on its fields: new ones may be
// added, existing ones stay.
type PodView struct {
	Namespace   string            `json:"namespace"`
	Name        string            `json:"name"`
	ID          string            `json:"id"`
	UID         string            `json:"uid"`
	Phase       string            `json:"phase"`
	Status      string            `json:"status"` // as in the table
	Reason      string            `json:"reason,omitempty"`
	Message     string            `json:"message,omitempty"`
	Ready       bool              `json:"ready"`
	IPs         []string          `json:"ips"`
	HostNetwork bool              `json:"hostNetwork"`
	Created     *time.Time        `json:"created,omitempty"`
	Source      string            `json:"source"`
	Owner       string            `json:"owner,omitempty"` // the workload that it belongs to
	Labels      map[string]string `json:"labels,omitempty"`
	Containers  []ContainerView   `json:"containers"`
}

// Resource returns the pod's name as kubectl has it.
func (v PodView) Resource() string { return "pod/" + PodName(v.Namespace, v.Name) }

// ContainerView is a container in a PodView.
type ContainerView struct {
	Name     string     `json:"name"`
	ID       string     `json:"id"`
	Kind     string     `json:"kind"` // app, init, sidecar
	Image    string     `json:"image"`
	State    string     `json:"state"`
	Reason   string     `json:"reason,omitempty"`
	Message  string     `json:"message,omitempty"`
	Ready    bool       `json:"ready"`
	Restarts int32      `json:"restarts"`
	PID      int32      `json:"pid,omitempty"`
	ExitCode *int32     `json:"exitCode,omitempty"` // once it has ended
	Created  *time.Time `json:"created,omitempty"`
	Started  *time.Time `json:"started,omitempty"`
	Finished *time.Time `json:"finished,omitempty"`
}

// PodViews returns the views of pods.
func PodViews(pods []*huskv1.Pod) []PodView {
	out := make([]PodView, 0, len(pods)) // [] rather than null
	for _, p := range pods {
		s := StatusOf(p)
		v := PodView{
			Namespace: p.Namespace, Name: p.Name, ID: p.Id, UID: p.Uid,
			Phase: p.Phase, Status: s.Word, Reason: p.Reason, Message: p.Message,
			Ready: s.Total > 0 && s.Ready == s.Total, IPs: orEmpty(p.Ips), HostNetwork: p.HostNetwork,
			Created: stamp(p.CreatedNs), Source: p.Source, Owner: p.Owner, Labels: p.Labels, Containers: []ContainerView{},
		}
		for _, c := range p.Containers {
			v.Containers = append(v.Containers, viewContainer(c))
		}
		out = append(out, v)
	}
	return out
}

func viewContainer(c *huskv1.Container) ContainerView {
	v := ContainerView{
		Name: c.Name, ID: c.Id, Kind: kind(c), Image: c.Image,
		State: c.State, Reason: c.Reason, Message: c.Message, Ready: c.Ready,
		Restarts: c.Restarts, PID: c.Pid,
		Created: stamp(c.CreatedNs), Started: stamp(c.StartedNs), Finished: stamp(c.FinishedNs),
	}
	if c.State == terminated {
		v.ExitCode = &c.ExitCode
	}
	return v
}

// ImageView is an image in the JSON and YAML of husk image ls.
type ImageView struct {
	ID       string     `json:"id"`
	Tags     []string   `json:"tags"`
	Digests  []string   `json:"digests"`
	Size     int64      `json:"size"` // bytes
	Created  *time.Time `json:"created,omitempty"`
	InUse    bool       `json:"inUse"`
	Platform string     `json:"platform"`
}

// ImageViews returns the views of images.
func ImageViews(images []*huskv1.Image) []ImageView {
	out := make([]ImageView, 0, len(images))
	for _, i := range images {
		out = append(out, ImageView{i.Id, orEmpty(i.Tags), orEmpty(i.Digests), i.Size, stamp(i.CreatedNs), i.InUse, i.Platform})
	}
	return out
}

// CheckView is a check in the JSON and YAML of husk doctor.
type CheckView struct {
	Name    string `json:"name"`
	Level   string `json:"level"`
	Finding string `json:"finding"`
	Remedy  string `json:"remedy,omitempty"`
}

// CheckViews returns the views of checks.
func CheckViews(checks []*huskv1.Check) []CheckView {
	out := make([]CheckView, 0, len(checks))
	for _, c := range checks {
		out = append(out, CheckView{c.Name, c.Level, c.Finding, c.Remedy})
	}
	return out
}

func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}

// stamp returns a Unix time in nanoseconds for JSON; nil if it is unknown.
func stamp(ns int64) *time.Time {
	if ns == 0 {
		return nil
	}
	t := time.Unix(0, ns).UTC()
	return &t
}
