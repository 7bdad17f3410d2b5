package manifest

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// volumeKinds returns the names of the volume sources that are set. A valid volume has exactly one.
func volumeKinds(v *corev1.Volume) []string {
	var out []string
	for _, kind := range []struct {
		name string
		set  bool
	}{
		{"emptyDir", v.EmptyDir != nil}, {"hostPath", v.HostPath != nil}, {"configMap", v.ConfigMap != nil},
		{"secret", v.Secret != nil}, {"downwardAPI", v.DownwardAPI != nil}, {"projected", v.Projected != nil}, {"image", v.Image != nil},
		{"persistentVolumeClaim", v.PersistentVolumeClaim != nil}, {"ephemeral", v.Ephemeral != nil},
	} {
		if kind.set {
			out = append(out, kind.name)
		}
	}
	return out
}

// defaultMode is the mode of files that come from the manifest.
const defaultMode = int32(0o644)

// DefaultMode returns the mode of the files in a volume. The volume must have Projections.
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

// valueFrom checks that exactly one source is set, and that source.
func (v *validator) valueFrom(from *corev1.EnvVarSource, at string) {
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
		checkKeyRef(v.report, at+".configMapKeyRef", f.Name, f.Key)
	}
	if f := from.SecretKeyRef; f != nil {
		set++
		checkKeyRef(v.report, at+".secretKeyRef", f.Name, f.Key)
	}
	if f := from.FileKeyRef; f != nil {
		set++
		v.fileKeyRef(at+".fileKeyRef", f)
	}
	const sources = "fieldRef, resourceFieldRef, configMapKeyRef, secretKeyRef and fileKeyRef"
	switch {
	case set == 0 && !v.faulty[at]:
		v.invalid(at, "empty: set one of %s, or remove it", sources)
	case set > 1:
		v.invalid(at, "more than one of %s is set: set only one of them", sources)
	}
}

// fileKeyRef checks a variable that is read from a file. As in an API server, the file must be in
// an emptyDir.
func (v *validator) fileKeyRef(at string, f *corev1.FileKeySelector) {
	switch i := slices.IndexFunc(v.pod.Spec.Volumes, func(vol corev1.Volume) bool { return vol.Name == f.VolumeName }); {
	case f.VolumeName == "":
		v.missing(at+".volumeName", "")
	case i < 0:
		v.invalid(at+".volumeName", "there is no volume %q in spec.volumes", f.VolumeName)
	case v.pod.Spec.Volumes[i].EmptyDir == nil:
		v.invalid(at+".volumeName", "volume %q is not an emptyDir", f.VolumeName)
	}
	checkFilePath(v.report, at+".path", f.Path, map[string]bool{})
	if f.Key == "" {
		v.missing(at+".key", "")
	} else if len(validation.IsRelaxedEnvVarName(f.Key)) > 0 {
		v.invalid(at+".key", "%q is not valid: use printable ASCII characters except =", f.Key)
	}
}

// checkObjectName reports a name that is missing or not valid for a config map or secret.
func checkObjectName(r *report, at, name string) {
	if name == "" {
		r.missing(at, "")
	} else if len(validation.IsDNS1123Subdomain(name)) > 0 {
		r.invalid(at, "%q is not valid: %s", name, subdomainRule)
	}
}

func checkKeyRef(r *report, at, name, key string) {
	checkObjectName(r, at+".name", name)
	if key == "" {
		r.missing(at+".key", "")
	} else if len(validation.IsConfigMapKey(key)) > 0 {
		r.invalid(at+".key", "%q is not a valid key: use letters, digits, -, _ and .", key)
	}
}

func checkEnvFrom(r *report, c *corev1.Container, at string) {
	for i, from := range c.EnvFrom {
		at := indexed(at+".envFrom", i)
		if from.Prefix != "" && len(validation.IsRelaxedEnvVarName(from.Prefix)) > 0 {
			r.invalid(at+".prefix", "%q is not a valid prefix: use printable ASCII characters except =", from.Prefix)
		}
		switch {
		case (from.ConfigMapRef == nil) == (from.SecretRef == nil):
			r.invalid(at, "set one of configMapRef and secretRef")
		case from.ConfigMapRef != nil:
			checkObjectName(r, at+".configMapRef.name", from.ConfigMapRef.Name)
		default:
			checkObjectName(r, at+".secretRef.name", from.SecretRef.Name)
		}
	}
}

