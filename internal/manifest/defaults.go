package manifest

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Defaults that an API server gives to a pod.
const (
	DefaultNamespace   = "default"
	defaultGrace       = int64(30)
	defaultMessagePath = "/dev/termination-log"
)

// setDefaults sets the fields that the manifest leaves out, as an API server would.
func setDefaults(pod *corev1.Pod) {
	setDefault(&pod.Namespace, DefaultNamespace)
	spec := &pod.Spec
	setDefault(&spec.RestartPolicy, corev1.RestartPolicyAlways)
	setDefault(&spec.DNSPolicy, corev1.DNSClusterFirst)
	if spec.TerminationGracePeriodSeconds == nil {
		spec.TerminationGracePeriodSeconds = new(defaultGrace)
	}
	if spec.SecurityContext == nil {
		spec.SecurityContext = &corev1.PodSecurityContext{}
	}
	for i := range spec.Volumes {
		if v := &spec.Volumes[i]; len(volumeKinds(v)) == 0 {
			v.EmptyDir = &corev1.EmptyDirVolumeSource{}
		}
		setVolumeDefaults(&spec.Volumes[i])
		if dir := spec.Volumes[i].EmptyDir; dir != nil && dir.Medium == corev1.StorageMediumHugePages {
			dir.Medium = hugePagesMedium(pod)
		}
		if image := spec.Volumes[i].Image; image != nil {
			setDefault(&image.PullPolicy, pullPolicy(image.Reference))
		}
		if h := spec.Volumes[i].HostPath; h != nil && h.Type == nil {
			h.Type = new(corev1.HostPathUnset)
		}
	}
	for i := range spec.InitContainers {
		setContainerDefaults(&spec.InitContainers[i], spec.HostNetwork)
	}
	for i := range spec.Containers {
		setContainerDefaults(&spec.Containers[i], spec.HostNetwork)
	}
	setPodResources(pod)
}

// hugePagesMedium returns the medium of a volume of huge pages without a page size: as in kubelet,
// the size is that which the containers use, if they use one size.
func hugePagesMedium(pod *corev1.Pod) corev1.StorageMedium {
	sizes := map[string]bool{}
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) {
		for name := range c.Resources.Limits {
			if _, huge := HugePageSize(name); huge {
				sizes[strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix)] = true
			}
		}
	})
	for size := range sizes {
		if len(sizes) == 1 {
			return corev1.StorageMediumHugePagesPrefix + corev1.StorageMedium(size)
		}
	}
	return corev1.StorageMediumHugePages
}

func setContainerDefaults(c *corev1.Container, hostNetwork bool) {
	setDefault(&c.ImagePullPolicy, pullPolicy(c.Image))
	setDefault(&c.TerminationMessagePath, defaultMessagePath)
	setDefault(&c.TerminationMessagePolicy, corev1.TerminationMessageReadFile)
	for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		setProbeDefaults(p)
	}
	setLifecycleDefaults(c.Lifecycle)
	for i := range c.Ports {
		p := &c.Ports[i]
		setDefault(&p.Protocol, corev1.ProtocolTCP)
		if hostNetwork {
			setDefault(&p.HostPort, p.ContainerPort)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from != nil && from.FieldRef != nil {
			setDefault(&from.FieldRef.APIVersion, "v1")
		}
		if from != nil {
			setDefaultDivisor(from.ResourceFieldRef)
		}
	}
	setDefaultRequests(&c.Resources)
}

// setDefaultRequests sets each missing request to the limit of the same resource.
func setDefaultRequests(r *corev1.ResourceRequirements) {
	for name, limit := range r.Limits {
		if _, ok := r.Requests[name]; ok {
			continue
		}
		if r.Requests == nil {
			r.Requests = corev1.ResourceList{}
		}
		r.Requests[name] = limit.DeepCopy()
	}
}

func setDefaultDivisor(ref *corev1.ResourceFieldSelector) {
	if ref != nil && ref.Divisor.IsZero() {
		ref.Divisor = resource.MustParse("1")
	}
}

// setDefault sets *value to fallback if it is zero.
func setDefault[T comparable](value *T, fallback T) {
	var zero T
	if *value == zero {
		*value = fallback
	}
}

// pullPolicy returns the default pull policy of an image. Only the tag latest is expected to move:
// an image with it is pulled, unless it came from an archive, which the policy "" stands for.
func pullPolicy(image string) corev1.PullPolicy {
	name, _, digest := strings.Cut(image, "@")
	if digest {
		return corev1.PullIfNotPresent
	}
	last := name[strings.LastIndex(name, "/")+1:]
	if _, tag, ok := strings.Cut(last, ":"); ok && tag != "latest" {
		return corev1.PullIfNotPresent
	}
	return ""
}

// forEachContainer calls f for all containers, in the order in which they start.
func forEachContainer(pod *corev1.Pod, f func(c *corev1.Container, path string, init bool)) {
	for i := range pod.Spec.InitContainers {
		f(&pod.Spec.InitContainers[i], indexed("spec.initContainers", i), true)
	}
	for i := range pod.Spec.Containers {
		f(&pod.Spec.Containers[i], indexed("spec.containers", i), false)
	}
	for i := range pod.Spec.EphemeralContainers {
		f(Ephemeral(&pod.Spec.EphemeralContainers[i]), indexed("spec.ephemeralContainers", i), false)
	}
}

// OnDisk reports whether a volume uses disk space on behalf of the pod.
func OnDisk(v *corev1.Volume) bool {
	return v.EmptyDir != nil && v.EmptyDir.Medium == corev1.StorageMediumDefault
}

// Ephemeral returns an ephemeral container as a container, without its target. Only pods from an
// API server have ephemeral containers.
func Ephemeral(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// oneOf lists the choices for a message, and reports whether value is one of them.
func oneOf[T ~string](value T, choices ...T) (string, bool) {
	words := make([]string, len(choices))
	for i, c := range choices {
		if words[i] = string(c); c == "" {
			words[i] = `""`
		}
	}
	return strings.Join(words, ", "), slices.Contains(choices, value)
}
