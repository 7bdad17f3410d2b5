package cri

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest"
)

// bad returns an error about a field of a container.
func bad(c *corev1.Container, field, format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container %q: %s: %s", c.Name, field, fmt.Sprintf(format, args...)))
}

type variable struct{ name, value string }

// environment resolves a container's variables in their order, each of which
// may use those before it.
func environment(pod *corev1.Pod, c *corev1.Container, r Run, n Node) ([]variable, error) {
	var out []variable
	for i, e := range c.Env {
		value := manifest.Expand(e.Value, lookup(out))
		if from := e.ValueFrom; from != nil {
			var err error
			if from.FieldRef != nil {
				value, err = fieldValue(pod, from.FieldRef.FieldPath, r, n)
			} else {
				value, err = resourceValue(pod, c, from.ResourceFieldRef, n)
			}
			if err != nil {
				return nil, bad(c, fmt.Sprintf("env[%d].valueFrom", i), "%v", err)
			}
		}
		out = append(out, variable{e.Name, value})
	}
	return out, nil
}

// lookup finds the last variable of a name.
func lookup(env []variable) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for i := len(env) - 1; i >= 0; i-- {
			if env[i].name == name {
				return env[i].value, true
			}
		}
		return "", false
	}
}

func expandAll(words []string, env []variable) []string {
	var out []string
	for _, w := range words {
		out = append(out, manifest.Expand(w, lookup(env)))
	}
	return out
}

func fieldValue(pod *corev1.Pod, path string, r Run, n Node) (string, error) {
	if field, key, ok := manifest.SplitFieldPath(path); ok {
		if field == "labels" {
			return pod.Labels[key], nil
		}
		return pod.Annotations[key], nil
	}
	podIPs := r.PodIPs
	if pod.Spec.HostNetwork && len(podIPs) == 0 {
		podIPs = n.IPs
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return n.Name, nil
	case "status.hostIP":
		return first(n.IPs), nil
	case "status.hostIPs":
		return strings.Join(n.IPs, ","), nil
	case "status.podIP":
		return first(podIPs), nil
	case "status.podIPs":
		return strings.Join(podIPs, ","), nil
	}
	return "", fmt.Errorf("there is no field %q", path)
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// resourceValue is a limit or request of a container, in units of the divisor,
// rounded up. A limit that is not set is all that the node has.
func resourceValue(pod *corev1.Pod, own *corev1.Container, ref *corev1.ResourceFieldSelector, n Node) (string, error) {
	c := own
	if ref.ContainerName != "" {
		if c = find(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("there is no container %q", ref.ContainerName)
		}
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	values := c.Resources.Requests
	if kind == "limits" {
		values = c.Resources.Limits
	}
	q, set := values[corev1.ResourceName(name)]
	if !set && kind == "limits" {
		switch corev1.ResourceName(name) {
		case corev1.ResourceCPU:
			q = *resource.NewQuantity(int64(n.CPUs), resource.DecimalSI)
		case corev1.ResourceMemory:
			q = *resource.NewQuantity(n.Memory, resource.BinarySI)
		}
	}
	if corev1.ResourceName(name) == corev1.ResourceCPU {
		return quotient(q.MilliValue(), ref.Divisor.MilliValue()), nil
	}
	return quotient(q.Value(), ref.Divisor.Value()), nil
}

// quotient divides and rounds up; a divisor of nothing is one.
func quotient(value, divisor int64) string {
	divisor = max(divisor, 1)
	result := value / divisor
	if value%divisor != 0 {
		result++
	}
	return strconv.FormatInt(result, 10)
}

// find returns the container of that name.
func find(pod *corev1.Pod, name string) *corev1.Container {
	for i := range pod.Spec.InitContainers {
		if c := &pod.Spec.InitContainers[i]; c.Name == name {
			return c
		}
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == name {
			return c
		}
	}
	return nil
}
