package criconfig

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// File is a file of a volume whose content comes from the manifest. Path is relative to the volume.
type File struct {
	Path string
	Data []byte
	Mode int32
	// User owns the file, if it isn't nil. It is an ID in the container.
	User *int64
}

// Files returns the files of a volume with manifest.Projections, sorted by path. Of several files
// with the same path it returns the last.
func Files(pod *corev1.Pod, v *corev1.Volume, objects manifest.Objects, n Node) ([]File, error) {
	p := projection{pod: pod, objects: objects, node: n, mode: *manifest.DefaultMode(v), files: map[string]File{}}
	for _, part := range manifest.Projections(v) {
		var err error
		switch {
		case part.ConfigMap != nil:
			err = p.object(manifest.KindConfigMap, part.ConfigMap.Name, part.ConfigMap.Items, part.ConfigMap.Optional)
		case part.Secret != nil:
			p.token = strings.HasPrefix(part.Secret.Name, tokenPrefix(pod))
			err = p.object(manifest.KindSecret, part.Secret.Name, part.Secret.Items, part.Secret.Optional)
		case part.DownwardAPI != nil:
			err = p.downward(part.DownwardAPI.Items)
		}
		p.token = false
		if err != nil {
			return nil, fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	var out []File
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		out = append(out, p.files[name])
	}
	return out, nil
}

// TokenName returns the name of the secret that stands for the service account token number i of a
// pod.
func TokenName(pod *corev1.Pod, i int) string { return tokenPrefix(pod) + strconv.Itoa(i) }

func tokenPrefix(pod *corev1.Pod) string { return "token." + string(pod.UID) + "." }

// protect makes a token readable for the pod's processes only, by the kubelet's rule: for the user
// that all containers run as, and for fsGroup, which gets its right when the file is written. If
// the pod has neither, users that only images name must be able to read it.
func (f *File) protect(pod *corev1.Pod) {
	f.User = onlyUser(&pod.Spec)
	if f.User != nil || pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		f.Mode = 0o600
	}
}

// onlyUser returns the user that the pod's specification has all containers run as; nil if there is
// none. Ephemeral containers don't count: they come later.
func onlyUser(spec *corev1.PodSpec) (only *int64) {
	for _, list := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range list {
			var user *int64
			if spec.SecurityContext != nil {
				user = spec.SecurityContext.RunAsUser
			}
			if c := list[i].SecurityContext; c != nil && c.RunAsUser != nil {
				user = c.RunAsUser
			}
			if user == nil || only != nil && *only != *user {
				return nil
			}
			only = user
		}
	}
	return only
}

// projection collects the files of a volume.
type projection struct {
	pod     *corev1.Pod
	objects manifest.Objects
	node    Node
	mode    int32
	files   map[string]File
	token   bool // the part being added is a service account token
}

func (p *projection) add(name string, data []byte, mode *int32) {
	f := File{Path: path.Clean(name), Data: data, Mode: p.mode}
	if mode != nil {
		f.Mode = *mode
	}
	if p.token {
		f.protect(p.pod)
	}
	p.files[f.Path] = f
}

func (p *projection) object(kind, name string, items []corev1.KeyToPath, optional *bool) error {
	object, err := objectOf(p.pod, p.objects, kind, name, optional)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		for key, data := range object {
			p.add(key, data, nil)
		}
	}
	for _, item := range items {
		data, ok := object[item.Key]
		if !ok && !isTrue(optional) {
			return fmt.Errorf("%s has no key %q", objectName(kind, p.pod.Namespace, name), item.Key)
		}
		if ok {
			p.add(item.Path, data, item.Mode)
		}
	}
	return nil
}

func (p *projection) downward(items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		var value string
		var err error
		switch ref := item.FieldRef; {
		case ref == nil:
			value, err = resourceValue(p.pod, nil, item.ResourceFieldRef, p.node)
		case ref.FieldPath == "metadata.labels":
			value = lines(p.pod.Labels)
		case ref.FieldPath == "metadata.annotations":
			value = lines(p.pod.Annotations)
		default:
			value, err = fieldValue(p.pod, ref.FieldPath, Run{}, p.node)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", item.Path, err)
		}
		p.add(item.Path, []byte(value), item.Mode)
	}
	return nil
}

// lines formats a map as kubelet does: a sorted line key="value" for each key.
func lines(m map[string]string) string {
	var out []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, fmt.Sprintf("%s=%q", key, m[key]))
	}
	return strings.Join(out, "\n")
}

// SubPaths returns the subPath of each mount of a container that has one, by the mount's index. It
// expands the variables of subPathExpr.
func SubPaths(pod *corev1.Pod, c *corev1.Container, r Run, n Node) (map[int]string, error) {
	out := map[int]string{}
	env, err := environment(pod, c, r, n)
	if err != nil {
		return nil, err
	}
	for i, m := range c.VolumeMounts {
		field := fmt.Sprintf("volumeMounts[%d].subPathExpr", i)
		part := m.SubPath
		if m.SubPathExpr != "" {
			part = expand(m.SubPathExpr, lookup(env))
			switch {
			case part == "" || strings.Contains(part, "$("):
				return nil, invalidField(c, field, "%q expands to %q: set all of its variables in env", m.SubPathExpr, part)
			case path.IsAbs(part) || slices.Contains(strings.Split(part, "/"), "..") || strings.ContainsRune(part, 0):
				return nil, invalidField(c, field, "%q is not a path inside the volume", part)
			}
		}
		if part != "" {
			out[i] = part
		}
	}
	return out, nil
}
