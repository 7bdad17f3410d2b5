package kubelet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/test/node"
)

// resizeTo resizes a pod's only container.
func (o huskNode) resizeTo(name string, resources corev1.ResourceRequirements) {
	o.t.Helper()
	pods := o.api.CoreV1().Pods("default")
	p, err := pods.Get(o.t.Context(), name, metav1.GetOptions{})
	o.must(err)
	p.Spec.Containers[0].Resources = resources
	_, err = pods.UpdateResize(o.t.Context(), name, p, metav1.UpdateOptions{})
	o.must(err)
}

func conditionOf(p *corev1.Pod, kind corev1.PodConditionType) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.PodCondition{}
}

// testDeferredResize makes a resize for which the node has no free capacity yet, and one that
// restarts the container. It returns the new huskd.
func (o huskNode) testDeferredResize() *node.Daemon {
	n, err := o.api.CoreV1().Nodes().Get(o.t.Context(), "node", metav1.GetOptions{})
	o.must(err)
	most := n.Status.Allocatable.Cpu().MilliValue()
	cpu := func(part int64) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(most*part/100, resource.DecimalSI)}}
	}
	pending := func(reason string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool {
			c := conditionOf(p, corev1.PodResizePending)
			return c.Reason == reason && (c.Status == corev1.ConditionTrue) == (reason != "") && (reason == "" || c.ObservedGeneration == p.Generation)
		}
	}
	sleep := "command: [sleep, '1000'], resources: {requests: {cpu: %dm}}"
	o.create(simple("grows", "", fmt.Sprintf(sleep, most*20/100)))
	o.create(simple("blocks", "", fmt.Sprintf(sleep, most*50/100)))
	before := o.await("grows", ready)
	o.await("blocks", ready)
	o.resizeTo("grows", cpu(60))
	// A resize beyond the node's capacity never comes here: the API server refuses it.
	p := o.await("grows", pending(corev1.PodReasonDeferred))
	if got := p.Status.ContainerStatuses[0].AllocatedResources.Cpu().MilliValue(); got != most*20/100 {
		o.t.Errorf("%dm of cpu are allocated while the resize is deferred", got)
	}
	// A deferred resize takes no capacity: another pod is admitted.
	o.create(simple("beside", "", fmt.Sprintf(sleep, most*5/100)))
	o.await("beside", ready)
	o.huskd.Kill()
	o.startNode()
	o.await("grows", pending(corev1.PodReasonDeferred))
	o.must(o.api.CoreV1().Pods("default").Delete(o.t.Context(), "blocks", metav1.DeleteOptions{}))
	after := o.await("grows", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return pending("")(p) && conditionOf(p, corev1.PodResizeInProgress).Status == "" && s.AllocatedResources.Cpu().MilliValue() == most*60/100
	})
	if restarts(after) != 0 || after.Status.ContainerStatuses[0].ContainerID != before.Status.ContainerStatuses[0].ContainerID {
		o.t.Error("the resize has restarted the container")
	}
	list, err := o.api.CoreV1().Events("default").List(o.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(before.UID)})
	o.must(err)
	if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Type == corev1.EventTypeWarning && e.Reason == "ResizeDeferred" }) {
		o.t.Errorf("the events are %+v", list.Items)
	}

	// A container with the restart policy is restarted. Its grace period keeps the resize in
	// progress for long enough to be seen.
	o.create(strings.Replace(simple("anew", "", `command: [sh, -c, "trap 'sleep 3; exit 0' TERM; while :; do sleep 1000 & wait; done"],
    resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {limits: {memory: 32Mi}, requests: {memory: 32Mi}}`),
		"terminationGracePeriodSeconds: 1", "terminationGracePeriodSeconds: 20", 1))
	o.await("anew", ready)
	memory := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("48Mi")}
	o.resizeTo("anew", corev1.ResourceRequirements{Limits: memory, Requests: memory})
	o.await("anew", func(p *corev1.Pod) bool {
		c := conditionOf(p, corev1.PodResizeInProgress)
		return c.Status == corev1.ConditionTrue && c.Reason == ""
	})
	o.await("anew", func(p *corev1.Pod) bool {
		s := p.Status.ContainerStatuses[0]
		return ready(p) && restarts(p) == 1 && conditionOf(p, corev1.PodResizeInProgress).Status == "" && s.Resources != nil && s.Resources.Limits.Memory().String() == "48Mi"
	})
	if got, _ := o.exec("anew", "c", nil, "sh", "-c", "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/memory.max 2>/dev/null"); got != fmt.Sprintln(48<<20) {
		o.t.Errorf("the limit is %q", got)
	}
	return o.huskd
}

// testEviction makes a pod exceed the limit of a volume.
func (o huskNode) testEviction() {
	o.create(simple("fills", "volumes: [{name: v, emptyDir: {sizeLimit: 1Mi}}]", `volumeMounts: [{name: v, mountPath: /v}], command: [sh, -c, "dd if=/dev/zero of=/v/fill bs=1M count=2; sleep 1000"]`))
	p := o.await("fills", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "Evicted" })
	if c := conditionOf(p, corev1.DisruptionTarget); !strings.Contains(p.Status.Message, "volume v uses") || c.Reason != corev1.PodReasonTerminationByKubelet || c.Status != corev1.ConditionTrue {
		o.t.Errorf("%s: %+v", describe(p), p.Status)
	}
	node.Eventually(o.t, time.Minute, func() string {
		if _, err := os.Stat(o.Root + "/pods/" + string(p.UID) + "/volumes"); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf("the volumes are still there: %v", err)
		}
		return ""
	})
	p = o.await("fills", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].State.Terminated != nil })
	if p.Status.Reason != "Evicted" {
		o.t.Errorf("the evicted pod is %s", describe(p))
	}
}
