package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/plan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/cri"
	"github.com/huskd/husk/internal/sandbox"
)

// room is what of the node's processors and memory pods have asked for, so that
// not more are started than it has. Unlike with the kubelet, one that there is no
// room for has not failed: it starts when there is.
type room struct {
	mu    sync.Mutex
	taken map[string]map[corev1.ResourceName]resource.Quantity // by UID
}

// rationed are the resources that pods share.
var rationed = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}

// take gives a pod what it asks for, once, or says why there isn't that much. With
// force it gets it anyhow.
func (r *room) take(pod *corev1.Pod, node func() cri.Node, force bool) (reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.taken[string(pod.UID)]; has {
		return "", ""
	}
	asked := map[corev1.ResourceName]resource.Quantity{}
	for _, name := range rationed {
		if q := cri.Requested(pod, name); !q.IsZero() {
			asked[name] = q
		}
	}
	if len(asked) > 0 && !force {
		has := capacity(node())
		for _, name := range rationed {
			used := resource.Quantity{}
			for _, other := range r.taken {
				used.Add(other[name])
			}
			all := used.DeepCopy()
			q := asked[name]
			all.Add(q)
			if limit := has[name]; !q.IsZero() && !limit.IsZero() && all.Cmp(limit) > 0 {
				return "OutOf" + string(name), fmt.Sprintf("the pod asks for %s of %s; %s of the node's %s are taken: it starts when there is room", q.String(), name, used.String(), limit.String())
			}
		}
	}
	if r.taken == nil {
		r.taken = map[string]map[corev1.ResourceName]resource.Quantity{}
	}
	r.taken[string(pod.UID)] = asked
	return "", ""
}

// leave gives back what a pod has, and says whether that was anything.
func (r *room) leave(uid string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	had := len(r.taken[uid]) > 0
	delete(r.taken, uid)
	return had
}

// occupies says whether something of a pod may be there.
func occupies(sandboxes []sandbox.Status) bool {
	return slices.ContainsFunc(sandboxes, func(st sandbox.Status) bool { return view.Sandbox(st) != plan.SandboxStopped })
}

func capacity(n cri.Node) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(n.CPUs), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(n.Memory, resource.BinarySI),
	}
}

// ration makes a pod wait that there is no room for, and has one that runs no more
// make room. What is there of a pod has its room: also if the clients of an API
// server, who count for themselves, have asked for it. The caller holds w.mu.
func (w care) ration(d *plan.Decision, sandboxes []sandbox.Status) {
	uid := string(w.manifest.UID)
	ended := w.spec().Want != plan.Run || d.Status.Phase == plan.PhaseSucceeded || d.Status.Phase == plan.PhaseFailed
	if ended {
		if (d.Gone || d.Status.Phase != plan.PhaseRunning && d.Status.Phase != plan.PhasePending) && w.a.room.leave(uid) {
			w.a.background.Go(w.a.ImagesChanged) // others may wait for it
		}
		return
	}
	force := occupies(sandboxes) || w.underWay.creating || strings.HasPrefix(w.rec.Source, string(source.API))
	if reason, message := w.a.room.take(w.rec.Pod, w.a.cfg.Node, force); reason != "" {
		d.Actions, d.Backoffs = nil, w.backoffs
		d.Status.Reason, d.Status.Message = reason, message
	}
}
