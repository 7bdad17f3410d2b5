package workload

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"
)

// replicas decides for the workloads whose pods are alike: Deployment, ReplicaSet,
// ReplicationController and DaemonSet.
func (p *planner) replicas() {
	now := p.revision()
	r := &replicaPlan{planner: p, hash: now.Hash, want: p.desired(), rolls: p.Kind == Deployment || p.Kind == DaemonSet}
	r.surge, r.unavailable = p.bounds(r.want)
	for _, pod := range p.removeEnded(p.Pods) {
		if pod.Revision == now.Hash || !r.rolls {
			r.current = append(r.current, pod)
		} else {
			r.old = append(r.old, pod)
		}
	}
	for i := range p.Pods {
		r.leaving = r.leaving || p.Pods[i].Removing && p.Pods[i].Revision != now.Hash
	}
	before := r.measure()
	create := 0
	switch {
	case p.Rollout.Paused && len(r.old) > 0:
		// The pods stay as they are. Only a smaller number of replicas takes effect.
		r.trim(&r.old, len(r.old)+len(r.current)-r.want)
	case p.Rollout.Strategy == Recreate && r.rolls:
		create = r.recreate()
	case p.Rollout.Strategy == OnDelete:
		r.trim(&r.old, len(r.old)+len(r.current)-r.want)
		r.trim(&r.current, len(r.old)+len(r.current)-r.want)
		create = r.want - len(r.old) - len(r.current)
	default:
		create = r.roll()
	}
	for range create {
		label := labelTemplateHash
		pod := p.pod(now.Template)
		if p.Kind == DaemonSet {
			label = labelRevision
		}
		pod.GenerateName = p.Name + "-"
		if p.Kind == Deployment {
			pod.GenerateName += now.Hash + "-"
		}
		pod.Labels = with(pod.Labels, label, now.Hash)
		p.decision.Create = append(p.decision.Create, pod)
	}
	r.report(before, create)
}

// replicaPlan is a decision about pods that are alike.
type replicaPlan struct {
	*planner
	hash               string
	want               int
	surge, unavailable int
	rolls              bool // a changed template reaches the pods that exist
	// current are the pods of the present revision, old the others. Neither has those that are
	// removed by this decision.
	current, old []Pod
	leaving      bool // pods of another revision are still being removed
}

// bounds returns how many pods may exist beyond the wanted number, and how many of the wanted
// number may be unavailable during a rollout. At least one of them is positive.
func (p *planner) bounds(want int) (surge, unavailable int) {
	number := func(v intstr.IntOrString, up bool) int {
		n, err := intstr.GetScaledValueFromIntOrPercent(&v, want, up)
		if err != nil { // refused by the manifest's parser
			return 0
		}
		return n
	}
	surge, unavailable = number(p.Rollout.MaxSurge, true), number(p.Rollout.MaxUnavailable, false)
	if surge == 0 && unavailable == 0 {
		unavailable = 1
	}
	return surge, unavailable
}

// trim removes up to n pods of a list, the dispensable ones first.
func (r *replicaPlan) trim(pods *[]Pod, n int) {
	n = min(n, len(*pods))
	if n <= 0 {
		return
	}
	sorted := r.dispensable(*pods)
	r.remove(sorted[:n]...)
	*pods = sorted[n:]
}

// recreate removes all old pods, and returns how many to create once these are gone.
func (r *replicaPlan) recreate() int {
	if len(r.old) > 0 || r.leaving {
		r.trim(&r.old, len(r.old))
		r.trim(&r.current, len(r.current)-r.want)
		return 0
	}
	r.trim(&r.current, len(r.current)-r.want)
	return r.want - len(r.current)
}

// roll removes old pods as far as the available ones allow, and returns how many to create.
func (r *replicaPlan) roll() int {
	r.trim(&r.current, len(r.current)-r.want)
	if len(r.old) == 0 {
		return r.want - len(r.current)
	}
	total := len(r.current) + len(r.old)
	create := max(min(r.want-len(r.current), r.want+r.surge-total), 0)
	least := max(r.want-r.unavailable, 0)
	var up []Pod // old pods that are available
	var down []Pod
	for _, pod := range r.old {
		if r.available(&pod) {
			up = append(up, pod)
		} else {
			down = append(down, pod)
		}
	}
	available := 0
	for i := range r.current {
		if r.available(&r.current[i]) {
			available++
		}
	}
	// An old pod that isn't available may become so while the new ones don't. Pods that are starting
	// don't count towards the least number of pods.
	r.trim(&down, total-least-(len(r.current)-available))
	r.trim(&up, len(up)+available-least)
	r.old = append(up, down...)
	return create
}

