// Package convert turns the Kubernetes objects of workloads into package workload's terms, and says
// what is wrong with them. It is pure.
package convert

import (
	"fmt"
	"math"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/workload"
)

// Problem is a mistake in a workload.
type Problem struct {
	Field, Text string
	// Missing tells that the field isn't set.
	Missing bool
}

// MaxPods is the largest number of pods of a workload at the same time. A node runs fewer.
const MaxPods = 5000

// New returns an empty object of a kind, into which a manifest can be decoded, and its metadata.
func New(kind workload.Kind) (object any, meta *metav1.ObjectMeta) {
	switch kind {
	case workload.Deployment:
		o := &appsv1.Deployment{}
		return o, &o.ObjectMeta
	case workload.ReplicaSet:
		o := &appsv1.ReplicaSet{}
		return o, &o.ObjectMeta
	case workload.ReplicationController:
		o := &corev1.ReplicationController{}
		return o, &o.ObjectMeta
	case workload.StatefulSet:
		o := &appsv1.StatefulSet{}
		return o, &o.ObjectMeta
	case workload.DaemonSet:
		o := &appsv1.DaemonSet{}
		return o, &o.ObjectMeta
	case workload.Job:
		o := &batchv1.Job{}
		return o, &o.ObjectMeta
	}
	o := &batchv1.CronJob{}
	return o, &o.ObjectMeta
}

// Workload converts an object of New, apart from its metadata and its template, which must have an
// API server's defaults.
func Workload(object any, template *corev1.Pod) (*workload.Workload, []Problem) {
	c := &converter{w: &workload.Workload{Template: template, Replicas: 1}}
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways}
	switch o := object.(type) {
	case *appsv1.Deployment:
		c.deployment(&o.Spec)
	case *appsv1.ReplicaSet:
		c.w.Kind = workload.ReplicaSet
		c.replicas(o.Spec.Replicas)
		c.minReady(o.Spec.MinReadySeconds)
		c.selector(o.Spec.Selector)
	case *corev1.ReplicationController:
		c.w.Kind = workload.ReplicationController
		c.replicas(o.Spec.Replicas)
		c.minReady(o.Spec.MinReadySeconds)
		if len(o.Spec.Selector) > 0 {
			c.selector(&metav1.LabelSelector{MatchLabels: o.Spec.Selector})
		}
	case *appsv1.StatefulSet:
		c.statefulSet(&o.Spec)
	case *appsv1.DaemonSet:
		c.daemonSet(&o.Spec)
	case *batchv1.Job:
		c.w.Kind = workload.Job
		c.job(&o.Spec, "spec")
		policies = []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	case *batchv1.CronJob:
		c.cronJob(&o.Spec)
		policies = []corev1.RestartPolicy{corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	}
	c.restartPolicy(policies)
	return c.w, c.problems
}

type converter struct {
	w        *workload.Workload
	problems []Problem
}

func (c *converter) problem(field, format string, args ...any) {
	c.problems = append(c.problems, Problem{Field: field, Text: fmt.Sprintf(format, args...)})
}

func (c *converter) missing(field, hint string) {
	c.problems = append(c.problems, Problem{Field: field, Text: hint, Missing: true})
}

func (c *converter) restartPolicy(allowed []corev1.RestartPolicy) {
	path := "spec.template.spec.restartPolicy"
	if c.w.Kind == workload.CronJob {
		path = "spec.jobTemplate." + path
	}
	words := make([]string, len(allowed))
	for i, policy := range allowed {
		if c.w.Template.Spec.RestartPolicy == policy {
			return
		}
		words[i] = string(policy)
	}
	c.problem(path, "%s is not possible in a %s: set it to %s", c.w.Template.Spec.RestartPolicy, c.w.Kind, strings.Join(words, " or "))
}

// number reports a number that isn't within 0 and most.
func (c *converter) number(field string, n *int32, most int32) {
	if n != nil && (*n < 0 || *n > most) {
		c.problem(field, "%d is not within 0…%d", *n, most)
	}
}

func (c *converter) replicas(n *int32) {
	c.number("spec.replicas", n, MaxPods)
	if n != nil {
		c.w.Replicas = *n
	}
}

func (c *converter) minReady(seconds int32) {
	c.number("spec.minReadySeconds", &seconds, math.MaxInt32)
	c.w.Rollout.MinReadySeconds = seconds
}

