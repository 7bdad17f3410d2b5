package manifest

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// kindsOf returns the kinds that a volume is said to be of.
func volumeKinds(v *corev1.Volume) []string {
	var out []string
	for _, kind := range []struct {
		name string
		set  bool
	}{
		{"emptyDir", v.EmptyDir != nil}, {"hostPath", v.HostPath != nil}, {"configMap", v.ConfigMap != nil},
		{"secret", v.Secret != nil}, {"downwardAPI", v.DownwardAPI != nil}, {"projected", v.Projected != nil}, {"image", v.Image != nil},
	} {
		if kind.set {
			out = append(out, kind.name)
		}
	}
	return out
}

// defaultMode of files that come from the manifest.
const defaultMode = int32(0o644)

// DefaultMode is the mode of the files of a volume of Projections.
func DefaultMode(v *corev1.Volume) *int32 {
	switch {
	case v.ConfigMap != nil:
		return v.ConfigMap.DefaultMode
	case v.Secret != nil:
		return v.Secret.DefaultMode
	case v.DownwardAPI != nil:
		return v.DownwardAPI.DefaultMode
	}
	return v.Projected.DefaultMode
}

func setVolumeDefaults(v *corev1.Volume) {
	mode := new(defaultMode)
	for _, p := range []struct {
		set bool
		to  func() **int32
	}{
		{v.ConfigMap != nil, func() **int32 { return &v.ConfigMap.DefaultMode }},
		{v.Secret != nil, func() **int32 { return &v.Secret.DefaultMode }},
		{v.DownwardAPI != nil, func() **int32 { return &v.DownwardAPI.DefaultMode }},
		{v.Projected != nil, func() **int32 { return &v.Projected.DefaultMode }},
	} {
		if p.set && *p.to() == nil {
			*p.to() = mode
		}
	}
	for _, p := range Projections(v) {
		if p.DownwardAPI == nil {
			continue
		}
		for i := range p.DownwardAPI.Items {
			if f := p.DownwardAPI.Items[i].FieldRef; f != nil {
				setDefault(&f.APIVersion, "v1")
			}
			setDefaultDivisor(p.DownwardAPI.Items[i].ResourceFieldRef)
		}
	}
}

// contents checks what is put into a container from elsewhere: variables, files
// and parts of volumes.
type contents struct{ *validator }

// valueFrom has exactly one of its kinds.
func (v contents) valueFrom(from *corev1.EnvVarSource, at string) {
	set := 0
	if f := from.FieldRef; f != nil {
		set++
		v.fieldRef(at+".fieldRef", f)
	}
	if f := from.ResourceFieldRef; f != nil {
		set++
		v.resourceFieldRef(at+".resourceFieldRef", f)
	}
	if f := from.ConfigMapKeyRef; f != nil {
		set++
		v.keyRef(at+".configMapKeyRef", f.Name, f.Key)
	}
	if f := from.SecretKeyRef; f != nil {
		set++
		v.keyRef(at+".secretKeyRef", f.Name, f.Key)
	}
	switch {
	case set == 0 && !v.faulty[at]:
		v.invalid(at, "nothing in it: set one of fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef, or remove it")
	case set > 1:
		v.invalid(at, "more than one of fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef is set: set one of them")
	}
}

// objectName notes a name that no config map and no secret can have.
func (v contents) objectName(at, name string) {
	if name == "" {
		v.missing(at, "")
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		v.invalid(at, "%q can't be one: %s", name, subdomainRule)
	}
}

func (v contents) keyRef(at, name, key string) {
	v.objectName(at+".name", name)
	if key == "" {
		v.missing(at+".key", "")
	} else if len(validation.IsConfigMapKey(key)) > 0 {
		v.invalid(at+".key", "%q can't be a key: use letters, digits, -, _ and .", key)
	}
}

func (v contents) envFrom(c *corev1.Container, at string) {
	for i, from := range c.EnvFrom {
		at := indexed(at+".envFrom", i)
		if from.Prefix != "" && len(validation.IsRelaxedEnvVarName(from.Prefix)) > 0 {
			v.invalid(at+".prefix", "%q can't begin a variable: use printable ASCII letters but =", from.Prefix)
		}
		switch {
		case (from.ConfigMapRef == nil) == (from.SecretRef == nil):
			v.invalid(at, "set one of configMapRef and secretRef")
		case from.ConfigMapRef != nil:
			v.objectName(at+".configMapRef.name", from.ConfigMapRef.Name)
		default:
			v.objectName(at+".secretRef.name", from.SecretRef.Name)
		}
	}
}

