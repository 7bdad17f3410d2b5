package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// identityLength is how many hex digits of a hash a UID or Hash has, as the
// UIDs of kubelet's static pods.
const identityLength = 32

// Hash tells one content of a pod from another: its names, labels, annotations
// and spec, with all defaults. A pod whose hash has changed must be made anew.
func Hash(pod *corev1.Pod) string {
	return digest(string(content(pod)))
}

// uid identifies a pod of a manifest that names no UID: by its content, the
// node and the source, as kubelet does for static pods. So the same manifest
// read again is the same pod, also after a restart, and an edited or moved one
// is another.
func uid(pod *corev1.Pod, o Origin) types.UID {
	return types.UID(digest(string(content(pod)), o.Node, o.Source))
}

func content(pod *corev1.Pod) []byte {
	spec := pod.Spec
	dropIgnored(&spec)
	// Neither of these can fail to be written: they were read from JSON.
	raw, _ := json.Marshal(struct {
		Name, Namespace     string
		Labels, Annotations map[string]string
		Spec                corev1.PodSpec
	}{pod.Name, pod.Namespace, pod.Labels, pod.Annotations, spec})
	return raw
}

// dropIgnored drops what makes no difference, to the identity of a pod neither.
func dropIgnored(s *corev1.PodSpec) {
	s.NodeName, s.NodeSelector, s.SchedulerName, s.Tolerations, s.TopologySpreadConstraints = "", nil, "", nil, nil
	s.EnableServiceLinks, s.PreemptionPolicy, s.Priority, s.PriorityClassName = nil, nil, nil, ""
	if s.SecurityContext != nil {
		context := *s.SecurityContext
		context.FSGroupChangePolicy = nil
		s.SecurityContext = &context
	}
}

// digest hashes parts so that no two lists of parts are hashed alike.
func digest(parts ...string) string {
	raw, _ := json.Marshal(parts)
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])[:identityLength]
}