func (c *converter) selector(s *metav1.LabelSelector) {
	if s == nil {
		c.missing("spec.selector", ": set matchLabels to labels of the template")
		return
	}
	selector, err := metav1.LabelSelectorAsSelector(s)
	switch {
	case err != nil:
		c.problem("spec.selector", "is not a selector: %v", err)
	case selector.Empty():
		c.problem("spec.selector", "selects everything: set matchLabels to labels of the template")
	case !selector.Matches(labels.Set(c.w.Template.Labels)):
		c.problem("spec.selector", "doesn't match the labels of spec.template.metadata: make them equal")
	}
}

// share checks a number of pods or a share in percent.
func (c *converter) share(field string, v *intstr.IntOrString, fallback intstr.IntOrString) intstr.IntOrString {
	if v == nil {
		return fallback
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(v, 100, true)
	if err != nil || n < 0 || n > MaxPods || v.Type == intstr.String && len(validation.IsValidPercent(v.StrVal)) > 0 {
		c.problem(field, "%s is not a number of pods or a share such as 25%%", v.String())
		return fallback
	}
	return *v
}

func (c *converter) strategy(field string, got string, allowed ...workload.Strategy) {
	var words []string
	for _, s := range allowed {
		if got == string(s) {
			c.w.Rollout.Strategy = s
			return
		}
		words = append(words, string(s))
	}
	if got != "" {
		c.problem(field, "%q is not one of %s", got, strings.Join(words, ", "))
	}
	c.w.Rollout.Strategy = allowed[0]
}

func (c *converter) deployment(s *appsv1.DeploymentSpec) {
	c.w.Kind = workload.Deployment
	c.replicas(s.Replicas)
	c.selector(s.Selector)
	c.minReady(s.MinReadySeconds)
	r := &c.w.Rollout
	r.Paused, r.ProgressDeadlineSeconds = s.Paused, 600
	if d := s.ProgressDeadlineSeconds; d != nil {
		c.number("spec.progressDeadlineSeconds", d, math.MaxInt32)
		r.ProgressDeadlineSeconds = *d
		if *d == math.MaxInt32 {
			r.ProgressDeadlineSeconds = 0
		} else if *d <= s.MinReadySeconds {
			c.problem("spec.progressDeadlineSeconds", "must be more than minReadySeconds, which is %d", s.MinReadySeconds)
		}
	}
	c.strategy("spec.strategy.type", string(s.Strategy.Type), workload.RollingUpdate, workload.Recreate)
	rolling := s.Strategy.RollingUpdate
	switch {
	case rolling == nil:
		rolling = &appsv1.RollingUpdateDeployment{}
	case r.Strategy == workload.Recreate:
		c.problem("spec.strategy.rollingUpdate", "has no effect with the type Recreate: remove one")
	}
	if r.Strategy == workload.RollingUpdate {
		quarter := intstr.FromString("25%")
		r.MaxSurge = c.share("spec.strategy.rollingUpdate.maxSurge", rolling.MaxSurge, quarter)
		r.MaxUnavailable = c.share("spec.strategy.rollingUpdate.maxUnavailable", rolling.MaxUnavailable, quarter)
		c.eitherPositive("spec.strategy.rollingUpdate")
	}
}

// eitherPositive reports a rollout that could never begin.
func (c *converter) eitherPositive(field string) {
	zero := func(v intstr.IntOrString) bool {
		n, _ := intstr.GetScaledValueFromIntOrPercent(&v, 100, true)
		return n == 0
	}
	if zero(c.w.Rollout.MaxSurge) && zero(c.w.Rollout.MaxUnavailable) {
		c.problem(field, "maxSurge and maxUnavailable are both 0: no pod could be replaced")
	}
}

func (c *converter) statefulSet(s *appsv1.StatefulSetSpec) {
	c.w.Kind = workload.StatefulSet
	c.replicas(s.Replicas)
	c.selector(s.Selector)
	c.minReady(s.MinReadySeconds)
	r := &c.w.Rollout
	r.Service = s.ServiceName
	if s.ServiceName != "" && len(validation.IsDNS1123Label(s.ServiceName)) > 0 {
		c.problem("spec.serviceName", "%q is not the name of a service", s.ServiceName)
	}
	switch s.PodManagementPolicy {
	case "", appsv1.OrderedReadyPodManagement:
	case appsv1.ParallelPodManagement:
		r.Parallel = true
	default:
		c.problem("spec.podManagementPolicy", "%q is not one of OrderedReady, Parallel", s.PodManagementPolicy)
	}
	if o := s.Ordinals; o != nil {
		c.number("spec.ordinals.start", &o.Start, math.MaxInt32-MaxPods)
		r.Start = o.Start
	}
	if p := s.PersistentVolumeClaimRetentionPolicy; p != nil {
		c.w.Retention.WhenDeleted = c.deletes("spec.persistentVolumeClaimRetentionPolicy.whenDeleted", p.WhenDeleted)
		c.w.Retention.WhenScaled = c.deletes("spec.persistentVolumeClaimRetentionPolicy.whenScaled", p.WhenScaled)
	}
	c.strategy("spec.updateStrategy.type", string(s.UpdateStrategy.Type), workload.RollingUpdate, workload.OnDelete)
	if u := s.UpdateStrategy.RollingUpdate; u != nil {
		if u.Partition != nil {
			c.number("spec.updateStrategy.rollingUpdate.partition", u.Partition, math.MaxInt32)
			r.Partition = *u.Partition
		}
		r.MaxUnavailable = c.share("spec.updateStrategy.rollingUpdate.maxUnavailable", u.MaxUnavailable, intstr.FromInt32(1))
	}
}

// deletes reports whether a policy says that claims are deleted.
func (c *converter) deletes(field string, policy appsv1.PersistentVolumeClaimRetentionPolicyType) bool {
	switch policy {
	case "", appsv1.RetainPersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType:
	default:
		c.problem(field, "%q is not one of Retain, Delete", policy)
	}
	return policy == appsv1.DeletePersistentVolumeClaimRetentionPolicyType
}

func (c *converter) daemonSet(s *appsv1.DaemonSetSpec) {
	c.w.Kind = workload.DaemonSet
	c.selector(s.Selector)
	c.minReady(s.MinReadySeconds)
	c.strategy("spec.updateStrategy.type", string(s.UpdateStrategy.Type), workload.RollingUpdate, workload.OnDelete)
	r := &c.w.Rollout
	r.MaxSurge, r.MaxUnavailable = intstr.FromInt32(0), intstr.FromInt32(1)
	if u := s.UpdateStrategy.RollingUpdate; u != nil {
		r.MaxSurge = c.share("spec.updateStrategy.rollingUpdate.maxSurge", u.MaxSurge, r.MaxSurge)
		r.MaxUnavailable = c.share("spec.updateStrategy.rollingUpdate.maxUnavailable", u.MaxUnavailable, r.MaxUnavailable)
		c.eitherPositive("spec.updateStrategy.rollingUpdate")
	}
	if c.w.Rollout.MaxUnavailable.Type == intstr.String { // a share of one pod rounds up
		r.MaxUnavailable = intstr.FromInt32(1)
	}
}

// maxCompletions is the largest number of completions. It is an API server's for indexed Jobs.
const maxCompletions = 100_000

// job converts the spec of a Job, which is at a path.
func (c *converter) job(s *batchv1.JobSpec, at string) {
	spec := s.DeepCopy()
	spec.Template, spec.Selector, spec.ManualSelector = corev1.PodTemplateSpec{}, nil, nil
	c.w.Job = spec
	c.number(at+".parallelism", spec.Parallelism, MaxPods)
	c.number(at+".completions", spec.Completions, maxCompletions)
	c.number(at+".backoffLimit", spec.BackoffLimit, math.MaxInt32)
	c.number(at+".backoffLimitPerIndex", spec.BackoffLimitPerIndex, math.MaxInt32)
	c.number(at+".maxFailedIndexes", spec.MaxFailedIndexes, maxCompletions)
	c.number(at+".ttlSecondsAfterFinished", spec.TTLSecondsAfterFinished, math.MaxInt32)
	if d := spec.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		c.problem(at+".activeDeadlineSeconds", "%d is not within 1…%d", *d, math.MaxInt32)
	}
	indexed := spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	if spec.CompletionMode != nil && !indexed && *spec.CompletionMode != batchv1.NonIndexedCompletion {
		c.problem(at+".completionMode", "%q is not one of NonIndexed, Indexed", *spec.CompletionMode)
	}
	if indexed && spec.Completions == nil {
		c.missing(at+".completions", ": an indexed job needs it")
	}
	for field, set := range map[string]bool{
		"backoffLimitPerIndex": spec.BackoffLimitPerIndex != nil, "maxFailedIndexes": spec.MaxFailedIndexes != nil, "successPolicy": spec.SuccessPolicy != nil,
	} {
		if set && !indexed {
			c.problem(at+"."+field, "needs completionMode: Indexed")
		}
	}
	if p := spec.PodReplacementPolicy; p != nil && *p != batchv1.TerminatingOrFailed && *p != batchv1.Failed {
		c.problem(at+".podReplacementPolicy", "%q is not one of TerminatingOrFailed, Failed", *p)
	}
	c.failurePolicy(spec, at+".podFailurePolicy")
	if spec.SuccessPolicy != nil {
		for i, rule := range spec.SuccessPolicy.Rules {
			if rule.SucceededIndexes != nil && workload.Indexes(*rule.SucceededIndexes) == nil {
				c.problem(fmt.Sprintf("%s.successPolicy.rules[%d].succeededIndexes", at, i), "%q is not a list of indexes such as 0,2-4", *rule.SucceededIndexes)
			}
		}
	}
	if spec.Completions == nil && spec.Parallelism == nil {
		spec.Completions = new(int32(1))
	}
}

