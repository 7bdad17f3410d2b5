package criconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest"
)

// invalidField returns an error of the kind invalid argument about a field of a container.
func invalidField(c *corev1.Container, field, format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container %q: %s: %s", c.Name, field, fmt.Sprintf(format, args...)))
}

// fieldError is the error of a field of a container. It is of the kind invalid argument.
type fieldError struct {
	at    string
	cause error
}

// wrongField returns the error of a field of a container.
func wrongField(c *corev1.Container, field string, cause error) error {
	return &fieldError{fmt.Sprintf("container %q: %s", c.Name, field), cause}
}

func (e *fieldError) Error() string   { return e.at + ": " + e.cause.Error() }
func (e *fieldError) Unwrap() []error { return []error{errdefs.ErrInvalidArgument, e.cause} }

// NotFoundError says that a config map or secret that a pod references doesn't exist. What to do
// about it depends on where the pod comes from.
type NotFoundError struct{ Kind, Namespace, Name string }

func (e *NotFoundError) Error() string { return objectName(e.Kind, e.Namespace, e.Name) + " not found" }

type variable struct{ name, value string }

// environment resolves a container's variables in order. Each one may refer to earlier ones.
func environment(pod *corev1.Pod, c *corev1.Container, r Run, n Node) ([]variable, error) {
	var out []variable
	if links := pod.Spec.EnableServiceLinks; len(n.Services) > 0 {
		services := ServiceVariables(n.Services, pod.Namespace, links == nil || *links)
		for _, name := range slices.Sorted(maps.Keys(services)) {
			out = append(out, variable{name, string(services[name])})
		}
	}
	added := 0
	for i, from := range c.EnvFrom {
		if ref := from.ConfigMapRef; ref != nil && ref.Name == ServicesName(pod) {
			added++ // messages count what the user has written
		}
		variables, err := variablesFrom(pod, &from, r.Objects)
		if err != nil {
			return nil, wrongField(c, fmt.Sprintf("envFrom[%d]", i-added), err)
		}
		out = append(out, variables...)
	}
	for i, e := range c.Env {
		value, set := expand(e.Value, lookup(out)), true
		if e.ValueFrom != nil {
			var err error
			if value, set, err = valueFrom(pod, c, e.ValueFrom, r, n); err != nil {
				return nil, wrongField(c, fmt.Sprintf("env[%d].valueFrom", i), err)
			}
		}
		if set {
			out = append(out, variable{e.Name, value})
		}
	}
	return out, nil
}

// variablesFrom returns a variable for each key of an object that is a valid name.
func variablesFrom(pod *corev1.Pod, from *corev1.EnvFromSource, objects manifest.Objects) ([]variable, error) {
	var object manifest.Object
	var err error
	if ref := from.ConfigMapRef; ref != nil {
		object, err = objectOf(pod, objects, manifest.KindConfigMap, ref.Name, ref.Optional)
	} else {
		object, err = objectOf(pod, objects, manifest.KindSecret, from.SecretRef.Name, from.SecretRef.Optional)
	}
	var out []variable
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if name := from.Prefix + key; len(validation.IsRelaxedEnvVarName(name)) == 0 {
			out = append(out, variable{name, string(object[key])})
		}
	}
	return out, err
}

// valueFrom resolves a variable. set is false for an optional variable without a value.
func valueFrom(pod *corev1.Pod, c *corev1.Container, from *corev1.EnvVarSource, r Run, n Node) (value string, set bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = fieldValue(pod, from.FieldRef.FieldPath, r, n)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = resourceValue(pod, c, from.ResourceFieldRef, n)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		return keyValue(pod, r.Objects, manifest.KindConfigMap, (*corev1.SecretKeySelector)(ref))
	case from.FileKeyRef != nil:
		return fileValue(r.EnvFiles, from.FileKeyRef)
	}
	return keyValue(pod, r.Objects, manifest.KindSecret, from.SecretKeyRef)
}

// keyValue returns the value of a key in a config map or secret. The selectors of both kinds have
// the same fields.
func keyValue(pod *corev1.Pod, objects manifest.Objects, kind string, ref *corev1.SecretKeySelector) (value string, set bool, err error) {
	object, err := objectOf(pod, objects, kind, ref.Name, ref.Optional)
	if err != nil {
		return "", false, err
	}
	data, set := object[ref.Key]
	if !set && !isTrue(ref.Optional) {
		err = fmt.Errorf("%s has no key %q", objectName(kind, pod.Namespace, ref.Name), ref.Key)
	}
	return string(data), set, err
}

func objectName(kind, namespace, name string) string {
	if kind == manifest.KindSecret {
		return fmt.Sprintf("secret %s/%s", namespace, name)
	}
	return fmt.Sprintf("config map %s/%s", namespace, name)
}

// objectOf returns an object, or nil if it doesn't exist but is optional.
func objectOf(pod *corev1.Pod, objects manifest.Objects, kind, name string, optional *bool) (manifest.Object, error) {
	object, ok := objects[manifest.ObjectKey(kind, pod.Namespace, name)]
	if !ok && !isTrue(optional) {
		return nil, &NotFoundError{kind, pod.Namespace, name}
	}
	return object, nil
}

// lookup returns a function that finds the last variable with a name.
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
		out = append(out, expand(w, lookup(env)))
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
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
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

// resourceValue returns a limit or request of a container in units of the divisor, rounded up. A
// limit that isn't set defaults to the pod's, or else to what the node can allocate.
func resourceValue(pod *corev1.Pod, own *corev1.Container, ref *corev1.ResourceFieldSelector, n Node) (string, error) {
	c := own
	if ref.ContainerName != "" {
		if c = FindContainer(pod, ref.ContainerName); c == nil {
			return "", fmt.Errorf("there is no container %q", ref.ContainerName)
		}
	}
	kind, name, _ := strings.Cut(ref.Resource, ".")
	values := c.Resources.Requests
	if kind == "limits" {
		values = c.Resources.Limits
	}
	q := values[corev1.ResourceName(name)]
	if q.IsZero() && kind == "limits" {
		q = limitOfPod(pod, n)[corev1.ResourceName(name)]
	}
	if corev1.ResourceName(name) == corev1.ResourceCPU {
		return divideUp(q.MilliValue(), ref.Divisor.MilliValue()), nil
	}
	return divideUp(q.Value(), ref.Divisor.Value()), nil
}

// limitOfPod returns what a pod can use at most: its own limits, or else what the node allocates.
func limitOfPod(pod *corev1.Pod, n Node) corev1.ResourceList {
	out := maps.Clone(n.Allocatable)
	if pod.Spec.Resources != nil {
		for name, q := range pod.Spec.Resources.Limits {
			if _, ok := out[name]; ok && !q.IsZero() {
				out[name] = q
			}
		}
	}
	return out
}

// divideUp divides and rounds up. A divisor of 0 counts as 1.
func divideUp(value, divisor int64) string {
	divisor = max(divisor, 1)
	result := value / divisor
	if value%divisor != 0 {
		result++
	}
	return strconv.FormatInt(result, 10)
}
