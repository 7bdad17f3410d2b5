package fields

import (
	"fmt"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/manifest/remedy"
)

// Workload is a kind of workloads, with the fields that may be set besides those of its pods.
type Workload struct {
	APIVersion, Kind string
	// Template is the path of the pod template, whose metadata and spec are those of a pod.
	Template string
	Fields   []Field
}

// What the kinds have in common.
const (
	replicas    = "number of pods; 1 if absent. `husk scale` changes it until the manifest is changed"
	minReady    = "seconds that a pod must be ready to be available; 0 if absent"
	labelsMatch = "must match the labels of the template"
	history     = "only the present template is kept"
	noCluster   = "there is no API server"
)

var metadata = []Field{
	{"apiVersion", Honoured, "as in the heading, or a former version of it, such as extensions/v1beta1"},
	{"kind", Honoured, "as in the heading"},
	{"metadata.name", Honoured, "name; the names of the pods begin with it"},
	{"metadata.generateName", Honoured, "without a name: the beginning of the name. The rest depends on the manifest, so that the same file means the same workload"},
	{"metadata.namespace", Honoured, "namespace of the object and its pods; default if absent"},
	{"metadata.labels", Honoured, "shown by husk inspect"},
	{"metadata.annotations", Honoured, "shown by husk inspect"},
	{"metadata.creationTimestamp", Ignored, "set by an API server"},
	{"metadata.deletionGracePeriodSeconds", Ignored, "set by an API server"},
	{"metadata.finalizers", Ignored, noCluster},
	{"metadata.generation", Ignored, "set by an API server"},
	{"metadata.managedFields", Ignored, "set by an API server"},
	{"metadata.ownerReferences", Ignored, "set by an API server"},
	{"metadata.resourceVersion", Ignored, "set by an API server"},
	{"metadata.selfLink", Ignored, "set by an API server"},
	{"metadata.uid", Ignored, "set by huskd"},
	{"status", Ignored, "set by huskd"},
}

var jobFields = []Field{
	{"parallelism", Honoured, "number of pods that run at the same time; 1 if absent"},
	{"completions", Honoured, "number of pods that must succeed; if absent, and parallelism is set, one that succeeds ends the job once the others have ended"},
	{"completionMode", Honoured, "NonIndexed (default), or Indexed: each completion has an index, in the variable JOB_COMPLETION_INDEX, an annotation and the host name"},
	{"backoffLimit", Honoured, "number of failures after which the job fails; 6 if absent. A failed pod is replaced after 10 s, 20 s and so on"},
	{"backoffLimitPerIndex", Honoured, "number of failures after which an index fails"},
	{"maxFailedIndexes", Honoured, "number of failed indexes beyond which the job fails"},
	{"activeDeadlineSeconds", Honoured, "time after which the job is stopped and fails"},
	{"ttlSecondsAfterFinished", Honoured, "time after which an ended job is removed with its pods"},
	{"podFailurePolicy", Honoured, "what a failed pod means, by the exit codes of its containers or because it was evicted (DisruptionTarget): FailJob, FailIndex, Ignore or Count"},
	{"podReplacementPolicy", Honoured, "TerminatingOrFailed (default) or Failed: whether a pod that is being removed is replaced before it has ended"},
	{"successPolicy", Honoured, "the indexes, or their number, that make an indexed job succeed"},
	{"suspend", Honoured, "true stops the job's pods until it is false again"},
	{"selector", Ignored, "pods belong to the job that has started them"},
	{"manualSelector", Ignored, "pods belong to the job that has started them"},
}

