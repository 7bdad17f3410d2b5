package podstatus

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/cluster"
)

// List returns the pods of this node with their present status. Those of the server are as the
// server has them. Those that were declared elsewhere have the names, the specs and the status of
// their mirrors, but their own UIDs, as a kubelet shows static pods.
func (r *Reporter) List() (out []corev1.Pod) {
	node := r.Node()
	mirrors := map[string]*corev1.Pod{}
	for _, pod := range r.Pods.All() {
		switch {
		case pod.Spec.NodeName != node.Name || pod.UID == "":
		case cluster.IsMirror(pod):
			mirrors[pod.Namespace+"/"+pod.Name] = pod
		default:
			out = append(out, r.present(pod))
		}
	}
	for _, p := range r.Agent.List() {
		if p.ReportedName(node.Name) == p.Manifest.Name {
			continue // it is the server's
		}
		kind, _, _ := strings.Cut(p.Source, ":")
		pod := mirrorOf(p, kind, node)
		delete(pod.Annotations, cluster.MirrorAnnotation)
		pod.OwnerReferences = nil
		pod.UID = p.Manifest.UID
		pod.CreationTimestamp = *stamp(p.Created)
		if mirror := mirrors[pod.Namespace+"/"+pod.Name]; mirror != nil {
			pod.Status = mirror.Status
		}
		pod.Status = statusOf(pod, p, r.CRI(), time.Now())
		out = append(out, *pod)
	}
	slices.SortFunc(out, func(a, b corev1.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return out
}

// present returns one of the server's pods with its present status.
func (r *Reporter) present(pod *corev1.Pod) corev1.Pod {
	out := *pod // only its status is replaced
	r.mu.Lock()
	refused := r.refused[pod.UID]
	r.mu.Unlock()
	p, err := r.Agent.Get(string(pod.UID))
	out.Status, _ = r.status(pod, p, err == nil, refused)
	return out
}
