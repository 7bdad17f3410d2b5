package workload

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

func TestParseRef(t *testing.T) {
	for text, want := range map[string]string{
		"deployment/web": "deployment/default/web", "deploy/shop/web": "deployment/shop/web", "CronJob/x": "cronjob/default/x",
		"sts/db": "statefulset/default/db", "default/web": "", "web": "", "job/": "",
	} {
		got := ""
		if ref, ok := ParseRef(text, "default"); ok {
			got = ref.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

func TestNames(t *testing.T) {
	first := func(w *Workload) *corev1.Pod {
		s := newWorld(t, 1, w)
		return s.plan().Create[0]
	}
	p := first(&Workload{Ref: Ref{Kind: Deployment}, Replicas: 1})
	if hash := p.Labels["pod-template-hash"]; p.GenerateName != "web-"+hash+"-" || hash == "" {
		t.Errorf("a pod of a deployment is %q with labels %v", p.GenerateName, p.Labels)
	}
	if ref, uid, ok := OwnerOf(p); !ok || uid != "u" || ref.String() != "deployment/default/web" {
		t.Errorf("its owner is %v %v %v", ref, uid, ok)
	}
	p = first(&Workload{Ref: Ref{Kind: StatefulSet}, Replicas: 1, Rollout: Rollout{Service: "db"}})
	if p.Name != "web-0" || p.Spec.Hostname != "web-0" || p.Spec.Subdomain != "db" || OrdinalOf(p) != 0 {
		t.Errorf("a pod of a stateful set is %q: %+v", p.Name, p.Spec)
	}
	indexed := batchv1.IndexedCompletion
	p = first(&Workload{Ref: Ref{Kind: Job}, Job: &batchv1.JobSpec{Completions: new(int32(2)), CompletionMode: &indexed}})
	if p.GenerateName != "web-0-" || p.Annotations[AnnotationIndex] != "0" || p.Labels["job-name"] != "web" {
		t.Errorf("a pod of a job is %q: %v", p.GenerateName, p.Labels)
	}
}

func TestScaleAndRestart(t *testing.T) {
	s := newWorld(t, 1, &Workload{Ref: Ref{Kind: Deployment}, Replicas: 1})
	s.settle()
	before := s.pods[0].Revision
	s.state.Scale = new(int32(3))
	s.settle()
	if len(s.pods) != 3 {
		t.Errorf("%d pods after the scale", len(s.pods))
	}
	s.state.Restarted = s.now
	s.settle()
	for _, p := range s.pods {
		if p.Revision == before {
			t.Errorf("pod %s wasn't replaced", p.Name)
		}
	}
}

func TestPartition(t *testing.T) {
	w := &Workload{Ref: Ref{Kind: StatefulSet}, Replicas: 3, Rollout: Rollout{Strategy: RollingUpdate}}
	s := newWorld(t, 1, w)
	s.settle()
	old := s.pods[0].Revision
	w.Revision, w.Rollout.Partition = "r1", 2
	s.settle()
	s.pods = s.pods[:0] // all are lost: those below the partition come back as they were
	s.settle()
	for _, p := range s.pods {
		if (p.Revision == old) != (p.Ordinal < 2) {
			t.Errorf("pod %s has revision %s, the old one is %s", p.Name, p.Revision, old)
		}
	}
	w.Rollout.Partition = 0
	s.settle()
	for _, p := range s.pods {
		if p.Revision == old {
			t.Errorf("pod %s has the old revision", p.Name)
		}
	}
	if s.state.Stable != nil {
		t.Error("the old template is kept")
	}
}

func TestProgressDeadline(t *testing.T) {
	s := newWorld(t, 1, &Workload{Ref: Ref{Kind: Deployment}, Replicas: 2, Rollout: Rollout{Strategy: RollingUpdate, ProgressDeadlineSeconds: 5}})
	d := s.plan()
	s.broken[d.next()], s.calm = true, true
	s.step()
	for range 20 {
		d = s.step()
	}
	if d.Status.Phase != Stalled || !d.Status.Done || !strings.Contains(d.Status.Message, "no progress within 5 seconds") {
		t.Errorf("got %+v", d.Status)
	}
}

func TestOnDelete(t *testing.T) {
	for _, kind := range []Kind{DaemonSet, StatefulSet} {
		w := &Workload{Ref: Ref{Kind: kind}, Replicas: 1, Rollout: Rollout{Strategy: OnDelete}}
		s := newWorld(t, 1, w)
		s.settle()
		old := s.pods[0].Revision
		w.Revision = "r1"
		s.settle()
		if s.pods[0].Revision != old || s.plan().Status.Phase != Waiting {
			t.Errorf("%s: the pod was replaced", kind)
		}
		s.pods = nil
		s.settle()
		if s.pods[0].Revision == old {
			t.Errorf("%s: the pod has the old revision", kind)
		}
	}
}

func TestJobEnds(t *testing.T) {
	failed := func(code int32) Pod {
		return Pod{Name: "p", UID: "1", Failed: true, Exits: map[string]int32{"c": code}}
	}
	policy := &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
		{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
		{Action: batchv1.PodFailurePolicyActionIgnore, OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}}},
	}}
	for name, c := range map[string]struct {
		spec   batchv1.JobSpec
		pod    Pod
		after  time.Duration
		phase  Phase
		reason string
	}{
		"FailJob":   {batchv1.JobSpec{Completions: new(int32(1)), PodFailurePolicy: policy}, failed(42), 0, Failed, reasonFailurePolicy},
		"Count":     {batchv1.JobSpec{Completions: new(int32(1)), PodFailurePolicy: policy}, failed(1), 0, Running, ""},
		"Ignore":    {batchv1.JobSpec{Completions: new(int32(1)), BackoffLimit: new(int32(0)), PodFailurePolicy: policy}, Pod{UID: "1", Failed: true, Disrupted: true}, 0, Running, ""},
		"limit":     {batchv1.JobSpec{Completions: new(int32(1)), BackoffLimit: new(int32(0))}, failed(1), 0, Failed, reasonBackoffLimit},
		"deadline":  {batchv1.JobSpec{Completions: new(int32(1)), ActiveDeadlineSeconds: new(int64(5))}, Pod{UID: "1"}, 6 * time.Second, Failed, reasonDeadline},
		"suspended": {batchv1.JobSpec{Completions: new(int32(1)), Suspend: new(true)}, Pod{UID: "1"}, 0, Suspended, ""},
		"complete":  {batchv1.JobSpec{}, Pod{UID: "1", Succeeded: true}, 0, Complete, reasonCompleted},
	} {
		s := newWorld(t, 1, &Workload{Ref: Ref{Kind: Job}, Job: &c.spec})
		s.state = s.plan().State
		s.pods = []Pod{c.pod}
		s.now = s.now.Add(c.after)
		d := s.plan()
		if d.Status.Phase != c.phase || d.State.Job.Reason != c.reason {
			t.Errorf("%s: %+v, reason %q", name, d.Status, d.State.Job.Reason)
		}
		if ends := c.phase == Failed || c.phase == Suspended; ends && c.pod.active() && len(d.Remove) != 1 {
			t.Errorf("%s: the pod isn't removed", name)
		}
	}
}

