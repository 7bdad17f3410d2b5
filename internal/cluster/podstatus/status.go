package podstatus

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// scheme is the prefix of container IDs, for which a kubelet uses the runtime's name.
const scheme = "husk://"

// statusOf returns the status of p for the API server. It starts from pod, the server's last state,
// and keeps what others have written there and the times of conditions that haven't changed.
func statusOf(pod *corev1.Pod, p agent.Pod, node criconfig.Node, now time.Time) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	s.ObservedGeneration = observedGeneration(pod, p)
	s.HostIP, s.HostIPs, s.NominatedNodeName = "", nil, ""
	for _, ip := range node.IPs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(node.IPs) > 0 {
		s.HostIP = node.IPs[0]
	}
	if len(p.Status.IPs) > 0 { // a pod that has ended keeps its addresses
		s.PodIP, s.PodIPs = p.Status.IPs[0], nil
		for _, ip := range p.Status.IPs {
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	if s.StartTime == nil {
		s.StartTime = stamp(p.Created)
	}
	if s.QOSClass == "" {
		s.QOSClass = criconfig.QOS(p.Manifest)
	}
	if allocated := criconfig.Allocated(p.Manifest); !p.Resize.Applying || s.Resources == nil {
		s.AllocatedResources, s.Resources = allocated.Requests, &allocated
	} else { // the pod has its former resources until the resize is in force
		s.AllocatedResources = allocated.Requests
	}
	s.InitContainerStatuses, s.ContainerStatuses = nil, nil
	for _, c := range p.Status.Containers {
		status := containerStatus(p, c, node)
		if c.Init {
			s.InitContainerStatuses = append(s.InitContainerStatuses, status)
		} else {
			s.ContainerStatuses = append(s.ContainerStatuses, status)
		}
	}
	s.EphemeralContainerStatuses = nil
	for _, c := range p.Status.Ephemeral {
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, containerStatus(p, c, node))
	}
	s.Phase = phaseOf(p, pod.DeletionTimestamp != nil)
	s.Reason, s.Message = "", ""
	if s.Phase == corev1.PodFailed && ownReason(p) {
		s.Reason, s.Message = p.Status.Reason, p.Status.Message
	}
	conditions{&s, pod, now}.set(p)
	return s
}

// observedGeneration returns the generation of the server's pod that p was made from. The server
// may have a newer one by now, of which the status says nothing. A mirror is replaced, never
// changed, so that it has only one.
func observedGeneration(pod *corev1.Pod, p agent.Pod) int64 {
	switch {
	case !strings.HasPrefix(p.Source, string(source.API)):
		return pod.Generation
	case p.Manifest.Generation == 0: // huskd recorded the pod before it recorded generations
		return pod.Status.ObservedGeneration
	}
	return p.Manifest.Generation
}

// neverRan returns the status of a pod that is being deleted and that this node doesn't know. It
// has failed unless it has ended: whoever holds it by a finalizer gets no other status. As with a
// kubelet, containers that ran, or whose turn it was, ended with ContainerStatusUnknown.
func neverRan(pod *corev1.Pod) corev1.PodStatus {
	s := *pod.Status.DeepCopy()
	if s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
		return s
	}
	s.Phase, s.ObservedGeneration = corev1.PodFailed, pod.Generation
	initialized := len(pod.Spec.InitContainers) == 0
	ended := func(statuses []corev1.ContainerStatus, containers []corev1.Container) []corev1.ContainerStatus {
		if len(statuses) == 0 {
			statuses = waiting(containers, admission.Refusal{Reason: podplan.NotStartedReason(pod)})
		}
		for i := range statuses {
			if state := &statuses[i].State; state.Running != nil || initialized && state.Terminated == nil {
				*state = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Reason: podplan.ReasonUnknown, Message: "this node doesn't know the container", ExitCode: 137,
				}}
			}
		}
		return statuses
	}
	s.InitContainerStatuses = ended(s.InitContainerStatuses, pod.Spec.InitContainers)
	s.ContainerStatuses = ended(s.ContainerStatuses, pod.Spec.Containers)
	return s
}

// ownReason reports whether the reason is the pod's own. That of a container is in the container's
// status.
func ownReason(p agent.Pod) bool {
	return p.Status.Reason == podplan.ReasonDeadline || evicted(p.Status.Reason)
}

func evicted(reason string) bool {
	return reason == podplan.ReasonEvicted || reason == podplan.ReasonPreempting
}

