// Package admission decides which pods fit on the node. It counts the pods that run, adds up their
// CPU and memory requests, and refuses what would exceed the node's capacity.
package admission

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// Ledger holds the requests of the admitted pods. Unlike with the kubelet, a pod that doesn't fit
// has not failed: it starts once enough is free.
type Ledger struct {
	node func() criconfig.Node

	mu       sync.Mutex
	admitted map[string]requests // by UID
	// waiting are the critical pods that don't fit yet. What is freed for them isn't for others.
	waiting map[string]requests
}

type requests map[corev1.ResourceName]resource.Quantity

// counted are the resources whose requests must not exceed the node's capacity.
var counted = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods}

// OutOf begins the reasons of pods that don't fit, before the name of the resource.
const OutOf = "OutOf"

// Refusal is why a pod is not admitted or not resized: a reason of one word and a message. The
// zero value is no refusal.
type Refusal struct {
	Reason, Message string
	// Final tells that the pod asks for more than the node has.
	Final bool
}

// NewLedger returns a ledger for the node, without pods.
func NewLedger(node func() criconfig.Node) *Ledger {
	return &Ledger{node: node, admitted: map[string]requests{}, waiting: map[string]requests{}}
}

// Admit admits a pod if it fits. A pod that is already admitted keeps what it has. With force the
// pod is admitted even if it doesn't fit.
func (l *Ledger) Admit(pod *corev1.Pod, force bool) Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.admitted[string(pod.UID)]; ok {
		return Refusal{}
	}
	wanted := requestsOf(pod)
	critical := criconfig.Critical(pod)
	delete(l.waiting, string(pod.UID))
	if len(wanted) > 0 && !force {
		capacity := l.node().Allocatable
		for _, name := range counted {
			used, q, limit := l.used(name, ""), wanted[name], capacity[name]
			kept := used.DeepCopy()
			for _, r := range l.waiting {
				if !critical {
					kept.Add(r[name])
				}
			}
			if exceeds(kept, q, limit) {
				if critical {
					l.waiting[string(pod.UID)] = wanted
				}
				switch {
				case name == corev1.ResourcePods:
					return Refusal{OutOf + string(name), fmt.Sprintf("the node runs at most %s pods, see max-pods in the configuration: it starts when another pod has ended", limit.String()), false}
				case q.Cmp(limit) > 0:
					return Refusal{OutOf + string(name), fmt.Sprintf("the pod requests %s of %s, but the node has only %s: request less", q.String(), name, limit.String()), true}
				}
				return Refusal{OutOf + string(name), fmt.Sprintf("the pod requests %s of %s; other pods have %s of the node's %s: it starts when enough is free", q.String(), name, used.String(), limit.String()), false}
			}
		}
	}
	l.admitted[string(pod.UID)] = wanted
	return Refusal{}
}

// Short returns by how much the requests of a pod and the others exceed the node's capacity.
func (l *Ledger) Short(pod *corev1.Pod, others []*corev1.Pod) corev1.ResourceList {
	limits := corev1.ResourceList{}
	for _, name := range counted {
		if q := l.node().Allocatable[name]; !q.IsZero() { // or else it is unknown
			limits[name] = q
		}
	}
	return Short(limits, pod, others)
}

// Holds reports whether a pod is admitted.
func (l *Ledger) Holds(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.admitted[uid]
	return ok
}

// Resize changes the requests of an admitted pod to those that it has now. It reports whether that
// freed anything, or why the pod keeps its former requests. A request can always shrink. A pod that
// is not admitted is ignored: it is checked when it starts.
func (l *Ledger) Resize(pod *corev1.Pod) (refusal Refusal, freed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	uid := string(pod.UID)
	former, ok := l.admitted[uid]
	if !ok {
		return Refusal{}, false
	}
	wanted, capacity := requestsOf(pod), l.node().Allocatable
	for _, name := range counted {
		q, before, limit := wanted[name], former[name], capacity[name]
		used := l.used(name, uid)
		switch {
		case q.Cmp(before) <= 0:
			freed = freed || q.Cmp(before) < 0
		case exceeds(resource.Quantity{}, q, limit):
			return Refusal{corev1.PodReasonInfeasible, fmt.Sprintf("the pod requests %s of %s; the node has %s: the pod is not resized", q.String(), name, limit.String()), false}, false
		case exceeds(used, q, limit):
			return Refusal{corev1.PodReasonDeferred, fmt.Sprintf("the pod requests %s of %s; other pods have %s of the node's %s: it is resized when enough is free", q.String(), name, used.String(), limit.String()), false}, false
		}
	}
	l.admitted[uid] = wanted
	return Refusal{}, freed
}

// Restore sets the requests of an admitted pod back to those of pod, whether they fit or not.
func (l *Ledger) Restore(pod *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.admitted[string(pod.UID)]; ok {
		l.admitted[string(pod.UID)] = requestsOf(pod)
	}
}

// Release removes a pod and reports whether that freed anything.
func (l *Ledger) Release(uid string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	freed := len(l.admitted[uid])+len(l.waiting[uid]) > 0
	delete(l.admitted, uid)
	delete(l.waiting, uid)
	return freed
}

// used adds up what all pods but one request of a resource. The caller holds l.mu.
func (l *Ledger) used(name corev1.ResourceName, except string) resource.Quantity {
	sum := resource.Quantity{}
	for uid, r := range l.admitted {
		if uid != except {
			sum.Add(r[name])
		}
	}
	return sum
}

// exceeds reports whether a request doesn't fit. A limit of zero is unknown, and never exceeded.
func exceeds(used, request, limit resource.Quantity) bool {
	sum := used.DeepCopy()
	sum.Add(request)
	return !request.IsZero() && !limit.IsZero() && sum.Cmp(limit) > 0
}

var onePod = resource.MustParse("1")

func requestsOf(pod *corev1.Pod) requests {
	out := requests{corev1.ResourcePods: onePod}
	for _, name := range counted {
		if q := criconfig.Requested(pod, name); !q.IsZero() {
			out[name] = q
		}
	}
	return out
}
