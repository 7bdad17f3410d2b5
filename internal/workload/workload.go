// Package workload has the rules of Deployments, ReplicaSets, ReplicationControllers, StatefulSets,
// DaemonSets, Jobs and CronJobs on one node: which pods should exist, given the workload and the
// pods that do, and what the workload's status is. It is pure: the caller gives the time.
package workload

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Kind is the kind of a workload.
type Kind string

// The kinds of workloads.
const (
	Deployment            Kind = "Deployment"
	ReplicaSet            Kind = "ReplicaSet"
	ReplicationController Kind = "ReplicationController"
	StatefulSet           Kind = "StatefulSet"
	DaemonSet             Kind = "DaemonSet"
	Job                   Kind = "Job"
	CronJob               Kind = "CronJob"
)

// shortNames are the names of the kinds that a user may write, in lower case.
var shortNames = map[string]Kind{
	"deployment": Deployment, "deployments": Deployment, "deploy": Deployment,
	"replicaset": ReplicaSet, "replicasets": ReplicaSet, "rs": ReplicaSet,
	"replicationcontroller": ReplicationController, "replicationcontrollers": ReplicationController, "rc": ReplicationController,
	"statefulset": StatefulSet, "statefulsets": StatefulSet, "sts": StatefulSet,
	"daemonset": DaemonSet, "daemonsets": DaemonSet, "ds": DaemonSet,
	"job": Job, "jobs": Job,
	"cronjob": CronJob, "cronjobs": CronJob, "cj": CronJob,
}

// Ref names a workload.
type Ref struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// ParseRef parses KIND/[NAMESPACE/]NAME, such as deployment/web. It returns false if text doesn't
// begin with a kind of workload.
func ParseRef(text, namespace string) (Ref, bool) {
	kind, name, _ := strings.Cut(text, "/")
	k, ok := shortNames[strings.ToLower(kind)]
	if before, after, has := strings.Cut(name, "/"); has {
		namespace, name = before, after
	}
	return Ref{Kind: k, Namespace: namespace, Name: name}, ok && name != ""
}

// String returns the reference as users write it: deployment/NAMESPACE/NAME.
func (r Ref) String() string {
	return strings.ToLower(string(r.Kind)) + "/" + r.Namespace + "/" + r.Name
}