// phaseOf returns the pod's phase. A stopped pod counts as ended only if it is being deleted or
// never restarts: otherwise it can be started again.
func phaseOf(p agent.Pod, deleted bool) corev1.PodPhase {
	switch p.Status.Phase {
	case podplan.PhaseSucceeded:
		return corev1.PodSucceeded
	case podplan.PhaseFailed:
		return corev1.PodFailed
	case podplan.PhasePending:
		return corev1.PodPending
	case podplan.PhaseRunning:
		return corev1.PodRunning
	}
	if !deleted && p.Manifest.Spec.RestartPolicy == corev1.RestartPolicyAlways {
		return corev1.PodRunning
	}
	for _, c := range p.Status.Containers {
		if !c.Init && (c.State != podplan.Terminated || c.ExitCode != 0) {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

func stamp(t time.Time) *metav1.Time {
	at := metav1.NewTime(t).Rfc3339Copy()
	return &at
}

func containerStatus(p agent.Pod, c podplan.ContainerStatus, node criconfig.Node) corev1.ContainerStatus {
	out := corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, Ready: c.Ready, RestartCount: int32(c.Restarts), Started: new(c.State == podplan.Running && c.Up),
	}
	runs := p.Runs(c.Name)
	if len(runs) > 0 {
		out.ContainerID, out.ImageID = scheme+runs[0].ID, orElse(p.ImageRefs[runs[0].ImageID], runs[0].ImageID)
		out.User = userOf(runs[0])
	}
	past := runs
	switch c.State {
	case podplan.Running:
		out.State.Running = &corev1.ContainerStateRunning{StartedAt: *stamp(c.Started)}
	case podplan.Terminated:
		out.State.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: int32(c.ExitCode), Reason: c.Reason, Message: c.Message, FinishedAt: *stamp(c.Finished), ContainerID: out.ContainerID,
		}
		if !c.Started.IsZero() {
			out.State.Terminated.StartedAt = *stamp(c.Started)
		}
		past = runs[min(1, len(runs)):]
	default:
		out.State.Waiting = &corev1.ContainerStateWaiting{Reason: c.Reason, Message: c.Message}
		if c.Reason == "" {
			out.State.Waiting.Reason = "ContainerCreating"
		}
	}
	if i := slices.IndexFunc(past, func(run container.Status) bool { return !run.Exit.At.IsZero() }); i >= 0 {
		run := past[i]
		out.LastTerminationState.Terminated = &corev1.ContainerStateTerminated{
			ExitCode: int32(run.Exit.Code), Reason: run.Reason, Message: run.Message,
			StartedAt: *stamp(run.Started), FinishedAt: *stamp(run.Exit.At), ContainerID: scheme + run.ID,
		}
	}
	if spec := criconfig.FindContainer(p.Manifest, c.Name); spec != nil {
		for _, m := range spec.VolumeMounts {
			out.VolumeMounts = append(out.VolumeMounts, corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly, RecursiveReadOnly: m.RecursiveReadOnly})
		}
		if c.State == podplan.Running && len(runs) > 0 {
			out.AllocatedResources = spec.Resources.Requests.DeepCopy()
			out.Resources = resourcesOf(p.Manifest, spec, runs[0], node)
		}
	}
	return out
}

// userOf returns the user that a container's first process was started as.
func userOf(run container.Status) *corev1.ContainerUser {
	if run.User == nil {
		return nil
	}
	user := &corev1.LinuxContainerUser{UID: int64(run.User.UID), GID: int64(run.User.GID)}
	for _, g := range run.User.AdditionalGids {
		user.SupplementalGroups = append(user.SupplementalGroups, int64(g))
	}
	return &corev1.ContainerUser{Linux: user}
}

// resourcesOf returns the spec's resources. Where those of the run differ, because a resize is in
// progress, it returns the run's.
func resourcesOf(pod *corev1.Pod, c *corev1.Container, run container.Status, node criconfig.Node) *corev1.ResourceRequirements {
	out := c.Resources.DeepCopy()
	want, has := criconfig.Resources(pod, c, node), run.Resources()
	set := func(list corev1.ResourceList, name corev1.ResourceName, q *resource.Quantity) {
		if _, ok := list[name]; ok {
			list[name] = *q
		}
	}
	if has.GetMemoryLimitInBytes() != want.GetMemoryLimitInBytes() {
		set(out.Limits, corev1.ResourceMemory, resource.NewQuantity(has.GetMemoryLimitInBytes(), resource.BinarySI))
	}
	if has.GetCpuQuota() != want.GetCpuQuota() && has.GetCpuPeriod() > 0 {
		set(out.Limits, corev1.ResourceCPU, resource.NewMilliQuantity(has.GetCpuQuota()*1000/has.GetCpuPeriod(), resource.DecimalSI))
	}
	if has.GetCpuShares() != want.GetCpuShares() {
		const sharesPerCPU = 1024
		set(out.Requests, corev1.ResourceCPU, resource.NewMilliQuantity(has.GetCpuShares()*1000/sharesPerCPU, resource.DecimalSI))
	}
	return out
}