// projections checks a volume whose files come from the manifest: one with Projections.
func (v *validator) projections(vol *corev1.Volume, at string) {
	checkMode(v.report, at+"."+volumeKinds(vol)[0]+".defaultMode", DefaultMode(vol))
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
			checkObjectName(v.report, at+".configMap.name", p.ConfigMap.Name)
			checkItems(v.report, at+".configMap.items", p.ConfigMap.Items, taken)
		case p.Secret != nil:
			name := at + ".secret.name"
			if vol.Secret != nil {
				name = at + ".secret.secretName"
			}
			checkObjectName(v.report, name, p.Secret.Name)
			checkItems(v.report, at+".secret.items", p.Secret.Items, taken)
		case p.DownwardAPI != nil:
			v.downward(at+".downwardAPI.items", p.DownwardAPI.Items, taken)
		case p.ServiceAccountToken != nil:
		case !v.faulty[at]:
			v.invalid(at, "set one of configMap, secret and downwardAPI")
		}
	}
}

func checkMode(r *report, at string, mode *int32) {
	if mode != nil && (*mode < 0 || *mode > 0o777) {
		r.invalid(at, "%d is not within 0…511 (0777): a leading 0 means octal in YAML, but not in JSON", *mode)
	}
}

func checkItems(r *report, at string, items []corev1.KeyToPath, taken map[string]bool) {
	for i, item := range items {
		at := indexed(at, i)
		if item.Key == "" {
			r.missing(at+".key", "")
		}
		checkFilePath(r, at+".path", item.Path, taken)
		checkMode(r, at+".mode", item.Mode)
	}
}

// checkFilePath reports a path that leads out of the volume or is already taken.
func checkFilePath(r *report, at, p string, taken map[string]bool) {
	switch {
	case p == "":
		r.missing(at, "")
	case path.IsAbs(p) || hasDotDot(p) || strings.HasPrefix(p, "..") || strings.ContainsRune(p, 0) || path.Clean(p) == ".":
		r.invalid(at, "%q is not a path inside the volume: begin it with a name, and don't use ..", p)
	case taken[path.Clean(p)]:
		r.invalid(at, "%q is already the path of another file: use another", p)
	}
	taken[path.Clean(p)] = true
}

// volumeFields are the fields of a pod that a file can contain. They don't change while the pod
// runs.
var volumeFields = []string{"metadata.name", "metadata.namespace", "metadata.uid", "metadata.labels", "metadata.annotations"}

func (v *validator) downward(at string, items []corev1.DownwardAPIVolumeFile, taken map[string]bool) {
	for i, item := range items {
		at := indexed(at, i)
		checkFilePath(v.report, at+".path", item.Path, taken)
		checkMode(v.report, at+".mode", item.Mode)
		switch f, r := item.FieldRef, item.ResourceFieldRef; {
		case (f == nil) == (r == nil):
			v.invalid(at, "set one of fieldRef and resourceFieldRef")
		case r != nil:
			if r.ContainerName == "" {
				v.missing(at+".resourceFieldRef.containerName", "")
			}
			v.resourceFieldRef(at+".resourceFieldRef", r)
		default:
			choice(v.report, at+".fieldRef.apiVersion", f.APIVersion, "v1")
			if _, _, keyed := SplitFieldPath(f.FieldPath); !keyed && !slices.Contains(volumeFields, f.FieldPath) {
				v.invalid(at+".fieldRef.fieldPath", "%q is not one of metadata.labels['key'], metadata.annotations['key'], %s", f.FieldPath, strings.Join(volumeFields, ", "))
			}
		}
	}
}

func checkSubPath(r *report, m *corev1.VolumeMount, at string) {
	if m.SubPath != "" && m.SubPathExpr != "" {
		r.invalid(at+".subPathExpr", "subPath is also set: set only one of them")
	}
	for _, p := range []struct{ field, path string }{{".subPath", m.SubPath}, {".subPathExpr", m.SubPathExpr}} {
		if path.IsAbs(p.path) || hasDotDot(p.path) || strings.ContainsRune(p.path, 0) {
			r.invalid(at+p.field, "%q is not a path inside the volume: begin it with a name, and don't use ..", p.path)
		}
	}
}
