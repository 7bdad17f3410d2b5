package apiserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// admits decides whether the node runs a pod that the agent doesn't know. Like kubelet's, the
// decision is final, and comes before anything else about the pod is looked at.
func (s *Source) admits(b *bound, node *corev1.Node, pod *corev1.Pod) bool {
	if b.admitted || b.rejected {
		return b.admitted
	}
	reason, message := podplan.ReasonEvicted, eviction.Refuse(s.Pressure(), pod, tolerates)
	if message == "" {
		reason, message = admit(node, pod, s.others(pod))
	}
	if reason != "" {
		b.rejected = true
		s.Log.Warn("API server: the node doesn't admit a pod", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "message", message)
		s.Rejected(pod, admission.Refusal{Reason: reason, Message: message})
		return false
	}
	b.admitted = true
	return true
}

// others returns the other pods to which the node has allocated resources. Those of the agent are
// returned as the agent has them: a resize that hasn't been applied doesn't count. Those that are
// admitted may still wait for objects from the server.
func (s *Source) others(pod *corev1.Pod) []*corev1.Pod {
	var out []*corev1.Pod
	for _, other := range s.pods.All() {
		if other.UID == pod.UID || isOver(other) {
			continue
		}
		if known := s.Known(other.UID); known != nil {
			out = append(out, known)
		} else if b := s.bound[other.UID]; b != nil && b.admitted && other.DeletionTimestamp == nil {
			out = append(out, other)
		}
	}
	return out
}

// admit returns why a node can't run a pod beside its other pods. reason is empty if it can. The
// checks, their order and their reasons are kubelet's. It is pure.
func admit(node *corev1.Node, pod *corev1.Pod, others []*corev1.Pod) (reason, message string) {
	if os := pod.Spec.OS; os != nil && os.Name != corev1.Linux {
		return "PodOSNotSupported", fmt.Sprintf("the pod is for %s, the node runs %s", os.Name, corev1.Linux)
	}
	if has := len(others) + 1; exceeds(node, corev1.ResourcePods, int64(has)) {
		return "OutOfpods", fmt.Sprintf("the node already has %d pods, its maximum", len(others))
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		asked := criconfig.Requested(pod, name)
		used := resource.Quantity{}
		for _, o := range others {
			used.Add(criconfig.Requested(o, name))
		}
		total := used.DeepCopy()
		total.Add(asked)
		if has, limited := node.Status.Allocatable[name]; limited && !asked.IsZero() && total.Cmp(has) > 0 {
			return "OutOf" + string(name), fmt.Sprintf("the pod requests %s of %s, but %s of the node's %s are already requested", asked.String(), name, used.String(), has.String())
		}
	}
	if !matchesNode(node, pod) {
		return "NodeAffinity", "the node's labels don't match the pod's nodeSelector or affinity"
	}
	if taken := portConflict(pod, others); taken != "" {
		return "NodePorts", "host port " + taken + " is used by another pod"
	}
	for _, t := range node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && !tolerates(pod, t) {
			return "TaintToleration", fmt.Sprintf("the pod doesn't tolerate the node's taint %s", t.ToString())
		}
	}
	return "", ""
}

func exceeds(node *corev1.Node, name corev1.ResourceName, n int64) bool {
	has, limited := node.Status.Allocatable[name]
	return limited && n > has.Value()
}

// portConflict returns a host port of the pod that another pod also uses, or "".
func portConflict(pod *corev1.Pod, others []*corev1.Pod) string {
	type port struct {
		on       string
		number   int32
		protocol corev1.Protocol
	}
	ports := func(pod *corev1.Pod) (out []port) {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, p := range c.Ports {
				if p.HostPort == 0 {
					continue
				}
				on := p.HostIP
				if addr, err := netip.ParseAddr(on); err == nil && addr.IsUnspecified() {
					on = ""
				}
				protocol := p.Protocol
				if protocol == "" {
					protocol = corev1.ProtocolTCP
				}
				out = append(out, port{on, p.HostPort, protocol})
			}
		}
		return out
	}
	for _, mine := range ports(pod) {
		for _, o := range others {
			for _, theirs := range ports(o) {
				if mine.number == theirs.number && mine.protocol == theirs.protocol && (mine.on == theirs.on || mine.on == "" || theirs.on == "") {
					return fmt.Sprintf("%d/%s", mine.number, mine.protocol)
				}
			}
		}
	}
	return ""
}

func tolerates(pod *corev1.Pod, taint corev1.Taint) bool {
	return slices.ContainsFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool {
		if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
			return false
		}
		switch t.Operator {
		case corev1.TolerationOpExists:
			return true
		case "", corev1.TolerationOpEqual:
			return t.Key != "" && t.Value == taint.Value
		}
		return false
	})
}

// matchesNode reports whether the node matches the pod's nodeSelector and required affinity.
func matchesNode(node *corev1.Node, pod *corev1.Pod) bool {
	for key, value := range pod.Spec.NodeSelector {
		if has, ok := node.Labels[key]; !ok || has != value {
			return false
		}
	}
	a := pod.Spec.Affinity
	if a == nil || a.NodeAffinity == nil || a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return true
	}
	return slices.ContainsFunc(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms, func(term corev1.NodeSelectorTerm) bool {
		if len(term.MatchExpressions)+len(term.MatchFields) == 0 {
			return false // an empty term matches no node
		}
		for _, e := range term.MatchExpressions {
			if value, has := node.Labels[e.Key]; !matches(e, value, has) {
				return false
			}
		}
		for _, e := range term.MatchFields {
			if e.Key != "metadata.name" || !matches(e, node.Name, true) {
				return false
			}
		}
		return true
	})
}

func matches(e corev1.NodeSelectorRequirement, value string, has bool) bool {
	switch e.Operator {
	case corev1.NodeSelectorOpIn:
		return has && slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpNotIn:
		return !has || !slices.Contains(e.Values, value)
	case corev1.NodeSelectorOpExists:
		return has
	case corev1.NodeSelectorOpDoesNotExist:
		return !has
	case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
		mine, err := strconv.ParseInt(value, 10, 64)
		if err != nil || len(e.Values) != 1 || !has {
			return false
		}
		bound, err := strconv.ParseInt(e.Values[0], 10, 64)
		return err == nil && (e.Operator == corev1.NodeSelectorOpGt && mine > bound || e.Operator == corev1.NodeSelectorOpLt && mine < bound)
	}
	return false
}