func TestJobBacksOffAndExpires(t *testing.T) {
	s := newWorld(t, 1, &Workload{Ref: Ref{Kind: Job}, Job: &batchv1.JobSpec{Completions: new(int32(1)), TTLSecondsAfterFinished: new(int32(9))}})
	s.pods = []Pod{{UID: "1", Failed: true}}
	d := s.plan()
	if len(d.Create) > 0 || !d.Next.Equal(start.Add(10*time.Second)) {
		t.Fatalf("a failed pod is replaced at once, or never: %+v", d)
	}
	s.state, s.now = d.State, d.Next
	if d = s.plan(); len(d.Create) != 1 {
		t.Fatalf("a failed pod isn't replaced: %+v", d)
	}
	s.pods = append(s.pods, Pod{UID: "2", Succeeded: true})
	d = s.plan()
	s.state, s.now = d.State, d.Next
	if d = s.plan(); d.Status.Phase != Complete || !d.Expired {
		t.Fatalf("the job doesn't expire: %+v", d)
	}
}

func TestSchedule(t *testing.T) {
	for _, c := range []struct{ schedule, zone, problem string }{
		{"*/5 * * * *", "", ""}, {"@daily", "Europe/Berlin", ""}, {"0 0 * * *", "Mars/Phobos", "not a time zone"},
		{"61 * * * *", "", "not a schedule"}, {"", "", "not a schedule"}, {"TZ=UTC * * * * *", "", "set spec.timeZone"},
	} {
		_, err := ParseSchedule(c.schedule, c.zone)
		if (err == nil) != (c.problem == "") || err != nil && !strings.Contains(err.Error(), c.problem) {
			t.Errorf("%q in %q: %v", c.schedule, c.zone, err)
		}
	}
	berlin, err := ParseSchedule("30 2 * * *", "Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if next := berlin.Next(start); !next.Equal(time.Date(2026, 1, 3, 1, 30, 0, 0, time.UTC)) {
		t.Errorf("next at %v", next.UTC())
	}
	minutely, err := ParseSchedule("* * * * *", "")
	if err != nil {
		t.Fatal(err)
	}
	year := start.AddDate(1, 0, 0)
	if due := minutely.due(start, year); year.Sub(due) > time.Minute || due.After(year) {
		t.Errorf("of a year of missed times, the last is %v", due)
	}
	never, err := ParseSchedule("0 0 30 2 *", "")
	if err != nil || !never.Next(start).IsZero() || !never.due(start, year).IsZero() {
		t.Errorf("February 30 comes: %v", err)
	}
}