// payload checks a volume whose files come from the manifest.
func (v contents) payload(vol *corev1.Volume, at string) {
	v.mode(at+"."+volumeKinds(vol)[0]+".defaultMode", DefaultMode(vol))
	taken := map[string]bool{}
	for i, p := range Projections(vol) {
		at := at
		if vol.Projected != nil {
			at = indexed(at+".projected.sources", i)
		}
		switch {
		case (p.ConfigMap != nil && p.Secret != nil) || (p.DownwardAPI != nil && (p.ConfigMap != nil || p.Secret != nil)):
			v.invalid(at, "set one of configMap, secret and downwardAPI")
		case p.ConfigMap != nil:
			v.objectName(at+".configMap.name", p.ConfigMap.Name)
			v.items(at+".configMap.items", p.ConfigMap.Items, taken)
		case p.Secret != nil:
			name := at + ".secret.name"
			if vol.Secret != nil {
				name = at + ".secret.secretName"
			}
			v.objectName(name, p.Secret.Name)
			v.items(at+".secret.items", p.Secret.Items, taken)
		case p.DownwardAPI != nil:
			v.downward(at+".downwardAPI.items", p.DownwardAPI.Items, taken)
		case !v.faulty[at]:
			v.invalid(at, "set one of configMap, secret and downwardAPI")
		}
	}
}

func (v contents) mode(at string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		v.invalid(at, "%d is not within 0…511, which is 0777: a number that begins with 0 is octal in YAML, not in JSON", *mode)
	}
}

func (v contents) items(at string, items []corev1.KeyToPath, taken map[string]bool) {
	for i, item := range items {
		at := indexed(at, i)
		if item.Key == "" {
			v.missing(at+".key", "")
		}
		v.filePath(at+".path", item.Path, taken)
		v.mode(at+".mode", item.Mode)
	}
}

// filePath notes a path that leads out of a volume, or that another file has.
func (v contents) filePath(at, p string, taken map[string]bool) {
	switch {
	case p == "":
		v.missing(at, "")
	case path.IsAbs(p) || hasDotDot(p) || strings.HasPrefix(p, "..") || strings.ContainsRune(p, 0) || path.Clean(p) == ".":
		v.invalid(at, "%q doesn't lead down from the volume: begin it with a name, without two dots", p)
	case taken[path.Clean(p)]:
		v.invalid(at, "%q is another file's too: use another", p)
	}
	taken[path.Clean(p)] = true
}

// volumeFields are the fields of a pod that a file can have. Others may change
// while it is there.
var volumeFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"}

func (v contents) downward(at string, items []corev1.DownwardAPIVolumeFile, taken map[string]bool) {
	for i, item := range items {
		at := indexed(at, i)
		v.filePath(at+".path", item.Path, taken)
		v.mode(at+".mode", item.Mode)
		switch f, r := item.FieldRef, item.ResourceFieldRef; {
		case (f == nil) == (r == nil):
			v.invalid(at, "set one of fieldRef and resourceFieldRef")
		case r != nil:
			if r.ContainerName == "" {
				v.missing(at+".resourceFieldRef.containerName", "")
			}
			v.resourceFieldRef(at+".resourceFieldRef", r)
		default:
			choice(v.validator, at+".fieldRef.apiVersion", f.APIVersion, "v1")
			if _, _, keyed := SplitFieldPath(f.FieldPath); !keyed && !slices.Contains(volumeFields, f.FieldPath) {
				v.invalid(at+".fieldRef.fieldPath", "%q is not one of metadata.labels['key'], metadata.annotations['key'], %s", f.FieldPath, strings.Join(volumeFields, ", "))
			}
		}
	}
}

func (v contents) subPath(m *corev1.VolumeMount, at string) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		v.invalid(at+".subPathExpr", "subPath is set too: set one of them")
	}
	for _, p := range []struct{ field, path string }{{".subPath", m.SubPath}, {".subPathExpr", m.SubPathExpr}} {
		if path.IsAbs(p.path) || hasDotDot(p.path) || strings.ContainsRune(p.path, 0) {
			v.invalid(at+p.field, "%q doesn't lead down from the volume: begin it with a name, without two dots", p.path)
		}
	}
}