var workloads = []Workload{
	{"apps/v1", "Deployment", "spec.template", []Field{
		{"spec.replicas", Honoured, replicas},
		{"spec.selector", Honoured, labelsMatch},
		{"spec.strategy.type", Honoured, "RollingUpdate (default) or Recreate"},
		{"spec.strategy.rollingUpdate.maxSurge", Honoured, "pods beyond replicas during a rollout, as a number or a share such as 25% (default)"},
		{"spec.strategy.rollingUpdate.maxUnavailable", Honoured, "pods of replicas that may be unavailable during a rollout, as a number or a share such as 25% (default)"},
		{"spec.minReadySeconds", Honoured, minReady},
		{"spec.progressDeadlineSeconds", Honoured, "time without progress after which a rollout counts as stalled; 600 if absent"},
		{"spec.paused", Honoured, "true keeps the pods at the template that they have"},
		{"spec.revisionHistoryLimit", Ignored, history},
	}},
	{"apps/v1", "ReplicaSet", "spec.template", []Field{
		{"spec.replicas", Honoured, replicas},
		{"spec.selector", Honoured, labelsMatch},
		{"spec.minReadySeconds", Honoured, minReady},
	}},
	{"v1", "ReplicationController", "spec.template", []Field{
		{"spec.replicas", Honoured, replicas},
		{"spec.selector", Honoured, labelsMatch + ", and equals them if absent"},
		{"spec.minReadySeconds", Honoured, minReady},
	}},
	{"apps/v1", "StatefulSet", "spec.template", []Field{
		{"spec.replicas", Honoured, replicas},
		{"spec.selector", Honoured, labelsMatch},
		{"spec.serviceName", Honoured, "subdomain of the pods"},
		{"spec.podManagementPolicy", Honoured, "OrderedReady (default) starts and stops one pod after the other, Parallel all at once"},
		{"spec.updateStrategy.type", Honoured, "RollingUpdate (default), or OnDelete to replace only pods that are removed"},
		{"spec.updateStrategy.rollingUpdate.partition", Honoured, "first ordinal that gets a changed template; 0 if absent"},
		{"spec.updateStrategy.rollingUpdate.maxUnavailable", Honoured, "pods that may be unavailable during a rollout; 1 if absent"},
		{"spec.minReadySeconds", Honoured, minReady},
		{"spec.ordinals.start", Honoured, "first ordinal; 0 if absent"},
		{"spec.volumeClaimTemplates", Honoured, "claims that each pod has: a volume named as the claim, which the set's claim CLAIM-SET-ORDINAL is mounted as. The fields are those of a PersistentVolumeClaim"},
		{"spec.persistentVolumeClaimRetentionPolicy.whenDeleted", Honoured, "Retain (default), or Delete to remove the claims and their files with the set"},
		{"spec.persistentVolumeClaimRetentionPolicy.whenScaled", Honoured, "Retain (default), or Delete to remove the claims and their files of the pods that scaling down removes"},
		{"spec.revisionHistoryLimit", Ignored, history},
	}},
	{"apps/v1", "DaemonSet", "spec.template", []Field{
		{"spec.selector", Honoured, labelsMatch},
		{"spec.updateStrategy.type", Honoured, "RollingUpdate (default), or OnDelete to replace the pod only if it is removed"},
		{"spec.updateStrategy.rollingUpdate.maxSurge", Honoured, "1 starts the new pod before the old one is removed; 0 if absent"},
		{"spec.updateStrategy.rollingUpdate.maxUnavailable", Honoured, "1 (default) removes the old pod before the new one starts"},
		{"spec.minReadySeconds", Honoured, minReady},
		{"spec.revisionHistoryLimit", Ignored, history},
	}},
	{"batch/v1", "Job", "spec.template", below("spec.", jobFields)},
	{"batch/v1", "CronJob", "spec.jobTemplate.spec.template", append([]Field{
		{"spec.schedule", Honoured, "when jobs start: minute, hour, day of the month, month, day of the week, or @hourly and the like"},
		{"spec.timeZone", Honoured, "time zone of the schedule, such as Europe/Berlin; the node's if absent"},
		{"spec.concurrencyPolicy", Honoured, "Allow (default), Forbid to wait for the previous job, or Replace to remove it"},
		{"spec.startingDeadlineSeconds", Honoured, "how late a job may start, for example after huskd was down; unlimited if absent. Of several missed times, the last counts"},
		{"spec.suspend", Honoured, "true starts no jobs"},
		{"spec.successfulJobsHistoryLimit", Honoured, "number of succeeded jobs to keep; 3 if absent"},
		{"spec.failedJobsHistoryLimit", Honoured, "number of failed jobs to keep; 1 if absent"},
		{"spec.jobTemplate.metadata.labels", Honoured, "labels of the jobs"},
		{"spec.jobTemplate.metadata.annotations", Honoured, "annotations of the jobs"},
		{"spec.jobTemplate.metadata.name", Ignored, "jobs get their names from the CronJob"},
		{"spec.jobTemplate.metadata.namespace", Ignored, "jobs are in the namespace of the CronJob"},
		{"spec.jobTemplate.metadata.creationTimestamp", Ignored, "set by an API server"},
	}, below("spec.jobTemplate.spec.", jobFields)...)},
}

