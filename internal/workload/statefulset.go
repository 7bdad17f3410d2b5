package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// statefulSet decides for a StatefulSet: its pods have ordinals, and names that stay.
func (p *planner) statefulSet() {
	now := p.revision()
	s := &setPlan{planner: p, now: now, want: p.desired(), byOrdinal: map[int]*Pod{}}
	s.noteRevision()
	present := map[string]bool{}
	for _, pod := range p.removeEnded(p.Pods) {
		present[pod.UID] = true
	}
	measure := int32(0)
	for i := range p.Pods {
		pod := &p.Pods[i]
		if !present[pod.UID] && !pod.Removing {
			pod.Removing = true // by this decision
		}
		s.byOrdinal[int(pod.Ordinal)] = pod
		if pod.Revision == now.Hash && !pod.Removing {
			measure++
			if pod.Ready {
				measure++
			}
			if s.available(pod) {
				measure++
			}
		}
	}
	s.scale()
	s.update()
	s.report(measure)
}

// setPlan is a decision about a StatefulSet.
type setPlan struct {
	*planner
	now       Revision
	want      int
	byOrdinal map[int]*Pod
}

// noteRevision keeps the template that the pods had before the present one.
func (s *setPlan) noteRevision() {
	latest := s.state.Latest
	if latest != nil && latest.Hash != s.now.Hash && s.state.Stable == nil {
		s.state.Stable = latest
	}
	if latest == nil || latest.Hash != s.now.Hash {
		s.state.Latest = &s.now
	}
	if s.state.Stable != nil && s.state.Stable.Hash == s.now.Hash {
		s.state.Stable = nil // the change was taken back
	}
}

// template returns the revision of which the pod with that ordinal is created.
func (s *setPlan) template(ordinal int) Revision {
	if s.state.Stable != nil && s.Rollout.Strategy == RollingUpdate && ordinal < s.Rollout.start()+int(s.Rollout.Partition) && s.Rollout.Partition > 0 {
		return *s.state.Stable
	}
	return s.now
}

func (r Rollout) start() int { return int(r.Start) }

func (s *setPlan) has(ordinal int) bool {
	return ordinal >= s.Rollout.start() && ordinal < s.Rollout.start()+s.want
}

// scale creates the pods that are missing and removes those beyond the number of replicas. In
// order, a pod is created once those before it are available, and removed once those after it are
// gone.
func (s *setPlan) scale() {
	blocked := false
	for ordinal := s.Rollout.start(); ordinal < s.Rollout.start()+s.want; ordinal++ {
		pod := s.byOrdinal[ordinal]
		if pod == nil && !blocked {
			s.create(ordinal)
		}
		if !s.Rollout.Parallel && (pod == nil || !s.available(pod)) {
			blocked = true
		}
	}
	var surplus []*Pod
	for ordinal, pod := range s.byOrdinal {
		if !s.has(ordinal) {
			surplus = append(surplus, pod)
		}
	}
	slices.SortFunc(surplus, func(x, y *Pod) int { return cmp.Compare(y.Ordinal, x.Ordinal) })
	for _, pod := range surplus {
		if !pod.Removing {
			s.remove(*pod)
			pod.Removing = true
		}
		if !s.Rollout.Parallel {
			return
		}
	}
}

func (s *setPlan) create(ordinal int) {
	r := s.template(ordinal)
	name := s.Name + "-" + strconv.Itoa(ordinal)
	pod := s.pod(r.Template, labelRevision, s.Name+"-"+r.Hash, labelSetPodName, name, labelPodIndex, strconv.Itoa(ordinal))
	pod.Name = name
	setHostname(pod, name, s.Rollout.Service)
	setClaims(s.Workload, pod, ordinal)
	s.decision.Create = append(s.decision.Create, pod)
}

func setHostname(pod *corev1.Pod, name, subdomain string) {
	pod.Spec.Hostname = name
	if subdomain != "" {
		pod.Spec.Subdomain = subdomain
	}
}

// update removes pods of an old revision, the last ordinal first, as far as enough others are
// available. Pods that are not available are removed first: they keep no other from being replaced.
func (s *setPlan) update() {
	if s.Rollout.Strategy == OnDelete {
		return
	}
	allowed := 1
	if most := s.Rollout.MaxUnavailable; most != (intstr.IntOrString{}) {
		if n, err := intstr.GetScaledValueFromIntOrPercent(&most, s.want, true); err == nil {
			allowed = max(n, 1)
		}
	}
	down := 0
	var outdated []*Pod
	for ordinal := s.Rollout.start() + s.want - 1; ordinal >= s.Rollout.start(); ordinal-- {
		pod := s.byOrdinal[ordinal]
		old := pod != nil && !pod.Removing && pod.Revision != s.template(ordinal).Hash
		switch {
		case pod != nil && s.available(pod):
			if old {
				outdated = append(outdated, pod)
			}
			continue
		case old: // it may keep those after it from being created
			s.remove(*pod)
			pod.Removing = true
		}
		down++
	}
	for _, pod := range outdated {
		if down >= allowed {
			return
		}
		s.remove(*pod)
		pod.Removing = true
		down++
	}
}

func (s *setPlan) report(measure int32) {
	out := Status{Desired: int32(s.want)}
	old, lower := 0, 0
	for ordinal, pod := range s.byOrdinal {
		if pod.Removing || !pod.active() {
			continue
		}
		out.Current++
		if pod.Ready && !pod.Stopped {
			out.Ready++
		}
		if s.available(pod) {
			out.Available++
		}
		switch {
		case pod.Revision == s.now.Hash:
			out.Updated++
		case pod.Revision == s.template(ordinal).Hash:
			lower++
		default:
			old++
		}
	}
	complete := old == 0 && len(s.decision.Create) == 0 && len(s.decision.Remove) == 0 &&
		out.Current == out.Desired && out.Available == out.Desired
	updated := out.Updated
	out.Updated += int32(lower)
	s.progress(s.now.Hash, measure, complete, &out, old)
	out.Updated = updated
	if complete && lower > 0 {
		out.Message += fmt.Sprintf(", %d of them below the partition as they were before", lower)
	}
	if complete && lower == 0 {
		s.state.Stable = nil
	}
	if s.Rollout.Strategy == OnDelete && old > 0 && out.Available == out.Desired {
		out.Phase, out.Done = Waiting, true
		out.Message = fmt.Sprintf("%d of %d pods are updated: the others are once they are removed", out.Updated, out.Desired)
	}
	s.decision.Status = out
}
