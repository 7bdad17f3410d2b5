package manifest

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/fields"
)

// Ignored returns the sorted paths of the fields in a pod's spec that are set but have no effect.
// The caller should warn about them.
func Ignored(pod *corev1.Pod) []string {
	var out []string
	for _, f := range fields.All() {
		if path, ok := strings.CutPrefix(f.Path, "spec."); ok && f.How == fields.Ignored && path != "nodeName" && isSet(reflect.ValueOf(&pod.Spec), path) {
			out = append(out, f.Path)
		}
	}
	return out
}

// isSet reports whether the field at path below v has a value that is not empty.
func isSet(v reflect.Value, path string) bool {
	for v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return false
		}
		v = v.Elem()
	}
	if path == "" {
		return !v.IsZero() && (v.Kind() != reflect.Slice && v.Kind() != reflect.Map || v.Len() > 0)
	}
	names := map[string][]int{}
	jsonFields(v.Type(), nil, names)
	name, rest, _ := strings.Cut(path, ".")
	name, list := strings.CutSuffix(name, "[]")
	index, ok := names[name]
	switch {
	case !ok:
		return false
	case !list:
		return isSet(v.FieldByIndex(index), rest)
	}
	for _, item := range v.FieldByIndex(index).Seq2() {
		if isSet(item, rest) {
			return true
		}
	}
	return false
}