func below(path string, fields []Field) []Field {
	out := slices.Clone(fields)
	for i := range out {
		out[i].Path = path + out[i].Path
	}
	return out
}

// FindWorkload returns the table of a kind of workloads.
func FindWorkload(apiVersion, kind string) (Workload, bool) {
	i := slices.IndexFunc(workloads, func(w Workload) bool { return w.APIVersion == apiVersion && w.Kind == kind })
	if i < 0 {
		return Workload{}, false
	}
	return workloads[i], true
}

// WorkloadVersion returns the version of a kind of workloads, or "" if there is no such kind.
func WorkloadVersion(kind string) string {
	for _, w := range workloads {
		if w.Kind == kind {
			return w.APIVersion
		}
	}
	return ""
}

// former are the versions in which kinds of workloads were before, with the same fields.
var former = map[string][]string{
	"apps/v1":  {"apps/v1beta1", "apps/v1beta2", "extensions/v1beta1"},
	"batch/v1": {"batch/v1beta1", "batch/v2alpha1"},
}

// IsFormer reports whether a kind of workloads was in a version before the present one.
func IsFormer(apiVersion, kind string) bool {
	return slices.Contains(former[WorkloadVersion(kind)], apiVersion)
}

// workloadRemedies are the messages for refused fields of workloads.
var workloadRemedies = map[string]string{
	"spec.rollbackTo": "no longer in Kubernetes: remove it",
}

// Lookup is like the function Lookup, for the fields of the workload.
func (w Workload) Lookup(pattern string) (Coverage, string) {
	partial := false
	for _, f := range slices.Concat(metadata, w.Fields) {
		if f.Path == pattern {
			return Listed, ""
		}
		partial = partial || strings.HasPrefix(f.Path, pattern+".") || strings.HasPrefix(w.Template, pattern+".")
	}
	if partial {
		return Partial, ""
	}
	if text, ok := workloadRemedies[pattern]; ok {
		return Unlisted, text
	}
	return Unlisted, remedy.Manifest.Field(pattern)
}

// workloadReference returns the part of the reference page about workloads.
func workloadReference() string {
	var b strings.Builder
	b.WriteString("\n## Workloads\n\n[Workloads](../workloads.md) describes what huskd does with them. All kinds have these fields:\n")
	b.WriteString(table(metadata))
	for _, w := range workloads {
		fmt.Fprintf(&b, "\n### %s (%s)\n\nThe fields of a pod below `%s` are those of `metadata` and `spec` above.\n", w.Kind, w.APIVersion, w.Template)
		b.WriteString(table(w.Fields))
	}
	return b.String()
}

// table returns a table of fields of workloads and other objects.
func table(fields []Field) string {
	var b strings.Builder
	b.WriteString("\n| field | meaning |\n|---|---|\n")
	for _, f := range fields {
		meaning := escape.Replace(f.Meaning)
		if f.How == Ignored {
			meaning = "no effect: " + meaning
		}
		fmt.Fprintf(&b, "| `%s` | %s |\n", f.Path, meaning)
	}
	return b.String()
}
