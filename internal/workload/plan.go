package workload

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
)

// Plan decides what to do for a workload now.
func Plan(in Input) Decision {
	p := &planner{Input: in, decision: Decision{State: in.State}}
	if p.decision.State.Created.IsZero() {
		p.decision.State.Created = in.Now
	}
	p.state = &p.decision.State
	switch in.Kind {
	case StatefulSet:
		p.statefulSet()
	case Job:
		p.job()
	case CronJob:
		p.cronJob()
	default:
		p.replicas()
	}
	return p.decision
}

type planner struct {
	Input
	state    *State // decision.State
	decision Decision
}

// wakeAt makes the next decision no later than t.
func (p *planner) wakeAt(t time.Time) {
	if next := &p.decision.Next; next.IsZero() || t.Before(*next) {
		*next = t
	}
}

func (p *planner) event(warning bool, reason, format string, args ...any) {
	p.decision.Events = append(p.decision.Events, Event{warning, reason, fmt.Sprintf(format, args...)})
}

func (p *planner) remove(pods ...Pod) {
	for i := range pods {
		p.decision.Remove = append(p.decision.Remove, pods[i].UID)
	}
}

// desired returns the number of pods that should exist.
func (p *planner) desired() int {
	if p.State.Scale != nil {
		return int(*p.State.Scale)
	}
	return int(p.Replicas)
}

// available reports whether a pod has been ready for long enough, and otherwise decides again once
// it will be.
func (p *planner) available(pod *Pod) bool {
	if !pod.active() || pod.Stopped || !pod.Ready {
		return false
	}
	at := pod.ReadySince.Add(time.Duration(p.Rollout.MinReadySeconds) * time.Second)
	if p.Now.Before(at) {
		p.wakeAt(at)
		return false
	}
	return true
}

// revision returns the present template with what a restart adds to it.
func (p *planner) revision() Revision {
	template, key := p.Template, p.Revision
	if at := p.State.Restarted; !at.IsZero() {
		text := at.UTC().Format(time.RFC3339Nano)
		template, key = template.DeepCopy(), key+text
		template.Annotations = with(template.Annotations, annotationRestarted, text)
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return Revision{Hash: rand.SafeEncodeString(fmt.Sprint(h.Sum32())), Template: template}
}

// pod returns a pod of a template, without a name.
func (p *planner) pod(template *corev1.Pod, labels ...string) *corev1.Pod {
	pod := template.DeepCopy()
	pod.Namespace, pod.Name, pod.UID = p.Namespace, "", ""
	for i := 0; i < len(labels); i += 2 {
		pod.Labels = with(pod.Labels, labels[i], labels[i+1])
	}
	pod.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: groups[p.Kind], Kind: string(p.Kind), Name: p.Name, UID: p.UID, Controller: new(true),
	}}
	return pod
}

// with returns a copy of m with an entry more.
func with(m map[string]string, key, value string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// failureDelay is the least age at which a failed pod of a Deployment or the like is replaced. Pods
// that fail at once thus don't follow each other without a pause.
const failureDelay = 10 * time.Second

// removeEnded removes the pods that have ended, and returns the others that are not being removed.
// The pods that wait for their replacement are returned as well: they keep their place.
func (p *planner) removeEnded(pods []Pod) []Pod {
	var rest []Pod
	for i := range pods {
		switch pod := &pods[i]; {
		case pod.Removing:
		case !pod.Failed && !pod.Succeeded:
			rest = append(rest, *pod)
		case p.Now.Sub(pod.Created) < failureDelay && !pod.Created.After(p.Now):
			p.wakeAt(pod.Created.Add(failureDelay))
			rest = append(rest, *pod)
		default:
			p.event(true, "PodFailed", "pod %s ended and is replaced: %s", pod.Name, cmp.Or(pod.Reason, "Failed"))
			p.remove(*pod)
		}
	}
	return rest
}

// dispensable sorts pods so that those come first that are removed first: what isn't available,
// then what is newest.
func (p *planner) dispensable(pods []Pod) []Pod {
	pods = slices.Clone(pods)
	rank := func(pod *Pod) int {
		switch {
		case pod.Failed || pod.Succeeded:
			return 0
		case pod.Stopped:
			return 1
		case !pod.Ready:
			return 2
		case !p.available(pod):
			return 3
		}
		return 4
	}
	slices.SortStableFunc(pods, func(x, y Pod) int {
		return cmp.Or(cmp.Compare(rank(&x), rank(&y)), y.Created.Compare(x.Created), cmp.Compare(x.Name, y.Name))
	})
	return pods
}