func (c *converter) failurePolicy(spec *batchv1.JobSpec, at string) {
	if spec.PodFailurePolicy == nil {
		return
	}
	if c.w.Template.Spec.RestartPolicy != corev1.RestartPolicyNever {
		c.problem(at, "needs restartPolicy: Never in the template")
	}
	for i, rule := range spec.PodFailurePolicy.Rules {
		at := fmt.Sprintf("%s.rules[%d]", at, i)
		switch rule.Action {
		case batchv1.PodFailurePolicyActionCount, batchv1.PodFailurePolicyActionFailJob, batchv1.PodFailurePolicyActionIgnore:
		case batchv1.PodFailurePolicyActionFailIndex:
			if spec.BackoffLimitPerIndex == nil {
				c.problem(at+".action", "FailIndex needs backoffLimitPerIndex")
			}
		default:
			c.problem(at+".action", "%q is not one of Count, FailIndex, FailJob, Ignore", rule.Action)
		}
		if (rule.OnExitCodes == nil) == (len(rule.OnPodConditions) == 0) {
			c.problem(at, "needs either onExitCodes or onPodConditions")
		}
		if on := rule.OnExitCodes; on != nil {
			if on.Operator != batchv1.PodFailurePolicyOnExitCodesOpIn && on.Operator != batchv1.PodFailurePolicyOnExitCodesOpNotIn {
				c.problem(at+".onExitCodes.operator", "%q is not one of In, NotIn", on.Operator)
			}
			if len(on.Values) == 0 {
				c.missing(at+".onExitCodes.values", "")
			}
		}
		for n := range rule.OnPodConditions {
			if condition := &rule.OnPodConditions[n]; condition.Status == "" {
				condition.Status = corev1.ConditionTrue
			}
		}
	}
}