// measure grows with each step of a rollout.
func (r *replicaPlan) measure() int32 {
	n := int32(len(r.current)) - int32(len(r.old))
	for i := range r.current {
		if r.current[i].Ready {
			n++
		}
		if r.available(&r.current[i]) {
			n++
		}
	}
	return n
}

// report sets the status, and notes how far the rollout is.
func (r *replicaPlan) report(measure int32, create int) {
	s := Status{Desired: int32(r.want)}
	for i := range r.Pods {
		pod := &r.Pods[i]
		if !pod.active() {
			continue
		}
		s.Current++
		if pod.Ready && !pod.Stopped {
			s.Ready++
		}
		if pod.Revision == r.hash || !r.rolls {
			s.Updated++
		}
		if r.available(pod) {
			s.Available++
		}
	}
	complete := len(r.old) == 0 && create == 0 && s.Updated == s.Desired && s.Current == s.Desired && s.Available == s.Desired
	r.progress(r.hash, measure, complete, &s, len(r.old))
	if r.Rollout.Paused && len(r.old) > 0 {
		s.Phase, s.Done = Waiting, true
		s.Message = fmt.Sprintf("paused: %d of %d pods are updated", s.Updated, s.Desired)
	}
	if r.Rollout.Strategy == OnDelete && len(r.old) > 0 && s.Available == s.Desired {
		s.Phase, s.Done = Waiting, true
		s.Message = fmt.Sprintf("%d of %d pods are updated: the others are once they are removed", s.Updated, s.Desired)
	}
	r.decision.Status = s
}

// progress notes how far a rollout is, and sets the phase and the message.
func (p *planner) progress(hash string, measure int32, complete bool, s *Status, old int) {
	at := &p.state.Progress
	if at.Revision != hash || at.Desired != s.Desired {
		*at = Progress{Revision: hash, Desired: s.Desired, Measure: measure, At: p.Now}
	}
	if measure > at.Measure {
		at.Measure, at.At, at.Failed = measure, p.Now, false
	}
	if complete {
		at.Complete, at.Failed = true, false
	}
	s.Done = complete
	switch {
	case complete:
		s.Phase, s.Message = Available, fmt.Sprintf("%d of %d pods are available", s.Available, s.Desired)
		return
	case s.Updated < s.Desired:
		s.Message = fmt.Sprintf("%d of %d pods are updated", s.Updated, s.Desired)
	case old > 0 || s.Current > s.Desired:
		s.Message = fmt.Sprintf("%d old pods are still to be removed", max(int32(old), s.Current-s.Desired))
	default:
		s.Message = fmt.Sprintf("%d of %d pods are available", s.Available, s.Desired)
		if i := slices.IndexFunc(p.Pods, func(pod Pod) bool { return pod.Unfit != "" }); i >= 0 {
			s.Message += ": " + p.Pods[i].Unfit
		}
	}
	s.Phase = Progressing
	if at.Complete {
		s.Phase = Degraded
		return
	}
	if p.Rollout.ProgressDeadlineSeconds == 0 || p.Rollout.Paused {
		return
	}
	deadline := at.At.Add(time.Duration(p.Rollout.ProgressDeadlineSeconds) * time.Second)
	if p.Now.Before(deadline) {
		p.wakeAt(deadline)
		return
	}
	if !at.Failed {
		p.event(true, "ProgressDeadlineExceeded", "no progress within %d seconds: %s", p.Rollout.ProgressDeadlineSeconds, s.Message)
	}
	at.Failed = true
	s.Phase, s.Done = Stalled, true
	s.Message = fmt.Sprintf("no progress within %d seconds: %s", p.Rollout.ProgressDeadlineSeconds, s.Message)
}
