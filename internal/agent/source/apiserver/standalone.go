package apiserver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// tokenSpec is a service account token in a volume of a pod.
type tokenSpec struct {
	name      string // of the secret that replaces it
	namespace string
	account   string
	audience  string
	seconds   int64
	pod       metav1.ObjectMeta
}

const (
	tokenKey     = "token" // key of a token in the secret that replaces it
	tokenSeconds = 3600    // API server's default lifetime of a token in a volume
)

// standalonePod converts a pod of an API server to one that could be in a manifest. It clears
// fields for other components, and replaces what only an API server has by secrets and config maps.
// Their names depend on the pod's UID only, so that the result is always the same for the same pod.
func standalonePod(pod *corev1.Pod, handler string) (*corev1.Pod, []tokenSpec) {
	m := &pod.ObjectMeta
	out := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Namespace: m.Namespace, UID: m.UID, Labels: m.Labels, Annotations: m.Annotations},
		Spec:       *pod.Spec.DeepCopy(),
	}
	spec := &out.Spec
	account := spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	spec.ServiceAccountName, spec.DeprecatedServiceAccount, spec.AutomountServiceAccountToken = "", "", nil
	// The scheduler has applied the first two. The reporter of statuses applies readiness gates.
	spec.Affinity, spec.SchedulingGates, spec.ReadinessGates = nil, nil, nil
	// Package manifest refuses ephemeral containers, so they are appended to the containers.
	// restore moves them back.
	for i := range spec.EphemeralContainers {
		spec.Containers = append(spec.Containers, *manifest.Ephemeral(&spec.EphemeralContainers[i]))
	}
	spec.EphemeralContainers = nil
	spec.RuntimeClassName = nil
	if handler != "" {
		spec.RuntimeClassName = &handler
	}
	spec.Volumes = slices.DeleteFunc(spec.Volumes, func(v corev1.Volume) bool {
		return (!manifest.IsSupported(&v) || claimKind(&v) != "") && !manifest.IsMounted(out, v.Name)
	})
	var tokens []tokenSpec
	for i := range spec.Volumes {
		if spec.Volumes[i].Projected == nil {
			continue
		}
		for j := range spec.Volumes[i].Projected.Sources {
			from := &spec.Volumes[i].Projected.Sources[j]
			if from.ServiceAccountToken == nil {
				continue
			}
			t := tokenSpec{
				name: criconfig.TokenName(pod, len(tokens)), namespace: pod.Namespace, account: account,
				audience: from.ServiceAccountToken.Audience, seconds: tokenSeconds, pod: out.ObjectMeta,
			}
			if s := from.ServiceAccountToken.ExpirationSeconds; s != nil {
				t.seconds = *s
			}
			from.Secret = &corev1.SecretProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: t.name},
				Items:                []corev1.KeyToPath{{Key: tokenKey, Path: from.ServiceAccountToken.Path}},
			}
			from.ServiceAccountToken = nil
			tokens = append(tokens, t)
		}
	}
	for c := range podspec.Containers(spec) {
		c.EnvFrom = append([]corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: criconfig.ServicesName(pod)}, Optional: new(true),
		}}}, c.EnvFrom...)
	}
	return out, tokens
}

// isSynthetic reports whether an object was added by standalonePod, so that the server doesn't have
// it.
func (b *bound) isSynthetic(kind, name string) bool {
	if kind == manifest.KindConfigMap {
		return name == criconfig.ServicesName(b.pod)
	}
	for _, t := range b.tokens {
		if t.name == name {
			return true
		}
	}
	return false
}

// restore puts back what package manifest refuses: the service account, to which variables may
// refer, the ephemeral containers, which are the last containers of a standalone pod, and the
// generation, which the pod's status names.
func restore(plain, pod *corev1.Pod) {
	plain.Generation = pod.Generation
	spec, n := &plain.Spec, len(pod.Spec.Containers)
	spec.ServiceAccountName = pod.Spec.ServiceAccountName
	for i, c := range spec.Containers[n:] {
		spec.EphemeralContainers = append(spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon(c), TargetContainerName: pod.Spec.EphemeralContainers[i].TargetContainerName,
		})
	}
	spec.Containers = spec.Containers[:n:n]
}
