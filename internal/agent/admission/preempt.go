package admission

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest/criconfig"
)

// PreemptedMessage is the message of a pod that made way for a critical one.
const PreemptedMessage = "Preempted in order to admit critical pod"

// ErrTooFew says that too few pods may be evicted to make room.
var ErrTooFew = errors.New("the pods that may be evicted don't request enough")

// Victims returns which pods must be evicted to make room for a critical pod, which lacks short. As
// with the kubelet, it takes as few as it can, and none of a higher QoS class than it must. It
// returns none if nothing is short, and ErrTooFew if evicting all pods that may be is not enough.
func Victims(critical *corev1.Pod, pods []*corev1.Pod, short corev1.ResourceList) ([]*corev1.Pod, error) {
	classes := map[corev1.PodQOSClass][]*corev1.Pod{}
	for _, p := range pods {
		if preemptable(critical, p) {
			class := criconfig.QOS(p)
			classes[class] = append(classes[class], p)
		}
	}
	order := []corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}
	var victims []*corev1.Pod
	for i, class := range order {
		// What must be taken from this class even if all pods of the lower ones go.
		left := without(short, victims)
		for _, lower := range order[i+1:] {
			left = without(left, classes[lower])
		}
		chosen, err := fewest(classes[class], left)
		if err != nil {
			return nil, err
		}
		victims = append(victims, chosen...)
	}
	return victims, nil
}

func preemptable(critical, pod *corev1.Pod) bool {
	if !criconfig.Critical(pod) {
		return true
	}
	return priorityOf(critical) > priorityOf(pod)
}

func priorityOf(pod *corev1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// fewest chooses pods until nothing is short: each time the one that leaves the least, and the
// smallest of those that leave the same.
func fewest(pods []*corev1.Pod, short corev1.ResourceList) (chosen []*corev1.Pod, err error) {
	pods = slices.Clone(pods)
	for len(short) > 0 {
		if len(pods) == 0 {
			return nil, fmt.Errorf("%w: %s", ErrTooFew, describe(short))
		}
		best := 0
		for i := range pods {
			switch had, has := remainder(short, pods[best]), remainder(short, pods[i]); {
			case has < had, has == had && smaller(pods[i], pods[best]):
				best = i
			}
		}
		chosen = append(chosen, pods[best])
		short = without(short, pods[best:best+1])
		pods = slices.Delete(pods, best, best+1)
	}
	return chosen, nil
}

// remainder measures what would be short without a pod: the sum of the squares of what remains of
// each resource, as a fraction, so that each resource counts the same.
func remainder(short corev1.ResourceList, pod *corev1.Pod) float64 {
	sum := 0.0
	for _, name := range slices.Sorted(maps.Keys(short)) {
		lack, has := short[name], requested(pod, name)
		left := max(lack.AsApproximateFloat64()-has.AsApproximateFloat64(), 0) / lack.AsApproximateFloat64()
		sum += left * left
	}
	return sum
}

func smaller(a, b *corev1.Pod) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceCPU} {
		x, y := requested(a, name), requested(b, name)
		if c := x.Cmp(y); c != 0 {
			return c < 0
		}
	}
	return false
}

// without returns what is still short when the pods are gone.
func without(short corev1.ResourceList, pods []*corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, q := range short {
		q = q.DeepCopy()
		for _, p := range pods {
			q.Sub(requested(p, name))
		}
		if q.Sign() > 0 {
			out[name] = q
		}
	}
	return out
}

func requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	if name == corev1.ResourcePods {
		return *resource.NewQuantity(1, resource.DecimalSI)
	}
	return criconfig.Requested(pod, name)
}

// Short returns by how much the requests of a pod and the others exceed what is allocatable. A
// resource that the pod doesn't request is never short.
func Short(allocatable corev1.ResourceList, pod *corev1.Pod, others []*corev1.Pod) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, limit := range allocatable {
		sum := requested(pod, name)
		if sum.IsZero() {
			continue
		}
		for _, o := range others {
			sum.Add(requested(o, name))
		}
		if sum.Sub(limit); sum.Sign() > 0 {
			out[name] = sum
		}
	}
	return out
}

func describe(short corev1.ResourceList) string {
	text := ""
	for _, name := range slices.Sorted(maps.Keys(short)) {
		q := short[name]
		text += fmt.Sprintf(", %s of %s", q.String(), name)
	}
	return text[min(2, len(text)):]
}
