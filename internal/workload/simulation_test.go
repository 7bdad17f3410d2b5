package workload

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// world is a node that does what Plan decides, with delays and failures.
type world struct {
	t     *testing.T
	rng   *rand.Rand
	w     *Workload
	state State
	pods  []Pod
	now   time.Time
	made  int
	// broken are the revisions whose pods never get ready; failing is the share of pods of a Job
	// that fail.
	broken  map[string]bool
	failing float64
	calm    bool // nothing fails any more
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newWorld(t *testing.T, seed uint64, w *Workload) *world {
	w.UID, w.Namespace, w.Name = "u", "default", "web"
	if w.Template == nil {
		w.Template = &corev1.Pod{}
	}
	w.Revision = "r0"
	return &world{t: t, rng: rand.New(rand.NewPCG(seed, 1)), w: w, now: start, broken: map[string]bool{}}
}

func (s *world) plan() Decision {
	return Plan(Input{Workload: s.w, State: s.state, Pods: slices.Clone(s.pods), Now: s.now})
}

// step decides, acts, and lets a random time pass.
func (s *world) step() Decision {
	d := s.plan()
	s.state = d.State
	for _, uid := range d.Remove {
		i := slices.IndexFunc(s.pods, func(p Pod) bool { return p.UID == uid })
		if i < 0 || s.pods[i].Removing {
			s.t.Fatalf("removes %s, which doesn't exist or is being removed", uid)
		}
		s.pods[i].Removing = true
	}
	for _, pod := range d.Create {
		s.made++
		name := pod.Name
		if name == "" {
			name = fmt.Sprint(pod.GenerateName, s.made)
		}
		if slices.ContainsFunc(s.pods, func(p Pod) bool { return p.Name == name }) {
			s.t.Fatalf("creates %s, which exists", name)
		}
		s.pods = append(s.pods, Pod{Name: name, UID: fmt.Sprint(s.made), Revision: RevisionOf(pod), Ordinal: OrdinalOf(pod), Created: s.now})
	}
	s.now = s.now.Add(time.Duration(s.rng.IntN(4000)) * time.Millisecond)
	for i := range s.pods {
		s.change(&s.pods[i])
	}
	s.pods = slices.DeleteFunc(s.pods, func(p Pod) bool { return p.Removing && s.rng.IntN(2) == 0 })
	return d
}

// change lets something happen to a pod.
func (s *world) change(p *Pod) {
	if p.Removing || p.Succeeded || p.Failed {
		return
	}
	chance := func(n int) bool { return s.rng.IntN(n) == 0 }
	if s.w.Kind == Job {
		if chance(3) {
			p.Failed = s.rng.Float64() < s.failing
			p.Succeeded, p.Finished = !p.Failed, s.now
		}
		return
	}
	switch {
	case !p.Ready && chance(3) && !s.broken[p.Revision]:
		p.Ready, p.ReadySince = true, s.now
	case s.calm:
	case p.Ready && chance(30):
		p.Ready = false
	case chance(60):
		p.Ready, p.Failed, p.Finished = false, true, s.now
	}
}

// settle steps until the workload has what it should, and fails the test if that takes too long.
func (s *world) settle() {
	s.calm = true
	clear(s.broken)
	for range 2000 {
		d := s.step()
		if d.Status.Done && d.Status.Phase != Stalled && len(d.Create)+len(d.Remove) == 0 {
			return
		}
	}
	s.t.Fatalf("doesn't converge: %+v\npods %+v", s.plan().Status, s.pods)
}

func (s *world) counts(d Decision) (active, available, after int) {
	p := planner{Input: Input{Workload: s.w, Now: s.now}}
	for i := range s.pods {
		pod := &s.pods[i]
		if pod.active() {
			active++
		}
		if p.available(pod) {
			available++
			if !slices.Contains(d.Remove, pod.UID) {
				after++
			}
		}
	}
	return active, available, after
}

func TestRollingSimulation(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 2))
		w := &Workload{Ref: Ref{Kind: []Kind{Deployment, ReplicaSet, DaemonSet}[rng.IntN(3)]}, Replicas: rng.Int32N(8)}
		if w.Kind == DaemonSet {
			w.Replicas = 1
		}
		w.Rollout = Rollout{
			Strategy: RollingUpdate, MaxSurge: intstr.FromInt32(rng.Int32N(3)), MaxUnavailable: intstr.FromString(fmt.Sprintf("%d%%", rng.IntN(60))),
			MinReadySeconds: rng.Int32N(4), ProgressDeadlineSeconds: 60,
		}
		s := newWorld(t, seed, w)
		for n := range 400 {
			if rng.IntN(40) == 0 {
				w.Revision = fmt.Sprint("r", n)
				s.broken[s.plan().next()] = rng.IntN(3) == 0
			}
			if rng.IntN(60) == 0 && w.Kind != DaemonSet {
				w.Replicas = rng.Int32N(8)
			}
			d := s.plan()
			surge, unavailable := (&planner{Input: Input{Workload: w}}).bounds(int(w.Replicas))
			active, available, after := s.counts(d)
			removed := 0
			for _, pod := range s.pods {
				if pod.active() && slices.Contains(d.Remove, pod.UID) {
					removed++
				}
			}
			if most := int(w.Replicas) + surge; len(d.Create) > 0 && active-removed+len(d.Create) > max(most, active) {
				t.Fatalf("seed %d: %d pods beside %d are more than %d", seed, len(d.Create), active, most)
			}
			if after < available && after < int(w.Replicas)-unavailable {
				t.Fatalf("seed %d: %d of %d are available after a removal, at least %d are needed", seed, after, available, int(w.Replicas)-unavailable)
			}
			s.step()
		}
		s.settle()
		if p := s.plan().Status; p.Updated != w.Replicas || p.Available != w.Replicas {
			t.Fatalf("seed %d: settled with %+v", seed, p)
		}
	}
}

