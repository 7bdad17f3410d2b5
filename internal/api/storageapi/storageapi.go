// Package storageapi serves the part of huskd's own API that is about disk space: what takes it,
// and what can be removed.
package storageapi

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"

	huskv1 "github.com/huskd/husk/api/v1"
	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/objects"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/controller"
)

// Server serves the API of disk space.
type Server struct {
	huskv1.UnimplementedStorageServer
	Agent      *agent.Agent
	Workloads  *controller.Controller
	Objects    *objects.Store
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
	Volumes    volume.Volumes
	// Pinned reports whether the configuration says that an image is never removed.
	Pinned func(image.Image) bool
}

// DiskUsage returns what takes space on the node's disk.
func (s *Server) DiskUsage(ctx context.Context, _ *huskv1.DiskUsageRequest) (*huskv1.DiskUsageResponse, error) {
	pods, templates := s.Agent.List(), s.templates()
	images, err := s.imageUse(pods, templates)
	if err != nil {
		return nil, err
	}
	containers, logs := s.containerUse(ctx, pods)
	volumes, err := s.volumeUse(ctx, pods, templates)
	return &huskv1.DiskUsageResponse{Kinds: []*huskv1.DiskUse{images, containers, volumes, logs}}, err
}

// prunable reports whether Prune removes a pod: it is of husk run, and has ended or was stopped.
func prunable(p agent.Pod) bool { return p.Source == string(source.Run) && p.Finished }

// templates returns the pods of which the workloads have copies.
func (s *Server) templates() []workload.Workload {
	var out []workload.Workload
	for _, v := range s.Workloads.List() {
		out = append(out, *v.Workload)
	}
	return out
}

// imageNames returns the names of the images of a pod.
func imageNames(pod *corev1.Pod) (names []string) {
	for c := range podspec.Containers(&pod.Spec) {
		names = append(names, c.Image)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Image != nil {
			names = append(names, v.Image.Reference)
		}
	}
	return names
}

// wanted returns the IDs of the images that pods which stay, or workloads, declare, and of those
// that are pinned. Their pods may not have containers now.
func (s *Server) wanted(pods []agent.Pod, workloads []workload.Workload) map[string]bool {
	ids := map[string]bool{}
	add := func(pod *corev1.Pod) {
		for _, name := range imageNames(pod) {
			if img, err := s.Images.Get(name); err == nil {
				ids[img.ID] = true
			}
		}
	}
	for _, p := range pods {
		if !prunable(p) {
			add(p.Manifest)
		}
	}
	for _, w := range workloads {
		add(w.Template)
	}
	for _, img := range s.Images.List() {
		if s.Pinned(img) {
			ids[img.ID] = true
		}
	}
	return ids
}

func (s *Server) imageUse(pods []agent.Pod, workloads []workload.Workload) (*huskv1.DiskUse, error) {
	out, wanted := &huskv1.DiskUse{Kind: "images"}, s.wanted(pods, workloads)
	unused := func(img image.Image) bool { return !img.InUse && !wanted[img.ID] }
	for _, img := range s.Images.List() {
		item := &huskv1.DiskItem{Id: img.ID, Bytes: img.Size + img.Unpacked, Active: !unused(img)}
		if len(img.Tags) > 0 {
			item.Name = img.Tags[0]
		}
		add(out, item)
	}
	var err error
	out.Bytes, out.ReclaimableBytes, err = s.Images.DiskUsage(unused)
	return out, err
}

// add adds an item. Its bytes count if it shares none of them.
func add(to *huskv1.DiskUse, item *huskv1.DiskItem) {
	to.Items = append(to.Items, item)
	to.Bytes += item.Bytes
	if item.Active {
		to.Active++
	}
}

// containerUse returns the use of the writable layers of containers, and that of their logs.
func (s *Server) containerUse(ctx context.Context, pods []agent.Pod) (layers, logs *huskv1.DiskUse) {
	layers, logs = &huskv1.DiskUse{Kind: "containers"}, &huskv1.DiskUse{Kind: "logs"}
	removable := map[string]bool{} // sandboxes
	for _, p := range pods {
		for _, st := range p.Sandboxes {
			removable[st.ID] = prunable(p)
		}
	}
	names := map[string]string{} // of the pods of sandboxes
	for _, st := range s.Sandboxes.List() {
		names[st.ID] = st.Config.GetMetadata().GetNamespace() + "/" + st.Config.GetMetadata().GetName()
	}
	for _, st := range s.Containers.List("") {
		active := !st.Started.IsZero() && !st.Finished
		layer := &huskv1.DiskItem{Id: st.ID, Name: st.Name(), Pod: names[st.Sandbox], Bytes: s.layer(ctx, st), Active: active}
		log := &huskv1.DiskItem{Id: st.ID, Name: layer.Name, Pod: layer.Pod, Bytes: logSize(st), Active: active}
		add(layers, layer)
		if st.Log != "" {
			add(logs, log)
		}
		if removable[st.Sandbox] {
			layers.ReclaimableBytes += layer.Bytes
			logs.ReclaimableBytes += log.Bytes
		}
	}
	return layers, logs
}

