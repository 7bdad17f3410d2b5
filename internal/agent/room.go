package agent

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/criconfig"
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
func (r *room) take(pod *corev1.Pod, node func() criconfig.Node, force bool) (reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.taken[string(pod.UID)]; has {
		return "", ""
	}
	asked := asks(pod)
	if len(asked) > 0 && !force {
		has := capacity(node())
		for _, name := range rationed {
			used, q, limit := r.used(name, ""), asked[name], has[name]
			if beyond(used, q, limit) {
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

// used is what others than that pod have of a resource. The caller holds r.mu.
func (r *room) used(name corev1.ResourceName, but string) resource.Quantity {
	sum := resource.Quantity{}
	for uid, has := range r.taken {
		if uid != but {
			sum.Add(has[name])
		}
	}
	return sum
}

// beyond says whether somebody asks for more than there is. Nobody knows of a
// limit that is zero.
func beyond(used, asked, limit resource.Quantity) bool {
	all := used.DeepCopy()
	all.Add(asked)
	return !asked.IsZero() && !limit.IsZero() && all.Cmp(limit) > 0
}

// refusal is why a pod doesn't get the resources that it is to have while it runs;
// nothing if it does.
type refusal struct{ reason, message string }

// resize gives a pod that has room what it asks for now, and says whether some came
// free by that, or why it stays as it is. Less than it has it always gets.
func (r *room) resize(pod *corev1.Pod, node func() criconfig.Node) (held refusal, freed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := string(pod.UID)
	had, has := r.taken[uid]
	if !has {
		return refusal{}, false // it asks for room when it starts
	}
	all := capacity(node())
	for _, name := range rationed {
		asked, before, limit := criconfig.Requested(pod, name), had[name], all[name]
		used := r.used(name, uid)
		switch {
		case asked.Cmp(before) <= 0:
			freed = freed || asked.Cmp(before) < 0
		case beyond(resource.Quantity{}, asked, limit):
			return refusal{corev1.PodReasonInfeasible, fmt.Sprintf("the pod asks for %s of %s; the node has %s: it stays as it is", asked.String(), name, limit.String())}, false
		case beyond(used, asked, limit):
			return refusal{corev1.PodReasonDeferred, fmt.Sprintf("the pod asks for %s of %s; others have %s of the node's %s: it is resized when there is room", asked.String(), name, used.String(), limit.String())}, false
		}
	}
	r.taken[uid] = asks(pod)
	return refusal{}, freed
}

// restore has a pod that has room ask for what that pod does.
func (r *room) restore(pod *corev1.Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.taken[string(pod.UID)]; has {
		r.taken[string(pod.UID)] = asks(pod)
	}
}

// asks is what a pod asks for of what pods share.
func asks(pod *corev1.Pod) map[corev1.ResourceName]resource.Quantity {
	asked := map[corev1.ResourceName]resource.Quantity{}
	for _, name := range rationed {
		if q := criconfig.Requested(pod, name); !q.IsZero() {
			asked[name] = q
		}
	}
	return asked
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
	return slices.ContainsFunc(sandboxes, func(st sandbox.Status) bool { return view.Sandbox(st) != podplan.SandboxStopped })
}

func capacity(n criconfig.Node) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(n.CPUs), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(n.Memory, resource.BinarySI),
	}
}

// ration makes a pod wait that there is no room for, and has one that runs no more
// make room. What is there of a pod has its room: also if the clients of an API
// server, who count for themselves, have asked for it. The caller holds w.mu.
func (w care) ration(d *podplan.Decision, sandboxes []sandbox.Status) {
	uid := string(w.manifest.UID)
	ended := w.spec().Want != podplan.Run || d.Status.Phase == podplan.PhaseSucceeded || d.Status.Phase == podplan.PhaseFailed
	if ended {
		if (d.Gone || d.Status.Phase != podplan.PhaseRunning && d.Status.Phase != podplan.PhasePending) && w.a.room.leave(uid) {
			w.a.background.Go(w.a.roomFreed)
		}
		return
	}
	force := occupies(sandboxes) || w.underWay.creating || strings.HasPrefix(w.rec.Source, string(source.API))
	if reason, message := w.a.room.take(w.rec.Pod, w.a.cfg.Node, force); reason != "" {
		d.Actions, d.Backoffs = nil, w.backoffs
		d.Status.Reason, d.Status.Message = reason, message
	}
}
