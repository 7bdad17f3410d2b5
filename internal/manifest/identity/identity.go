// Package identity derives what identifies a pod from its manifest: its UID, its hash and, if it
// has only the beginning of a name, its name. It is pure.
package identity

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// identityLength is the number of hex digits in a UID or Hash. It is that of the UIDs that kubelet
// gives to static pods.
const identityLength = 32

// Hash returns a hash of the pod's name, namespace, labels, annotations and spec, with all
// defaults. A pod whose hash has changed must be recreated.
func Hash(pod *corev1.Pod) string {
	return digest(string(content(pod)))
}

// UID derives the UID of a pod whose manifest sets none from its content, the node and the source,
// as kubelet does for static pods. The same manifest thus yields the same pod after a restart, and
// an edited or moved manifest yields a new pod.
func UID(pod *corev1.Pod, node, source string) types.UID {
	return types.UID(digest(string(content(pod)), node, source))
}

// The lengths of generated names are an API server's.
const (
	generatedSuffix    = 5
	maxGeneratedPrefix = 63 - generatedSuffix
)

// Name returns the name of a pod that has only generateName. It is the same each time a source is
// parsed, and differs between pods with different n.
func Name(pod *corev1.Pod, source string, n int) string {
	return NameOf(pod.GenerateName, content(pod), source, n)
}

// NameOf is like Name, for another object with its content.
func NameOf(prefix string, content []byte, source string, n int) string {
	suffix := digest(string(content), source, strconv.Itoa(n))[:generatedSuffix]
	return prefix[:min(len(prefix), maxGeneratedPrefix)] + suffix
}

func content(pod *corev1.Pod) []byte {
	spec := pod.Spec
	spec.EphemeralContainers = nil // they are added to a pod that exists
	dropIgnored(&spec)
	// Marshalling can't fail: all of this was decoded from JSON.
	raw, _ := json.Marshal(struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
		Spec                corev1.PodSpec
	}{pod.Name, pod.Namespace, pod.Labels, pod.Annotations, spec})
	return raw
}

// dropIgnored clears the fields that have no effect, so that they don't change a pod's identity.
func dropIgnored(s *corev1.PodSpec) {
	s.NodeName, s.NodeSelector, s.SchedulerName, s.Tolerations, s.TopologySpreadConstraints = "", nil, "", nil, nil
	s.PreemptionPolicy, s.Priority, s.PriorityClassName = nil, nil, ""
	if s.EnableServiceLinks != nil && *s.EnableServiceLinks {
		s.EnableServiceLinks = nil // the default
	}
	s.ServiceAccountName, s.DeprecatedServiceAccount, s.AutomountServiceAccountToken = "", "", nil
	s.Affinity, s.ReadinessGates = nil, nil
	if s.SecurityContext != nil {
		context := *s.SecurityContext
		context.FSGroupChangePolicy, context.SELinuxChangePolicy, context.WindowsOptions = nil, nil, nil
		s.SecurityContext = &context
	}
	s.Containers, s.InitContainers = withoutIgnored(s.Containers), withoutIgnored(s.InitContainers)
}

// withoutIgnored returns the containers without fields that have no effect.
func withoutIgnored(containers []corev1.Container) []corev1.Container {
	out := slices.Clone(containers)
	for i := range out {
		if s := out[i].SecurityContext; s != nil && s.WindowsOptions != nil {
			context := *s
			context.WindowsOptions = nil
			out[i].SecurityContext = &context
		}
	}
	return out
}

// digest hashes a list of parts unambiguously: ("a", "bc") and ("ab", "c") differ.
func digest(parts ...string) string {
	raw, _ := json.Marshal(parts)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:identityLength]
}