func (s *Server) layer(ctx context.Context, st container.Status) int64 {
	return stats.MeasureDir(ctx, filepath.Join(s.Containers.Layer(st.ID), "upper")).Bytes
}

// logSize returns the size of a container's log with its rotated files, which have the log's path
// and an ending.
func logSize(st container.Status) (bytes int64) {
	if st.Log == "" {
		return 0
	}
	entries, _ := filepath.Glob(escape.Replace(st.Log) + "*")
	for _, path := range entries {
		bytes += stats.MeasureDir(context.Background(), path).Bytes
	}
	return bytes
}

// escape escapes what filepath.Glob would expand.
var escape = strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`)

func (s *Server) volumeUse(ctx context.Context, pods []agent.Pod, workloads []workload.Workload) (*huskv1.DiskUse, error) {
	out := &huskv1.DiskUse{Kind: "volumes"}
	claims, err := s.Volumes.Claims()
	if err != nil {
		return nil, err
	}
	for _, c := range claims {
		use := usedBy(c, pods, workloads, s.Objects.All(), prunable)
		item := &huskv1.DiskItem{Name: c.Namespace + "/" + c.Name, Pod: strings.Join(c.Pods, ","), Bytes: s.claim(c), Active: use == byPod}
		add(out, item)
		if use == byNothing {
			out.ReclaimableBytes += item.Bytes
		}
	}
	for _, p := range pods {
		for i := range p.Manifest.Spec.Volumes {
			v := &p.Manifest.Spec.Volumes[i]
			if !manifest.OnDisk(v) {
				continue
			}
			item := &huskv1.DiskItem{Name: v.Name + " (emptyDir)", Pod: p.Name(), Bytes: s.emptyDir(ctx, p, v.Name), Active: !p.Finished}
			add(out, item)
			if prunable(p) {
				out.ReclaimableBytes += item.Bytes
			}
		}
	}
	return out, nil
}

// claim returns the size of a claim's files. Those of a PersistentVolume are elsewhere and stay, so
// they don't count.
func (s *Server) claim(c volume.Claim) int64 {
	if !strings.HasPrefix(c.Path, filepath.Join(s.Volumes.Root, "claims")+"/") {
		return 0
	}
	bytes, _ := volume.Used(c.Path)
	return bytes
}

func (s *Server) emptyDir(ctx context.Context, p agent.Pod, name string) int64 {
	return stats.MeasureDir(ctx, s.Volumes.EmptyDir(string(p.Manifest.UID), name)).Bytes
}

// use is what keeps a claim.
type use int

const (
	byNothing use = iota
	// byManifest: an object of husk run, or of a file, declares it.
	byManifest
	// byPod: a pod or a workload that stays refers to it.
	byPod
)

// usedBy returns what keeps a claim. Pods that go don't. It is pure.
func usedBy(c volume.Claim, pods []agent.Pod, workloads []workload.Workload, declared manifest.Objects, goes func(agent.Pod) bool) use {
	refers := func(pod *corev1.Pod, namespace string) (found bool) {
		manifest.References(pod, func(kind, name string) {
			found = found || kind == manifest.KindClaim && name == c.Name && namespace == c.Namespace
		})
		return found
	}
	gone := map[string]bool{}
	for _, p := range pods {
		switch {
		case goes(p):
			gone[p.Name()] = true
		case refers(p.Manifest, p.Manifest.Namespace):
			return byPod
		}
	}
	for _, name := range c.Pods {
		if !gone[name] {
			return byPod
		}
	}
	for _, w := range workloads {
		if _, ok := workload.ClaimOrdinal(&w, c.Name); ok && w.Namespace == c.Namespace || refers(w.Template, w.Namespace) {
			return byPod
		}
	}
	if _, ok := declared[manifest.ObjectKey(manifest.KindClaim, c.Namespace, c.Name)]; ok {
		return byManifest
	}
	return byNothing
}

// problem returns the line about something that Prune could not remove.
func problem(what, name string, err error) string { return fmt.Sprintf("%s %s: %v", what, name, err) }
