package podstatus

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/cluster"
)

// Annotations of mirror pods, by which kubectl and the cluster's controllers recognize them.
const (
	hashAnnotation   = "kubernetes.io/config.hash"
	sourceAnnotation = "kubernetes.io/config.source"
)

// mirrorName returns the name of a pod's mirror. It ends in the node's name, as the kubelet's do.
func mirrorName(pod *corev1.Pod, node string) string { return pod.Name + "-" + node }

// mirrorOf returns the mirror of a pod that was declared elsewhere. The API server doesn't let it
// refer to other objects, so references are left out.
func mirrorOf(p agent.Pod, kind string, node *corev1.Node) *corev1.Pod {
	pod := p.Manifest
	out := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: mirrorName(pod, node.Name), Namespace: pod.Namespace, Labels: pod.Labels, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: new(true)}},
		},
		Spec: *pod.Spec.DeepCopy(),
	}
	for key, value := range pod.Annotations {
		out.Annotations[key] = value
	}
	hash := string(pod.UID)
	out.Annotations[cluster.MirrorAnnotation], out.Annotations[hashAnnotation], out.Annotations[sourceAnnotation] = hash, hash, kind
	out.Spec.NodeName = node.Name
	out.Spec.RuntimeClassName = nil
	out.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	dropped := map[string]bool{}
	out.Spec.Volumes = slices.DeleteFunc(out.Spec.Volumes, func(v corev1.Volume) bool {
		dropped[v.Name] = v.ConfigMap != nil || v.Secret != nil || v.Projected != nil
		return dropped[v.Name]
	})
	for _, list := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			c := &list[i]
			c.EnvFrom = nil
			c.Env = slices.DeleteFunc(c.Env, func(e corev1.EnvVar) bool {
				return e.ValueFrom != nil && (e.ValueFrom.ConfigMapKeyRef != nil || e.ValueFrom.SecretKeyRef != nil)
			})
			c.VolumeMounts = slices.DeleteFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return dropped[m.Name] })
		}
	}
	return out
}