// next returns the hash of the revision that a decision is about.
func (d Decision) next() string { return d.State.Progress.Revision }

func TestRecreateSimulation(t *testing.T) {
	for seed := range uint64(100) {
		w := &Workload{Ref: Ref{Kind: Deployment}, Replicas: 3, Rollout: Rollout{Strategy: Recreate}}
		s := newWorld(t, seed, w)
		for n := range 200 {
			if s.rng.IntN(30) == 0 {
				w.Revision = fmt.Sprint("r", n)
			}
			d := s.step()
			for i := range s.pods {
				if len(d.Create) > 0 && s.pods[i].Revision != RevisionOf(d.Create[0]) {
					t.Fatalf("seed %d: two revisions at once", seed)
				}
			}
		}
		s.settle()
	}
}

func TestStatefulSetSimulation(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		w := &Workload{Ref: Ref{Kind: StatefulSet}, Replicas: rng.Int32N(6)}
		w.Rollout = Rollout{Strategy: RollingUpdate, Parallel: rng.IntN(2) == 0, MinReadySeconds: rng.Int32N(3), Start: rng.Int32N(2)}
		s := newWorld(t, seed, w)
		for n := range 300 {
			if rng.IntN(40) == 0 {
				w.Revision = fmt.Sprint("r", n)
				s.broken[s.plan().next()] = rng.IntN(3) == 0
			}
			if rng.IntN(60) == 0 {
				w.Replicas = rng.Int32N(6)
			}
			d := s.plan()
			if !w.Rollout.Parallel && len(d.Create) > 1 {
				t.Fatalf("seed %d: creates %d pods at once", seed, len(d.Create))
			}
			_, available, after := s.counts(d)
			if lost := available - after; lost > 1 && !w.Rollout.Parallel {
				within := 0
				for _, p := range s.pods {
					if slices.Contains(d.Remove, p.UID) && p.Ready && int(p.Ordinal) < int(w.Rollout.Start+w.Replicas) {
						within++
					}
				}
				if within > 1 {
					t.Fatalf("seed %d: removes %d available pods at once", seed, lost)
				}
			}
			s.step()
		}
		s.settle()
		var ordinals []int32
		for _, p := range s.pods {
			ordinals = append(ordinals, p.Ordinal)
		}
		slices.Sort(ordinals)
		for i, o := range ordinals {
			if o != w.Rollout.Start+int32(i) {
				t.Fatalf("seed %d: ordinals %v", seed, ordinals)
			}
		}
	}
}

func TestJobSimulation(t *testing.T) {
	indexed := batchv1.IndexedCompletion
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 4))
		spec := &batchv1.JobSpec{Parallelism: new(1 + rng.Int32N(5)), BackoffLimit: new(rng.Int32N(10))}
		if rng.IntN(4) > 0 {
			spec.Completions = new(1 + rng.Int32N(10))
			if rng.IntN(2) == 0 {
				spec.CompletionMode = &indexed
				if rng.IntN(2) == 0 {
					spec.BackoffLimitPerIndex, spec.BackoffLimit = new(rng.Int32N(3)), nil
				}
			}
		}
		w := &Workload{Ref: Ref{Kind: Job}, Job: spec}
		s := newWorld(t, seed, w)
		s.failing = []float64{0, 0.2, 0.6, 1}[rng.IntN(4)]
		ended := false
		for range 5000 {
			d := s.step()
			active := 0
			for _, p := range s.pods {
				if p.active() {
					active++
				}
			}
			if active > int(*spec.Parallelism) {
				t.Fatalf("seed %d: %d pods are active, at most %d may be", seed, active, *spec.Parallelism)
			}
			if ended = d.Status.Done && active == 0; ended {
				break
			}
			if next := s.plan().Next; active == 0 && next.After(s.now) {
				s.now = next
			}
		}
		st := s.state.Job
		switch {
		case !ended:
			t.Fatalf("seed %d: doesn't end: %+v", seed, s.plan().Status)
		case !st.Failed && spec.Completions != nil && st.Succeeded < *spec.Completions:
			t.Fatalf("seed %d: completed with %d of %d", seed, st.Succeeded, *spec.Completions)
		case s.failing == 0 && st.Failed, s.failing == 1 && !st.Failed:
			t.Fatalf("seed %d: failed is %v with a share of failures of %v", seed, st.Failed, s.failing)
		case st.Failed && spec.BackoffLimit != nil && st.Failures > *spec.BackoffLimit+*spec.Parallelism:
			t.Fatalf("seed %d: %d failures with a limit of %d", seed, st.Failures, *spec.BackoffLimit)
		}
	}
}
