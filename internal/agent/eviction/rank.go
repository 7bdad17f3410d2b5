package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// Usage is what a pod or a container uses.
type Usage struct {
	Memory    int64 // the working set, in bytes
	Disk      int64 // bytes of writable layers, logs and, for a pod, volumes
	Inodes    int64
	Processes int64
}

// Candidate is a pod that may be evicted.
type Candidate struct {
	Pod *corev1.Pod
	Usage
	Containers map[string]Usage // by name
	// Unknown says that the usage couldn't be read. Such a pod goes first.
	Unknown bool
}

func (u Usage) of(name corev1.ResourceName) int64 {
	switch name {
	case corev1.ResourceMemory:
		return u.Memory
	case corev1.ResourceEphemeralStorage:
		return u.Disk
	case inodes:
		return u.Inodes
	}
	return u.Processes
}

// Rank sorts the candidates by the order in which they are evicted because of a threshold: first
// those that use more than they request, then by priority, then by how much more they use.
func Rank(t Threshold, candidates []Candidate) {
	name := signals[t.Signal].resource
	over := func(c Candidate) int64 {
		request := criconfig.Requested(c.Pod, name)
		return c.of(name) - request.Value()
	}
	slices.SortStableFunc(candidates, func(a, b Candidate) int {
		first := 0
		if name != pids { // nothing requests process IDs
			first = -compareBool(a.Unknown || over(a) > 0, b.Unknown || over(b) > 0)
		}
		return cmp.Or(first, cmp.Compare(priority(a.Pod), priority(b.Pod)),
			-compareBool(a.Unknown, b.Unknown), cmp.Compare(over(b), over(a)))
	})
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

func priority(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// Message returns the message of a pod that is evicted because of a threshold. Its form is the
// kubelet's, which tools parse.
func Message(t Threshold, o Observations, c Candidate) string {
	name := signals[t.Signal].resource
	seen := o[t.Signal]
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %s. Threshold quantity: %s, available: %s. ",
		name, quantity(t.Limit.of(seen.Capacity), name), quantity(seen.Available, name))
	if name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
		return b.String()
	}
	for spec := range podspec.Containers(&c.Pod.Spec) {
		used, known := c.Containers[spec.Name]
		request := spec.Resources.Requests[name]
		if known && used.of(name) > request.Value() {
			fmt.Fprintf(&b, "Container %s was using %s, request is %s, has larger consumption of %s. ",
				spec.Name, quantity(used.of(name), name), request.String(), name)
		}
	}
	return b.String()
}

func quantity(n int64, name corev1.ResourceName) string {
	format := resource.BinarySI
	if name == inodes || name == pids {
		format = resource.DecimalSI
	}
	return resource.NewQuantity(n, format).String()
}

// Refuse returns why a pod isn't admitted to a node under pressure, or "". Critical pods always
// are. A node that only lacks memory admits pods that request some, and those that tolerate the
// lack.
func Refuse(conditions []corev1.NodeConditionType, pod *corev1.Pod, tolerates func(*corev1.Pod, corev1.Taint) bool) string {
	switch {
	case len(conditions) == 0 || criconfig.Critical(pod):
		return ""
	case slices.Equal(conditions, []corev1.NodeConditionType{corev1.NodeMemoryPressure}):
		if criconfig.QOS(pod) != corev1.PodQOSBestEffort || tolerates(pod, corev1.Taint{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoSchedule}) {
			return ""
		}
	}
	return fmt.Sprintf("The node had condition: %v. ", conditions)
}