// Workload is what a manifest says about a workload.
type Workload struct {
	Ref         `json:"ref"`
	UID         types.UID         `json:"uid"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Owner is the CronJob of a Job.
	Owner *Ref `json:"owner,omitempty"`
	// Template is the pod of which the workload has copies. It has no name. Those of a CronJob are
	// those of its Jobs.
	Template *corev1.Pod `json:"template"`
	// Revision identifies the template.
	Revision string `json:"revision"`
	// Digest identifies everything that the manifest says, with the template.
	Digest string `json:"digest"`
	// Replicas is the number of pods. It is 1 for a DaemonSet, and not used for jobs.
	Replicas int32   `json:"replicas"`
	Rollout  Rollout `json:"rollout,omitzero"`
	// Job is the spec of a Job, or of the Jobs of a CronJob, without the template.
	Job *batchv1.JobSpec `json:"job,omitempty"`
	// JobLabels and JobAnnotations are those of the Jobs of a CronJob.
	JobLabels      map[string]string `json:"jobLabels,omitempty"`
	JobAnnotations map[string]string `json:"jobAnnotations,omitempty"`
	// Cron is the spec of a CronJob, without the template of its Jobs.
	Cron *batchv1.CronJobSpec `json:"cron,omitempty"`
	// Claims are those that each pod of a StatefulSet has, and Retention says how long.
	Claims    []Claim   `json:"claims,omitempty"`
	Retention Retention `json:"retention,omitzero"`
}

// Sum returns a digest of everything that the manifest says.
func (w *Workload) Sum() string {
	said := *w
	said.UID, said.Digest, said.Template = "", "", nil
	raw, _ := json.Marshal(said) // all of it was decoded from JSON
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:16])
}

// CanFollow reports whether a Job that exists as before says can become this one without being run
// anew: only its suspension, its parallelism and its deadlines differ.
func (w *Workload) CanFollow(before *Workload) bool {
	plain := func(w *Workload) string {
		spec := w.Job.DeepCopy()
		spec.Suspend, spec.Parallelism, spec.ActiveDeadlineSeconds, spec.TTLSecondsAfterFinished = nil, nil, nil, nil
		raw, _ := json.Marshal(spec) // as in Sum
		return w.Revision + string(raw)
	}
	return plain(w) == plain(before)
}

// Strategy says how pods of another revision are replaced.
type Strategy string

// The strategies.
const (
	RollingUpdate Strategy = "RollingUpdate"
	Recreate      Strategy = "Recreate"
	OnDelete      Strategy = "OnDelete"
)

// Rollout says how a changed template reaches the pods.
type Rollout struct {
	Strategy Strategy `json:"strategy,omitempty"`
	// MaxSurge and MaxUnavailable are numbers of pods, or shares of the replicas.
	MaxSurge       intstr.IntOrString `json:"maxSurge,omitzero"`
	MaxUnavailable intstr.IntOrString `json:"maxUnavailable,omitzero"`
	// MinReadySeconds is how long a pod must be ready to be available.
	MinReadySeconds int32 `json:"minReadySeconds,omitempty"`
	// ProgressDeadlineSeconds is the time without progress after which a rollout counts as failed; 0
	// for none.
	ProgressDeadlineSeconds int32 `json:"progressDeadlineSeconds,omitempty"`
	// Paused keeps a Deployment's pods at the revision that they have.
	Paused bool `json:"paused,omitempty"`

	// The remaining fields are those of a StatefulSet.

	// Partition is the first ordinal that gets the new template.
	Partition int32 `json:"partition,omitempty"`
	// Start is the first ordinal.
	Start int32 `json:"start,omitempty"`
	// Parallel starts and stops all pods at once, instead of one after the other.
	Parallel bool `json:"parallel,omitempty"`
	// Service is the subdomain of the pods.
	Service string `json:"service,omitempty"`
}

// State is what must be kept of a workload from one decision to the next.
type State struct {
	// Scale, if set, is used instead of the manifest's number of replicas.
	Scale *int32 `json:"scale,omitempty"`
	// Restarted is when a user has last asked to replace the pods. It is part of the revision.
	Restarted time.Time `json:"restarted,omitzero"`
	// Created is when the workload was first seen.
	Created  time.Time `json:"created,omitzero"`
	Progress Progress  `json:"progress,omitzero"`
	// Stable is the revision of a StatefulSet's pods before the last change of its template. It is
	// nil if all pods have the present one.
	Stable *Revision `json:"stable,omitempty"`
	// Latest is the newest revision of a StatefulSet that was seen.
	Latest *Revision `json:"latest,omitempty"`
	// Job is the state of a Job, Cron that of a CronJob.
	Job  *JobState  `json:"job,omitempty"`
	Cron *CronState `json:"cron,omitempty"`
}

// Progress is how far a rollout was when it last came further.
type Progress struct {
	Revision string    `json:"revision,omitempty"`
	Desired  int32     `json:"desired,omitempty"`
	Measure  int32     `json:"measure,omitempty"`
	At       time.Time `json:"at,omitzero"`
	// Complete says that the rollout has ended. A pod that fails later doesn't begin it again.
	Complete bool `json:"complete,omitempty"`
	Failed   bool `json:"failed,omitempty"`
}

// Revision is a template and its name.
type Revision struct {
	Hash     string      `json:"hash"`
	Template *corev1.Pod `json:"template"`
}

// Pod is a pod of the workload as it is now.
type Pod struct {
	Name string
	UID  string
	// Revision is the value of the label of its revision.
	Revision string
	// Ordinal is the number of a pod of a StatefulSet, or the completion index of a pod of a Job.
	Ordinal int32
	Created time.Time
	// Ready tells that the pod is ready, since ReadySince.
	Ready      bool
	ReadySince time.Time
	// Succeeded and Failed tell that the pod has ended, at Finished.
	Succeeded, Failed bool
	Finished          time.Time
	// Removing tells that the pod is being removed, Stopped that a user has stopped it.
	Removing, Stopped bool
	// Disrupted tells that a failed pod was evicted.
	Disrupted bool
	// Reason is why the pod isn't running or has failed, Unfit why it doesn't fit on the node.
	Reason, Unfit string
	// Restarts is the number of restarts of all its containers.
	Restarts int32
	// Exits are the exit codes of the containers that have ended, by their names.
	Exits map[string]int32
}

// active reports whether the pod runs or will run.
func (p *Pod) active() bool { return !p.Removing && !p.Succeeded && !p.Failed }

// Input is what a decision depends on.
type Input struct {
	*Workload
	State State
	Pods  []Pod
	// Jobs are the Jobs of a CronJob.
	Jobs []JobSummary
	Now  time.Time
}

// Decision is what to do next.
type Decision struct {
	// State replaces the input's. It must be kept before anything is done.
	State State
	// Create are pods to create. If a pod has a GenerateName and no name, the caller appends a
	// random suffix.
	Create []*corev1.Pod
	// Remove are the UIDs of the pods to remove.
	Remove []string
	// Start are the Jobs that a CronJob starts, RemoveJobs those that it removes.
	Start      []*Workload
	RemoveJobs []Ref
	// Expired tells that the workload should be removed with its pods.
	Expired bool
	Status  Status
	// Events are what a user should know, once.
	Events []Event
	// Next is when to decide again if nothing changes before; zero for never.
	Next time.Time
}

// Event is something that happened.
type Event struct {
	Warning         bool
	Reason, Message string
}

// Phase is the state of a workload in a word.
type Phase string

// The phases.
const (
	Progressing Phase = "Progressing"
	Available   Phase = "Available"
	Degraded    Phase = "Degraded" // the rollout was complete, and pods are missing now
	Stalled     Phase = "Stalled"  // the rollout has made no progress within its deadline
	Waiting     Phase = "Waiting"  // for a user: OnDelete, or paused
	Suspended   Phase = "Suspended"
	Running     Phase = "Running"
	Complete    Phase = "Complete"
	Failed      Phase = "Failed"
	Scheduled   Phase = "Scheduled"
)

// Status is the status of a workload.
type Status struct {
	Phase Phase `json:"phase"`
	// Message says how far a rollout or a job is, or why it doesn't go on.
	Message string `json:"message,omitempty"`
	// Done tells that nothing more will happen by itself to reach what the manifest says.
	Done bool `json:"-"`
	// Desired, Current, Updated, Ready and Available are numbers of pods.
	Desired   int32 `json:"desired"`
	Current   int32 `json:"current"`
	Updated   int32 `json:"updated"`
	Ready     int32 `json:"ready"`
	Available int32 `json:"available"`
	// Active, Succeeded and Failed are numbers of pods of a Job, or of Jobs of a CronJob.
	Active    int32 `json:"active,omitempty"`
	Succeeded int32 `json:"succeeded,omitempty"`
	Failed    int32 `json:"failed,omitempty"`
}

// Labels that Kubernetes gives to the pods of workloads.
const (
	labelTemplateHash = "pod-template-hash"
	labelRevision     = "controller-revision-hash"
	labelSetPodName   = "statefulset.kubernetes.io/pod-name"
	labelPodIndex     = "apps.kubernetes.io/pod-index"
	labelJobName      = "batch.kubernetes.io/job-name"
	labelOldJobName   = "job-name"
	labelJobUID       = "batch.kubernetes.io/controller-uid"
	labelOldJobUID    = "controller-uid"
	// AnnotationIndex is also the name of a label.
	AnnotationIndex     = "batch.kubernetes.io/job-completion-index"
	annotationScheduled = "batch.kubernetes.io/cronjob-scheduled-timestamp"
	annotationRestarted = "kubectl.kubernetes.io/restartedAt"
)

// groups are the API groups of the kinds.
var groups = map[Kind]string{
	Deployment: "apps/v1", ReplicaSet: "apps/v1", StatefulSet: "apps/v1", DaemonSet: "apps/v1",
	ReplicationController: "v1", Job: "batch/v1", CronJob: "batch/v1",
}

// OwnerOf returns the workload that a pod belongs to, and its UID.
func OwnerOf(pod *corev1.Pod) (ref Ref, uid types.UID, ok bool) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || groups[Kind(owner.Kind)] == "" {
		return Ref{}, "", false
	}
	return Ref{Kind: Kind(owner.Kind), Namespace: pod.Namespace, Name: owner.Name}, owner.UID, true
}

// RevisionOf returns the revision of a pod of a workload.
func RevisionOf(pod *corev1.Pod) string {
	if hash := pod.Labels[labelTemplateHash]; hash != "" {
		return hash
	}
	hash := pod.Labels[labelRevision]
	return hash[strings.LastIndex(hash, "-")+1:]
}

// OrdinalOf returns the number of a pod of a StatefulSet, or the completion index of a pod of a
// Job. It returns -1 for other pods.
func OrdinalOf(pod *corev1.Pod) int32 {
	text := pod.Labels[labelPodIndex]
	if text == "" {
		text = pod.Labels[AnnotationIndex]
	}
	ordinal := int32(-1)
	if _, err := fmt.Sscanf(text, "%d", &ordinal); err != nil {
		return -1
	}
	return ordinal
}
