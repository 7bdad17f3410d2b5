package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// whole checks what a pod gets as a whole, beside what its containers do.
func (v *validator) whole() {
	s := &v.pod.Spec
	if r := s.Resources; r != nil {
		v.resources(r, "spec.resources")
		for list, has := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
			for name := range has {
				if _, huge := HugePageSize(name); huge && list == "requests" || name == corev1.ResourceEphemeralStorage {
					v.invalid("spec.resources."+list+"."+string(name), "only containers have it: set it there")
				}
			}
		}
		forEachContainer(v.pod, func(c *corev1.Container, at string, _ bool) {
			for name, limit := range r.Limits {
				if own, ok := c.Resources.Limits[name]; ok && own.Cmp(limit) > 0 {
					v.invalid(at+".resources.limits."+string(name), "%s is more than the pod's limit of %s", own.String(), limit.String())
				}
			}
		})
	}
	for name, q := range s.Overhead {
		v.quantity("spec.overhead", name, q)
	}
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN && s.HostNetwork {
		v.invalid("spec.setHostnameAsFQDN", "the node's name is the pod's with hostNetwork: set one of them")
	}
}

// image checks a volume that is one.
func (v *validator) image(i *corev1.ImageVolumeSource, at string) {
	switch {
	case i.Reference == "":
		v.missing(at+".reference", "")
	case strings.TrimSpace(i.Reference) != i.Reference:
		v.invalid(at+".reference", "%q has white space around it", i.Reference)
	}
	choice(v, at+".pullPolicy", i.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
}
