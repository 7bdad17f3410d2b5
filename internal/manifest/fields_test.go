package manifest

import (
	"reflect"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// fieldExists reports whether a pod has a field with the pattern.
func fieldExists(pattern string) bool {
	t := reflect.TypeFor[corev1.Pod]()
	for _, part := range strings.Split(pattern, ".") {
		name, isList := strings.CutSuffix(part, "[]")
		for t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return false
		}
		names := map[string][]int{}
		jsonFields(t, nil, names)
		index, ok := names[name]
		if !ok {
			return false
		}
		t = t.FieldByIndex(index).Type
		if isList {
			if t.Kind() != reflect.Slice {
				return false
			}
			t = t.Elem()
		}
	}
	return true
}