func TestCronJob(t *testing.T) {
	at := func(minutes int) time.Time {
		return start.Truncate(time.Minute).Add(time.Duration(minutes) * time.Minute)
	}
	running := JobSummary{Ref: Ref{Job, "default", "web-1"}, Created: at(0)}
	ended := func(name string, failed bool, minute int) JobSummary {
		return JobSummary{Ref: Ref{Job, "default", name}, Created: at(minute), Finished: at(minute), Failed: failed}
	}
	for name, c := range map[string]struct {
		spec    batchv1.CronJobSpec
		jobs    []JobSummary
		now     time.Time
		started int
		removed string
	}{
		"due":            {now: at(1), started: 1},
		"not due":        {now: at(0).Add(30 * time.Second)},
		"missed":         {now: at(500), started: 1},
		"too late":       {spec: batchv1.CronJobSpec{StartingDeadlineSeconds: new(int64(10))}, now: at(1).Add(20 * time.Second)},
		"suspended":      {spec: batchv1.CronJobSpec{Suspend: new(true)}, now: at(1)},
		"beside another": {jobs: []JobSummary{running}, now: at(1), started: 1},
		"forbidden":      {spec: batchv1.CronJobSpec{ConcurrencyPolicy: batchv1.ForbidConcurrent}, jobs: []JobSummary{running}, now: at(1)},
		"replaced":       {spec: batchv1.CronJobSpec{ConcurrencyPolicy: batchv1.ReplaceConcurrent}, jobs: []JobSummary{running}, now: at(1), started: 1, removed: "web-1"},
		"history": {
			spec: batchv1.CronJobSpec{SuccessfulJobsHistoryLimit: new(int32(1)), Suspend: new(true)}, now: at(9),
			jobs: []JobSummary{ended("b", false, 2), ended("a", false, 1), ended("x", true, 1), ended("y", true, 3)}, removed: "a x",
		},
	} {
		c.spec.Schedule = "* * * * *"
		s := newWorld(t, 1, &Workload{Ref: Ref{Kind: CronJob}, Cron: &c.spec, Job: &batchv1.JobSpec{}})
		s.state.Created = at(0)
		d := Plan(Input{Workload: s.w, State: s.state, Jobs: c.jobs, Now: c.now})
		var removed []string
		for _, ref := range d.RemoveJobs {
			removed = append(removed, ref.Name)
		}
		if len(d.Start) != c.started || strings.Join(removed, " ") != c.removed {
			t.Errorf("%s: starts %d, removes %v", name, len(d.Start), removed)
		}
		if again := Plan(Input{Workload: s.w, State: d.State, Now: c.now}); len(d.Start) > 0 && len(again.Start) > 0 {
			t.Errorf("%s: starts twice", name)
		}
	}
}