// conditions sets the conditions of a status, whose generation they get.
type conditions struct {
	*corev1.PodStatus
	pod *corev1.Pod
	now time.Time
}

// put sets a condition. Its time changes only with its status.
func (c conditions) put(of corev1.PodConditionType, is bool, reason, message string) {
	status := corev1.ConditionFalse
	if is {
		status = corev1.ConditionTrue
	}
	next := corev1.PodCondition{Type: of, Status: status, Reason: reason, Message: message, LastTransitionTime: *stamp(c.now), ObservedGeneration: c.ObservedGeneration}
	i := slices.IndexFunc(c.Conditions, func(o corev1.PodCondition) bool { return o.Type == of })
	if i < 0 {
		c.Conditions = append(c.Conditions, next)
		return
	}
	if last := c.Conditions[i]; last.Status == status {
		next.LastTransitionTime, next.LastProbeTime = last.LastTransitionTime, last.LastProbeTime
	}
	c.Conditions[i] = next
}

func (c conditions) drop(of corev1.PodConditionType) {
	c.Conditions = slices.DeleteFunc(c.Conditions, func(o corev1.PodCondition) bool { return o.Type == of })
}

// own reports whether only the node sets a condition.
func own(of corev1.PodConditionType) bool {
	switch of {
	case corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady, corev1.PodResizePending, corev1.PodResizeInProgress:
		return true
	}
	return false
}

// set sets all conditions that the node is responsible for.
func (c conditions) set(p agent.Pod) {
	c.put(corev1.PodReadyToStartContainers, p.Status.SandboxReady, "", "")
	var unready, uninitialized []string
	initialized := p.Status.Initialized
	for _, s := range p.Status.Containers {
		switch {
		case s.Init && !initialized && !s.Ready && !(s.Up && podspec.HasSidecar(&c.pod.Spec, s.Name)): // others are complete once they have ended
			uninitialized = append(uninitialized, s.Name)
		case !s.Init && !s.Ready:
			unready = append(unready, s.Name)
		}
	}
	over := ""
	switch c.Phase {
	case corev1.PodSucceeded:
		over, initialized = "PodCompleted", true
	case corev1.PodFailed:
		over = "PodFailed"
	}
	if initialized {
		c.put(corev1.PodInitialized, true, strings.TrimPrefix(over, "PodFailed"), "")
	} else {
		c.put(corev1.PodInitialized, false, "ContainersNotInitialized", listed("containers with incomplete status", uninitialized))
	}
	// The containers of a pod that is being deleted may serve until they end: as with a kubelet,
	// Services whose endpoints are all leaving use it.
	ready := p.Status.Ready || p.Status.Serving && c.pod.DeletionTimestamp != nil
	switch {
	case over != "":
		c.put(corev1.ContainersReady, false, over, "")
		c.put(corev1.PodReady, false, over, "")
	case !ready:
		message := listed("containers with unready status", unready)
		c.put(corev1.ContainersReady, false, "ContainersNotReady", message)
		c.put(corev1.PodReady, false, "ContainersNotReady", message)
	default:
		c.put(corev1.ContainersReady, true, "", "")
		gates := c.closedGates()
		c.put(corev1.PodReady, len(gates) == 0, map[bool]string{false: "ReadinessGatesNotReady"}[len(gates) == 0], listed("readiness gates that are not met", gates))
	}
	c.put(corev1.PodScheduled, true, "", "")
	if evicted(c.Reason) {
		c.put(corev1.DisruptionTarget, true, corev1.PodReasonTerminationByKubelet, c.Message)
	}
	c.resize(p.Resize)
}

// closedGates returns the readiness gates whose conditions aren't true.
func (c conditions) closedGates() (closed []string) {
	for _, g := range c.pod.Spec.ReadinessGates {
		if !slices.ContainsFunc(c.Conditions, func(o corev1.PodCondition) bool { return o.Type == g.ConditionType && o.Status == corev1.ConditionTrue }) {
			closed = append(closed, string(g.ConditionType))
		}
	}
	return closed
}

// resize sets the conditions of a resize.
func (c conditions) resize(r agent.Resize) {
	if r.Held != "" {
		c.put(corev1.PodResizePending, true, r.Held, r.Message)
	} else {
		c.drop(corev1.PodResizePending)
	}
	switch {
	case !r.Applying:
		c.drop(corev1.PodResizeInProgress)
	case r.Problem != "":
		c.put(corev1.PodResizeInProgress, true, corev1.PodReasonError, r.Problem)
	default:
		c.put(corev1.PodResizeInProgress, true, "", "")
	}
}

func listed(what string, names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%s: [%s]", what, strings.Join(names, " "))
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
