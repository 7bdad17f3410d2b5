package workload

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// JobState is what must be kept of a Job.
type JobState struct {
	// Started is when the Job began, or was last resumed.
	Started  time.Time `json:"started,omitzero"`
	Finished time.Time `json:"finished,omitzero"`
	// Failed and Message say how a finished Job has ended.
	Failed  bool   `json:"failed,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
	// Succeeded and Failures are the numbers of pods that have ended so.
	Succeeded int32 `json:"succeeded,omitempty"`
	Failures  int32 `json:"failures,omitempty"`
	// Counted are the UIDs of the ended pods that still exist and are in the numbers.
	Counted []string `json:"counted,omitempty"`
	// Indexes are the completion indexes that have succeeded, FailedIndexes those that have failed for
	// good, and IndexFailures the number of failures of the others.
	Indexes       []int32         `json:"indexes,omitempty"`
	FailedIndexes []int32         `json:"failedIndexes,omitempty"`
	IndexFailures map[int32]int32 `json:"indexFailures,omitempty"`
	// Row is the number of failures without a success between them, LastFailure when the last was.
	Row         int32     `json:"row,omitempty"`
	LastFailure time.Time `json:"lastFailure,omitzero"`
	Suspended   bool      `json:"suspended,omitempty"`
}

// clone returns a copy that can be changed.
func (s *JobState) clone() *JobState {
	if s == nil {
		return &JobState{}
	}
	out := *s
	out.Counted = slices.Clone(s.Counted)
	out.Indexes, out.FailedIndexes = slices.Clone(s.Indexes), slices.Clone(s.FailedIndexes)
	out.IndexFailures = map[int32]int32{}
	for index, n := range s.IndexFailures {
		out.IndexFailures[index] = n
	}
	return &out
}

// The reasons why a Job has ended, as Kubernetes names them.
const (
	reasonCompleted        = "Completed"
	reasonSuccessPolicy    = "SuccessPolicy"
	reasonBackoffLimit     = "BackoffLimitExceeded"
	reasonDeadline         = "DeadlineExceeded"
	reasonFailurePolicy    = "PodFailurePolicy"
	reasonFailedIndexes    = "FailedIndexes"
	reasonMaxFailedIndexes = "MaxFailedIndexesExceeded"
)

// The delay before a failed pod of a Job is replaced. It doubles with each failure.
const (
	firstJobDelay   = 10 * time.Second
	longestJobDelay = 10 * time.Minute
)

// job decides for a Job.
func (p *planner) job() {
	j := &jobPlan{planner: p, spec: p.Workload.Job, JobState: p.State.Job.clone()}
	j.indexed = j.spec.CompletionMode != nil && *j.spec.CompletionMode == batchv1.IndexedCompletion
	p.state.Job = j.JobState
	for i := range p.Pods {
		if pod := &p.Pods[i]; pod.active() {
			j.active = append(j.active, *pod)
		}
	}
	j.count()
	if j.Finished.IsZero() {
		j.decide()
	}
	if !j.Finished.IsZero() {
		j.remove(j.active...)
		j.expire()
	}
	j.report()
}

// jobPlan is a decision about a Job.
type jobPlan struct {
	*planner
	*JobState
	spec    *batchv1.JobSpec
	indexed bool
	active  []Pod
}

// finish ends the Job.
func (j *jobPlan) finish(failed bool, reason, format string, args ...any) {
	j.Finished, j.JobState.Failed, j.Reason, j.Message = j.Now, failed, reason, fmt.Sprintf(format, args...)
	j.event(failed, reason, "%s", j.Message)
}

// count adds the pods that have ended since to the numbers.
func (j *jobPlan) count() {
	exists := map[string]bool{}
	for i := range j.Pods {
		pod := &j.Pods[i]
		exists[pod.UID] = true
		if !pod.Succeeded && !pod.Failed || slices.Contains(j.Counted, pod.UID) || !j.Finished.IsZero() {
			continue
		}
		j.Counted = append(j.Counted, pod.UID)
		if pod.Succeeded {
			j.Succeeded++
			j.Row = 0
			if j.indexed && !slices.Contains(j.Indexes, pod.Ordinal) {
				j.Indexes = append(j.Indexes, pod.Ordinal)
			}
			continue
		}
		j.countFailure(pod)
	}
	j.Counted = slices.DeleteFunc(j.Counted, func(uid string) bool { return !exists[uid] })
}

func (j *jobPlan) countFailure(pod *Pod) {
	action, why := failureAction(j.spec.PodFailurePolicy, pod)
	if action == batchv1.PodFailurePolicyActionIgnore {
		return
	}
	j.Failures++
	j.Row++
	j.LastFailure = j.Now
	if j.indexed {
		j.IndexFailures[pod.Ordinal]++
		limit := j.spec.BackoffLimitPerIndex
		final := limit != nil && j.IndexFailures[pod.Ordinal] > *limit || action == batchv1.PodFailurePolicyActionFailIndex
		if final && !slices.Contains(j.FailedIndexes, pod.Ordinal) {
			j.FailedIndexes = append(j.FailedIndexes, pod.Ordinal)
		}
	}
	if action == batchv1.PodFailurePolicyActionFailJob && j.Finished.IsZero() {
		j.finish(true, reasonFailurePolicy, "pod %s failed: %s", pod.Name, why)
	}
}

// failureAction returns what the pod failure policy says about a failed pod, and why.
func failureAction(policy *batchv1.PodFailurePolicy, pod *Pod) (batchv1.PodFailurePolicyAction, string) {
	if policy == nil {
		return batchv1.PodFailurePolicyActionCount, ""
	}
	for i, rule := range policy.Rules {
		if on := rule.OnExitCodes; on != nil {
			for container, code := range pod.Exits {
				named := on.ContainerName == nil || *on.ContainerName == container
				in := slices.Contains(on.Values, code)
				if named && code != 0 && in == (on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn) {
					return rule.Action, fmt.Sprintf("container %s ended with exit code %d, which matches rule %d of podFailurePolicy", container, code, i)
				}
			}
		}
		for _, condition := range rule.OnPodConditions {
			if pod.Disrupted && condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue {
				return rule.Action, fmt.Sprintf("it was evicted, which matches rule %d of podFailurePolicy", i)
			}
		}
	}
	return batchv1.PodFailurePolicyActionCount, ""
}

// decide ends the Job, or starts and removes pods of it.
func (j *jobPlan) decide() {
	if j.spec.Suspend != nil && *j.spec.Suspend {
		if !j.Suspended {
			j.event(false, "Suspended", "the job is suspended")
		}
		j.Suspended, j.Started = true, time.Time{}
		j.remove(j.active...)
		return
	}
	j.Suspended = false
	if j.Started.IsZero() {
		j.Started = j.Now
	}
	j.checkFailed()
	if j.Finished.IsZero() {
		j.checkComplete()
	}
	if !j.Finished.IsZero() {
		return
	}
	if d := j.spec.ActiveDeadlineSeconds; d != nil {
		j.wakeAt(j.Started.Add(time.Duration(*d) * time.Second))
	}
	j.startPods()
}

func (j *jobPlan) checkFailed() {
	limit := int32(6)
	if j.spec.BackoffLimit != nil {
		limit = *j.spec.BackoffLimit
	}
	restarts := int32(0)
	for i := range j.active {
		restarts += j.active[i].Restarts
	}
	onFailure := j.Template.Spec.RestartPolicy == corev1.RestartPolicyOnFailure
	perIndex := j.spec.BackoffLimitPerIndex != nil
	switch d := j.spec.ActiveDeadlineSeconds; {
	case d != nil && !j.Now.Before(j.Started.Add(time.Duration(*d)*time.Second)):
		j.finish(true, reasonDeadline, "it was active for longer than %d seconds", *d)
	case j.Failures > limit && (!perIndex || j.spec.BackoffLimit != nil):
		j.finish(true, reasonBackoffLimit, "%d pods have failed, more than backoffLimit allows", j.Failures)
	case onFailure && restarts > 0 && restarts >= limit:
		j.finish(true, reasonBackoffLimit, "containers were restarted %d times, as often as backoffLimit allows", restarts)
	case j.spec.MaxFailedIndexes != nil && len(j.FailedIndexes) > int(*j.spec.MaxFailedIndexes):
		j.finish(true, reasonMaxFailedIndexes, "%d indexes have failed, more than maxFailedIndexes allows", len(j.FailedIndexes))
	}
}

func (j *jobPlan) checkComplete() {
	if j.indexed && isMet(j.spec.SuccessPolicy, j.Indexes) {
		j.finish(false, reasonSuccessPolicy, "the success policy is met")
		return
	}
	switch {
	case j.spec.Completions == nil:
		if j.Succeeded > 0 && len(j.active) == 0 {
			j.finish(false, reasonCompleted, "%d pods have completed", j.Succeeded)
		}
	case !j.indexed && j.Succeeded >= *j.spec.Completions, j.indexed && len(j.Indexes) >= int(*j.spec.Completions):
		j.finish(false, reasonCompleted, "%d of %d completions", *j.spec.Completions, *j.spec.Completions)
	case j.indexed && len(j.Indexes)+len(j.FailedIndexes) >= int(*j.spec.Completions) && len(j.active) == 0:
		j.finish(true, reasonFailedIndexes, "%d indexes have failed", len(j.FailedIndexes))
	}
}

// isMet reports whether enough indexes have succeeded for a rule of the success policy.
func isMet(policy *batchv1.SuccessPolicy, succeeded []int32) bool {
	if policy == nil {
		return false
	}
	for _, rule := range policy.Rules {
		considered, need := succeeded, len(succeeded)+1
		if rule.SucceededIndexes != nil {
			wanted := Indexes(*rule.SucceededIndexes)
			need = len(wanted)
			considered = slices.DeleteFunc(slices.Clone(wanted), func(i int32) bool { return !slices.Contains(succeeded, i) })
		}
		if rule.SucceededCount != nil {
			need = int(*rule.SucceededCount)
		}
		if len(considered) >= need {
			return true
		}
	}
	return false
}

// Indexes returns the numbers of a list such as 0,2-4. It is nil if text isn't one.
func Indexes(text string) []int32 {
	const most = 100_000
	var out []int32
	for part := range strings.SplitSeq(text, ",") {
		from, to, ranged := strings.Cut(part, "-")
		if !ranged {
			to = from
		}
		first, err1 := strconv.ParseInt(from, 10, 32)
		last, err2 := strconv.ParseInt(to, 10, 32)
		if err1 != nil || err2 != nil || first < 0 || last < first || last-first >= most {
			return nil
		}
		for i := first; i <= last; i++ {
			out = append(out, int32(i))
		}
	}
	return out
}

// startPods creates pods up to the parallelism, and removes those beyond it.
func (j *jobPlan) startPods() {
	parallel := 1
	if j.spec.Parallelism != nil {
		parallel = int(*j.spec.Parallelism)
	}
	occupied := len(j.active)
	busy := map[int32]bool{}
	for i := range j.Pods {
		pod := &j.Pods[i]
		late := pod.Removing && !pod.Succeeded && !pod.Failed && waitsForRemoved(j.spec)
		if late {
			occupied++
		}
		if late || pod.active() {
			busy[pod.Ordinal] = true
		}
	}
	want := parallel
	switch {
	case j.spec.Completions == nil:
		if j.Succeeded > 0 {
			want = len(j.active)
		}
	case !j.indexed:
		want = min(parallel, int(*j.spec.Completions-j.Succeeded))
	}
	if surplus := len(j.active) - max(want, 0); surplus > 0 {
		j.remove(j.dispensable(j.active)[:surplus]...)
		return
	}
	missing := want - occupied
	if missing <= 0 {
		return
	}
	if !j.indexed {
		if j.backingOff(j.Row) {
			return
		}
		for range missing {
			j.create(-1)
		}
		return
	}
	done := map[int32]bool{}
	for _, index := range slices.Concat(j.Indexes, j.FailedIndexes) {
		done[index] = true
	}
	for index := int32(0); index < *j.spec.Completions && missing > 0; index++ {
		if done[index] || busy[index] || j.IndexFailures[index] > 0 && j.backingOff(j.IndexFailures[index]) {
			continue
		}
		j.create(index)
		missing--
	}
}

// waitsForRemoved reports whether a pod that is being removed must be gone before it is replaced.
func waitsForRemoved(spec *batchv1.JobSpec) bool {
	policy := spec.PodReplacementPolicy
	return policy != nil && *policy == batchv1.Failed || policy == nil && spec.PodFailurePolicy != nil
}

// backingOff reports whether the next pod has to wait because of failures.
func (j *jobPlan) backingOff(failures int32) bool {
	if failures == 0 {
		return false
	}
	delay := longestJobDelay
	if shift := failures - 1; shift < 6 {
		delay = firstJobDelay << shift
	}
	next := j.LastFailure.Add(delay)
	if !j.Now.Before(next) {
		return false
	}
	j.wakeAt(next)
	return true
}

// create adds a pod. An index of -1 is none.
func (j *jobPlan) create(index int32) {
	pod := j.pod(j.Template,
		labelJobName, j.Name, labelOldJobName, j.Name, labelJobUID, string(j.UID), labelOldJobUID, string(j.UID))
	pod.GenerateName = j.Name + "-"
	if index >= 0 {
		text := strconv.Itoa(int(index))
		pod.GenerateName += text + "-"
		pod.Labels = with(pod.Labels, AnnotationIndex, text)
		pod.Annotations = with(pod.Annotations, AnnotationIndex, text)
		setHostname(pod, j.Name+"-"+text, "")
		for c := range podspec.Containers(&pod.Spec) {
			c.Env = append(c.Env, corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", Value: text})
		}
	}
	j.decision.Create = append(j.decision.Create, pod)
}

// expire removes a finished Job some time after its end.
func (j *jobPlan) expire() {
	if j.spec.TTLSecondsAfterFinished == nil {
		return
	}
	at := j.Finished.Add(time.Duration(*j.spec.TTLSecondsAfterFinished) * time.Second)
	if j.Now.Before(at) {
		j.wakeAt(at)
		return
	}
	j.decision.Expired = true
}

func (j *jobPlan) report() {
	s := Status{Active: int32(len(j.active)), Current: int32(len(j.active)), Succeeded: j.Succeeded, Failed: j.Failures}
	for i := range j.active {
		if j.active[i].Ready {
			s.Ready++
		}
	}
	s.Desired = 1
	if j.spec.Completions != nil {
		s.Desired = *j.spec.Completions
	}
	done := j.Succeeded
	if j.indexed {
		done = int32(len(j.Indexes))
	}
	s.Message = fmt.Sprintf("%d of %d completions", done, s.Desired)
	switch {
	case j.JobState.Failed:
		s.Phase, s.Done, s.Message = Failed, true, j.Reason+": "+j.Message
	case !j.Finished.IsZero():
		s.Phase, s.Done = Complete, true
	case j.Suspended:
		s.Phase, s.Done = Suspended, true
	default:
		s.Phase = Running
		if s.Failed > 0 {
			s.Message += fmt.Sprintf(", %d failures", s.Failed)
		}
	}
	j.decision.Status = s
}
