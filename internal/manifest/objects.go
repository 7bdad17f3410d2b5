package manifest

import (
	"bytes"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/document"
)

// The kinds of objects that pods can reference.
const (
	KindConfigMap = "ConfigMap"
	KindSecret    = "Secret"
	KindClaim     = "PersistentVolumeClaim"
	KindVolume    = "PersistentVolume"
)

// KindSecretUID is for what a cluster calls a secret, beside its data: an Object with a UIDKey.
// Pods have that of their imagePullSecrets.
const (
	KindSecretUID = "SecretUID"
	UIDKey        = "uid"
)

// Object is the data of a config map or a secret, by key, or an encoded claim.Claim or
// claim.Volume.
type Object map[string][]byte

// Objects holds config maps, secrets, claims and volumes by their ObjectKey.
type Objects map[string]Object

// ObjectKey returns the key of an object in Objects.
func ObjectKey(kind, namespace, name string) string { return kind + " " + namespace + "/" + name }

// Equal reports whether both hold the same objects with the same data.
func (o Objects) Equal(other Objects) bool {
	return maps.EqualFunc(o, other, func(x, y Object) bool { return maps.EqualFunc(x, y, bytes.Equal) })
}

// With returns both, with those of other in place of those of the same names.
func (o Objects) With(other Objects) Objects {
	out := Objects{}
	maps.Copy(out, o)
	maps.Copy(out, other)
	return out
}

// Of returns the objects that a pod references. Missing ones are left out. Claims have the path of
// their volume.
func (o Objects) Of(pod *corev1.Pod) Objects {
	out := Objects{}
	for _, login := range pod.Spec.ImagePullSecrets {
		key := ObjectKey(KindSecretUID, pod.Namespace, login.Name)
		if uid, ok := o[key]; ok {
			out[key] = uid
		}
	}
	References(pod, func(kind, name string) {
		key := ObjectKey(kind, pod.Namespace, name)
		object, ok := o[key]
		if ok && kind == KindClaim {
			object = o.bound(pod.Namespace+"/"+name, object)
		}
		if ok {
			out[key] = object
		}
	})
	return out
}

// References calls f for each reference of the pod to an object. An object may occur several times.
func References(pod *corev1.Pod, f func(kind, name string)) {
	for _, login := range pod.Spec.ImagePullSecrets {
		f(KindSecret, login.Name)
	}
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) {
		for _, from := range c.EnvFrom {
			if from.ConfigMapRef != nil {
				f(KindConfigMap, from.ConfigMapRef.Name)
			}
			if from.SecretRef != nil {
				f(KindSecret, from.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if from := e.ValueFrom; from != nil && from.ConfigMapKeyRef != nil {
				f(KindConfigMap, from.ConfigMapKeyRef.Name)
			} else if from != nil && from.SecretKeyRef != nil {
				f(KindSecret, from.SecretKeyRef.Name)
			}
		}
	})
	for i := range pod.Spec.Volumes {
		if c := pod.Spec.Volumes[i].PersistentVolumeClaim; c != nil {
			f(KindClaim, c.ClaimName)
		}
		for _, p := range Projections(&pod.Spec.Volumes[i]) {
			if p.ConfigMap != nil {
				f(KindConfigMap, p.ConfigMap.Name)
			}
			if p.Secret != nil {
				f(KindSecret, p.Secret.Name)
			}
		}
	}
}

// IsMounted reports whether a container of the pod mounts a volume or reads variables from it.
// Other volumes are not set up, like in kubelet: what they reference may be missing.
func IsMounted(pod *corev1.Pod, volume string) bool {
	found := false
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) {
		found = found || slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == volume }) ||
			slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
				return e.ValueFrom != nil && e.ValueFrom.FileKeyRef != nil && e.ValueFrom.FileKeyRef.VolumeName == volume
			})
	})
	return found
}

// IsSupported reports whether a volume is of a kind that can be set up.
func IsSupported(v *corev1.Volume) bool {
	return len(volumeKinds(v)) > 0 || v.VolumeSource == (corev1.VolumeSource{})
}

// Projections returns the sources of a volume whose files come from the manifest, and nil for other
// volumes. A configMap, secret or downwardAPI volume is returned as a single source.
func Projections(v *corev1.Volume) []corev1.VolumeProjection {
	switch {
	case v.ConfigMap != nil:
		c := v.ConfigMap
		return []corev1.VolumeProjection{{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: c.LocalObjectReference, Items: c.Items, Optional: c.Optional}}}
	case v.Secret != nil:
		s := v.Secret
		return []corev1.VolumeProjection{{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: s.SecretName}, Items: s.Items, Optional: s.Optional}}}
	case v.DownwardAPI != nil:
		return []corev1.VolumeProjection{{DownwardAPI: &corev1.DownwardAPIProjection{Items: v.DownwardAPI.Items}}}
	case v.Projected != nil:
		return v.Projected.Sources
	}
	return nil
}

// maxObjectSize is the maximum size of an object's data. It is the API server's.
const maxObjectSize = 1 << 20

// object parses a config map or a secret.
func (p *parser) object(doc *document.Node, kind, subject string) {
	if name := nameOf(doc); name != "" {
		subject = map[string]string{KindConfigMap: "config map ", KindSecret: "secret "}[kind] + name
	}
	r := newReport(subject)
	d := &decoder{report: r, anyField: true}
	data := Object{}
	var secret corev1.Secret
	config := corev1.ConfigMap{}
	m := &config.ObjectMeta
	if kind == KindSecret {
		d.decode(doc, reflect.ValueOf(&secret).Elem(), place{})
		m = &secret.ObjectMeta
		maps.Copy(data, secret.Data)
		for key, value := range secret.StringData {
			data[key] = []byte(value)
		}
	} else {
		d.decode(doc, reflect.ValueOf(&config).Elem(), place{})
		maps.Copy(data, config.BinaryData)
		for key, value := range config.Data {
			if _, ok := data[key]; ok {
				r.invalid("data."+key, "binaryData has the same key: remove one")
			}
			data[key] = []byte(value)
		}
	}
	setDefault(&m.Namespace, DefaultNamespace)
	if m.Name == "" {
		r.missing("metadata.name", "")
	} else if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid: %s", m.Name, subdomainRule)
	}
	if len(validation.IsDNS1123Label(m.Namespace)) > 0 {
		r.invalid("metadata.namespace", "%q is not valid: %s", m.Namespace, labelRule)
	}
	size := 0
	for key, value := range data {
		size += len(value)
		if len(validation.IsConfigMapKey(key)) > 0 {
			r.invalid("data."+key, "%q is not a valid key: use at most 253 letters, digits, -, _ and ., and don't begin with two dots", key)
		}
	}
	if size > maxObjectSize {
		r.invalid("data", "%d bytes in total: at most %d are allowed", size, maxObjectSize)
	}
	p.problems = append(p.problems, r.sorted()...)
	p.more += r.more
	p.checkUnique(doc, kind, m, subject)
	p.keep(doc, kind, m)
	p.objects[ObjectKey(kind, m.Namespace, m.Name)] = data
}
