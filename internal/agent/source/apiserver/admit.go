package apiserver

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/sysctl"
)

// outOf is the beginning of the reasons for which a critical pod makes others leave.
const outOf = "OutOf"

// unexpected is the reason of a pod that fails because the scheduler's view of the node was wrong.
const unexpected = "UnexpectedAdmissionError"

// admits decides whether the node runs a pod that the agent doesn't know. Like kubelet's, the
// decision is final, and comes before anything else about the pod is looked at.
func (s *Source) admits(b *bound, node *corev1.Node, pod *corev1.Pod) bool {
	if b.admitted || b.rejected {
		return b.admitted
	}
	c := candidate{pod: pod, node: node, others: s.others(pod), pressure: s.Pressure(), sysctls: s.Sysctls, appArmor: s.AppArmor}
	why := c.admit()
	if strings.HasPrefix(why.Reason, outOf) && criconfig.Critical(pod) {
		if why = s.makeRoom(b, c, why); why.Reason == "" {
			return false // until the evicted pods have ended
		}
	}
	if why.Reason == "" && s.Devices != nil {
		decided, err := s.Devices(pod)
		if !decided {
			return false
		}
		if err != nil {
			why = admission.Refusal{Reason: unexpected, Message: "Allocate failed due to " + err.Error() + ", which is unexpected"}
		}
	}
	if why.Reason != "" {
		b.rejected = true
		s.Log.Warn("API server: the node doesn't admit a pod", "pod", pod.Namespace+"/"+pod.Name, "reason", why.Reason, "message", why.Message)
		s.Rejected(pod, why)
		return false
	}
	b.admitted = true
	return true
}

// makeRoom evicts pods for a critical pod that isn't admitted because of short resources. It
// returns why the pod is rejected nevertheless: because of something else, or because too few pods
// may be evicted.
func (s *Source) makeRoom(b *bound, c candidate, short admission.Refusal) admission.Refusal {
	if why := first(c.checkAffinity, c.checkPorts, c.checkTaints, c.checkAppArmor); why.Reason != "" {
		return why
	}
	others := slices.DeleteFunc(c.others, func(o *corev1.Pod) bool { return slices.Contains(b.preempted, o.UID) })
	victims, err := admission.Victims(c.pod, others, admission.Short(c.node.Status.Allocatable, c.pod, others))
	if err != nil {
		return admission.Refusal{Reason: unexpected, Message: "no room for the critical pod: " + err.Error()}
	}
	if len(victims)+len(b.preempted) == 0 {
		return short // of what the node doesn't have at all
	}
	for _, v := range victims {
		if err := s.Preempt(v.UID); err != nil {
			s.Log.Error("API server: a pod was not evicted for a critical one", "pod", v.Namespace+"/"+v.Name, "critical", c.pod.Namespace+"/"+c.pod.Name, "error", err)
			continue
		}
		b.preempted = append(b.preempted, v.UID)
	}
	return admission.Refusal{}
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

// candidate is a pod that may run on a node beside other pods. Its methods are pure.
type candidate struct {
	pod      *corev1.Pod
	node     *corev1.Node
	others   []*corev1.Pod
	pressure []corev1.NodeConditionType // that the node is under
	sysctls  sysctl.Allowlist
	appArmor bool // the node has AppArmor
}

// admit returns why the node doesn't run the pod. The zero value admits it. The checks, their order
// and their reasons are kubelet's.
func (c candidate) admit() admission.Refusal {
	return first(c.checkPressure, c.checkSysctls, c.checkOS, c.checkResources, c.checkAffinity, c.checkPorts, c.checkTaints, c.checkAppArmor)
}

// first returns the first refusal of the checks.
func first(checks ...func() (reason, message string)) admission.Refusal {
	for _, check := range checks {
		if reason, message := check(); reason != "" {
			return admission.Refusal{Reason: reason, Message: message}
		}
	}
	return admission.Refusal{}
}

func (c candidate) checkPressure() (reason, message string) {
	if message := eviction.Refuse(c.pressure, c.pod, tolerates); message != "" {
		return podplan.ReasonEvicted, message
	}
	return "", ""
}

func (c candidate) checkSysctls() (reason, message string) {
	if security := c.pod.Spec.SecurityContext; security != nil {
		for _, setting := range security.Sysctls {
			if err := c.sysctls.Check(setting.Name, c.pod.Spec.HostNetwork, c.pod.Spec.HostIPC); err != nil {
				return "SysctlForbidden", err.Error()
			}
		}
	}
	return "", ""
}

func (c candidate) checkOS() (reason, message string) {
	const text = "the pod is for %s, the node runs %s"
	if os, ok := c.pod.Labels[corev1.LabelOSStable]; ok && os != string(corev1.Linux) {
		return "PodOSSelectorNodeLabelDoesNotMatch", fmt.Sprintf(text, os, corev1.Linux)
	}
	if os := c.pod.Spec.OS; os != nil && os.Name != corev1.Linux {
		return "PodOSNotSupported", fmt.Sprintf(text, os.Name, corev1.Linux)
	}
	return "", ""
}

func (c candidate) checkResources() (reason, message string) {
	if has, limited := c.node.Status.Allocatable[corev1.ResourcePods]; limited && int64(len(c.others)+1) > has.Value() {
		return outOf + "pods", fmt.Sprintf("the node already has %d pods, its maximum", len(c.others))
	}
	for _, name := range requestedResources(c.pod) {
		asked := criconfig.Requested(c.pod, name)
		used := resource.Quantity{}
		for _, o := range c.others {
			used.Add(criconfig.Requested(o, name))
		}
		total := used.DeepCopy()
		total.Add(asked)
		has, limited := c.node.Status.Allocatable[name]
		_, huge := manifest.HugePageSize(name)
		// An extended resource that the node doesn't have may be one of the cluster.
		if (limited || huge) && !asked.IsZero() && total.Cmp(has) > 0 {
			return outOf + string(name), fmt.Sprintf("the pod requests %s of %s, but %s of the node's %s are already requested", asked.String(), name, used.String(), has.String())
		}
	}
	return "", ""
}

// requestedResources returns the resources that a pod requests, the kubelet's own first.
func requestedResources(pod *corev1.Pod) []corev1.ResourceName {
	own := []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage}
	lists := []corev1.ResourceList{pod.Spec.Overhead}
	if pod.Spec.Resources != nil {
		lists = append(lists, pod.Spec.Resources.Requests)
	}
	for c := range podspec.Containers(&pod.Spec) {
		lists = append(lists, c.Resources.Requests)
	}
	more := map[corev1.ResourceName]bool{}
	for _, list := range lists {
		for name := range list {
			more[name] = !slices.Contains(own, name)
		}
	}
	maps.DeleteFunc(more, func(_ corev1.ResourceName, is bool) bool { return !is })
	return append(own, slices.Sorted(maps.Keys(more))...)
}

