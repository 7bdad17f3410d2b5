package manifest

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// podLevel checks the resources, overhead and host name of the pod as a whole.
func (v *validator) podLevel() {
	s := &v.pod.Spec
	if r := s.Resources; r != nil {
		checkResources(v.report, r, "spec.resources")
		for list, has := range map[string]corev1.ResourceList{"requests": r.Requests, "limits": r.Limits} {
			for name := range has {
				if name == corev1.ResourceEphemeralStorage {
					v.invalid("spec.resources."+list+"."+string(name), "not supported for the pod as a whole: set it on the containers")
				}
			}
		}
		for name, request := range r.Requests {
			if sum := Total(v.pod, RequestOf, name); sum.Cmp(request) > 0 {
				v.invalid("spec.resources.requests."+string(name), "%s is less than the %s that the containers request", request.String(), sum.String())
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
		checkQuantity(v.report, "spec.overhead", name, q)
	}
	v.hostnameOverride()
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN && s.HostNetwork {
		v.invalid("spec.setHostnameAsFQDN", "conflicts with hostNetwork, which gives the pod the node's name: set only one of them")
	}
}

// maxHostname is the kernel's limit of a host name.
const maxHostname = 64

func (v *validator) hostnameOverride() {
	const path = "spec.hostnameOverride"
	s := &v.pod.Spec
	if s.HostnameOverride == nil {
		return
	}
	switch name := *s.HostnameOverride; {
	case len(name) > maxHostname:
		v.invalid(path, "%q has more than %d characters", name, maxHostname)
	case len(validation.IsDNS1123Subdomain(name)) > 0:
		v.invalid(path, "%q is not valid: %s", name, subdomainRule)
	}
	if s.HostNetwork {
		v.invalid(path, "conflicts with hostNetwork, which gives the pod the node's name: set only one of them")
	}
	if s.SetHostnameAsFQDN != nil && *s.SetHostnameAsFQDN {
		v.invalid(path, "conflicts with setHostnameAsFQDN: set only one of them")
	}
}

// checkImageVolume checks a volume with the files of an image.
func checkImageVolume(r *report, i *corev1.ImageVolumeSource, at string) {
	switch {
	case i.Reference == "":
		r.missing(at+".reference", "")
	case strings.TrimSpace(i.Reference) != i.Reference:
		r.invalid(at+".reference", "%q has leading or trailing white space", i.Reference)
	}
	if i.PullPolicy != "" {
		choice(r, at+".pullPolicy", i.PullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	}
}