// maxCronName leaves room for the suffix of a Job, as an API server does.
const maxCronName = 52

// MaxName returns the greatest length of the name of a kind, and whether it must be a label.
func MaxName(kind workload.Kind) (length int, label bool) {
	switch kind {
	case workload.CronJob:
		return maxCronName, false
	case workload.StatefulSet, workload.Job:
		return validation.DNS1123LabelMaxLength, true
	}
	return validation.DNS1123SubdomainMaxLength, false
}

func (c *converter) cronJob(s *batchv1.CronJobSpec) {
	c.w.Kind = workload.CronJob
	c.job(&s.JobTemplate.Spec, "spec.jobTemplate.spec")
	c.w.JobLabels, c.w.JobAnnotations = s.JobTemplate.Labels, s.JobTemplate.Annotations
	spec := s.DeepCopy()
	spec.JobTemplate = batchv1.JobTemplateSpec{}
	c.w.Cron = spec
	c.number("spec.successfulJobsHistoryLimit", spec.SuccessfulJobsHistoryLimit, MaxPods)
	c.number("spec.failedJobsHistoryLimit", spec.FailedJobsHistoryLimit, MaxPods)
	if d := spec.StartingDeadlineSeconds; d != nil && (*d < 0 || *d > math.MaxInt32) {
		c.problem("spec.startingDeadlineSeconds", "%d is not within 0…%d", *d, math.MaxInt32)
	}
	switch spec.ConcurrencyPolicy {
	case "", batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent:
	default:
		c.problem("spec.concurrencyPolicy", "%q is not one of Allow, Forbid, Replace", spec.ConcurrencyPolicy)
	}
	if spec.Schedule == "" {
		c.missing("spec.schedule", "")
		return
	}
	zone := ""
	if spec.TimeZone != nil {
		zone = *spec.TimeZone
		if _, err := workload.ParseSchedule("@daily", zone); err != nil || zone == "" {
			c.problem("spec.timeZone", "%q is not a time zone such as Europe/Berlin that this node knows", zone)
			return
		}
	}
	schedule, err := workload.ParseSchedule(spec.Schedule, zone)
	switch {
	case err != nil:
		c.problem("spec.schedule", "%s", err.Error())
	case schedule.Next(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).IsZero():
		c.problem("spec.schedule", "%q never comes: no month has such a day", spec.Schedule)
	}
}
