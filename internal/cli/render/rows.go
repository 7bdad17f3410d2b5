package render

import (
	"slices"
	"strings"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

// PodRow is a pod for the templates of husk ps --format. Fields that docker or podman have are
// named as there.
type PodRow struct {
	ID, Name, Names, Namespace  string // Names has the namespace, too, unless it is default
	Image, Status, State, Ready string
	Restarts                    int32
	IP, IPs                     string
	CreatedAt, RunningFor       string
	Labels, Source, Owner       string
}

// PodRows returns the rows of pods.
func PodRows(pods []*huskv1.Pod, now time.Time) []PodRow {
	out := make([]PodRow, 0, len(pods))
	for _, p := range pods {
		s := StatusOf(p)
		r := PodRow{
			ID: ShortID(p.Id), Name: p.Name, Names: PodName(p.Namespace, p.Name), Namespace: p.Namespace,
			Status: s.Word, State: strings.ToLower(p.Phase), Ready: s.ReadyText(), IPs: strings.Join(p.Ips, ","),
			RunningFor: AgeAt(now, p.CreatedNs), Source: p.Source, Owner: p.Owner,
		}
		if len(p.Ips) > 0 {
			r.IP = p.Ips[0]
		}
		if p.CreatedNs != 0 {
			r.CreatedAt = time.Unix(0, p.CreatedNs).UTC().Format(time.RFC3339)
		}
		var images, labels []string
		for _, c := range p.Containers {
			r.Restarts += c.Restarts
			if !c.Init {
				images = append(images, c.Image)
			}
		}
		for k, v := range p.Labels {
			labels = append(labels, k+"="+v)
		}
		slices.Sort(labels)
		r.Image, r.Labels = strings.Join(images, ","), strings.Join(labels, ",")
		out = append(out, r)
	}
	return out
}

// ImageRow is a name of an image for the templates of husk image ls --format, with the fields that
// docker and podman have.
type ImageRow struct {
	ID, Repository, Tag, Digest   string
	Size, CreatedAt, CreatedSince string
	Platform                      string
}

// ImageRows returns a row for each name of the images.
func ImageRows(images []*huskv1.Image, now time.Time) []ImageRow {
	const none = "<none>"
	out := make([]ImageRow, 0, len(images))
	for _, i := range images {
		r := ImageRow{
			ID: ShortID(i.Id), Repository: none, Tag: none, Digest: none, Size: Size(i.Size), CreatedSince: AgeAt(now, i.CreatedNs), Platform: i.Platform,
		}
		if i.CreatedNs != 0 {
			r.CreatedAt = time.Unix(0, i.CreatedNs).UTC().Format(time.RFC3339)
		}
		if len(i.Digests) > 0 {
			repository, digest, _ := strings.Cut(i.Digests[0], "@")
			r.Repository, r.Digest = repository, digest
		}
		if len(i.Tags) == 0 {
			out = append(out, r)
		}
		for _, tag := range i.Tags {
			at := strings.LastIndexByte(tag, ':')
			r.Repository, r.Tag = tag[:max(at, 0)], tag[at+1:]
			out = append(out, r)
		}
	}
	return out
}

// EventView is an event in the JSON and YAML of husk events.
type EventView struct {
	Time      time.Time `json:"time"` // of the last one
	Count     int32     `json:"count"`
	Type      string    `json:"type"` // Normal or Warning
	Reason    string    `json:"reason"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name,omitempty"` // of the pod, or KIND/NAME; empty for the node
	Container string    `json:"container,omitempty"`
	Message   string    `json:"message"`
}

// EventViews returns the views of events.
func EventViews(events []*huskv1.Event) []EventView {
	out := make([]EventView, 0, len(events))
	for _, e := range events {
		out = append(out, EventView{time.Unix(0, e.LastNs).UTC(), e.Count, kindOf(e).Text, e.Reason, e.Namespace, e.Name, e.Container, e.Message})
	}
	return out
}