func (c candidate) checkAffinity() (reason, message string) {
	if matchesNode(c.node, c.pod) {
		return "", ""
	}
	return "NodeAffinity", "the node's labels don't match the pod's nodeSelector or affinity"
}

func (c candidate) checkPorts() (reason, message string) {
	if taken := portConflict(c.pod, c.others); taken != "" {
		return "NodePorts", "host port " + taken + " is used by another pod"
	}
	return "", ""
}

func (c candidate) checkTaints() (reason, message string) {
	for _, t := range c.node.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && !tolerates(c.pod, t) {
			return "TaintToleration", fmt.Sprintf("the pod doesn't tolerate the node's taint %s", t.ToString())
		}
	}
	return "", ""
}

// checkAppArmor rejects a pod that asks for a profile which the node can't apply.
func (c candidate) checkAppArmor() (reason, message string) {
	confined := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	asked := c.pod.Spec.SecurityContext != nil && confined(c.pod.Spec.SecurityContext.AppArmorProfile)
	for c := range podspec.Containers(&c.pod.Spec) {
		asked = asked || c.SecurityContext != nil && confined(c.SecurityContext.AppArmorProfile)
	}
	if asked && !c.appArmor {
		return "AppArmor", "the pod has an AppArmor profile, but the node has no AppArmor: remove the profile"
	}
	return "", ""
}

// portConflict returns a host port of the pod that another pod also uses, or "".
func portConflict(pod *corev1.Pod, others []*corev1.Pod) string {
	for _, mine := range lastingPorts(pod) {
		for _, o := range others {
			for _, theirs := range lastingPorts(o) {
				if podspec.SameHostPort(mine, theirs) {
					return fmt.Sprintf("%d/%s", mine.HostPort, podspec.Protocol(mine.Protocol))
				}
			}
		}
	}
	return ""
}

// lastingPorts returns the ports of the containers that run as long as the pod.
func lastingPorts(pod *corev1.Pod) (out []corev1.ContainerPort) {
	for c := range podspec.Lasting(&pod.Spec) {
		out = append(out, c.Ports...)
	}
	return out
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
