package kubeletconfig

import (
	"encoding/json"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsv1 "k8s.io/component-base/logs/api/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"
)

// kindOf returns the kind of the values of a type of Kubernetes.
func kindOf(t reflect.Type) (kind, bool) {
	switch t {
	case reflect.TypeFor[metav1.Duration]():
		return duration, true
	case reflect.TypeFor[logsv1.TimeOrMetaDuration]():
		return nanoseconds, true
	case reflect.TypeFor[resource.QuantityValue]():
		return quantity, true
	case reflect.TypeFor[metav1.Time]():
		return timestamp, true
	case reflect.TypeFor[corev1.ResourceList]():
		return quantities, true
	case reflect.TypeFor[logsv1.VerbosityLevel]():
		return int32s, true
	case reflect.TypeFor[map[string]string]():
		return textMap, true
	case reflect.TypeFor[map[string]bool]():
		return boolMap, true
	case reflect.TypeFor[map[string][]string]():
		return textsMap, true
	}
	switch t.Kind() {
	case reflect.Bool:
		return boolean, true
	case reflect.Int32:
		return int32s, true
	case reflect.Int64:
		return int64s, true
	case reflect.Float64:
		return float, true
	case reflect.String:
		return text, true
	case reflect.Slice:
		switch t.Elem().Kind() {
		case reflect.String:
			return texts, true
		case reflect.Int32:
			return numbers, true
		case reflect.Struct:
			return objects, true
		}
	}
	return 0, false
}

// every calls f for the path of each field below a type that isn't a struct of fields.
func every(t reflect.Type, path string, pointer bool, f func(path string, t reflect.Type, pointer bool)) {
	if t.Kind() == reflect.Pointer {
		every(t.Elem(), path, true, f)
		return
	}
	if t.Kind() == reflect.Struct && !reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]()) {
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			if name == "" { // an embedded struct
				every(t.Field(i).Type, path, pointer, f)
				continue
			}
			every(t.Field(i).Type, join(path, name), false, f)
		}
		return
	}
	f(path, t, pointer)
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct {
		every(t.Elem(), path+"[]", false, f)
	}
}

// TestEveryField holds the list of fields against Kubernetes' type. If a new version of Kubernetes
// has a field more, decide what becomes of it, and list it.
func TestEveryField(t *testing.T) {
	listed := map[string]*field{}
	for i := range fieldList {
		f := &fieldList[i]
		if listed[f.path] != nil {
			t.Errorf("%s is listed twice", f.path)
		}
		listed[f.path] = f
	}
	every(reflect.TypeFor[kubeletv1beta1.KubeletConfiguration](), "", false, func(path string, typ reflect.Type, pointer bool) {
		f := listed[path]
		if f == nil {
			t.Errorf("%s, %v, is a field of Kubernetes' KubeletConfiguration and not listed: decide what becomes of it", path, typ)
			return
		}
		delete(listed, path)
		if k, known := kindOf(typ); !known || k != f.kind {
			t.Errorf("%s is %v, but listed as kind %d", path, typ, f.kind)
		}
		if pointer && !f.zero || !pointer && f.zero && typ.Kind() != reflect.Map && typ.Kind() != reflect.Slice {
			t.Errorf("%s: the zero value of %v (pointer: %v) is listed as %v", path, typ, pointer, f.zero)
		}
	})
	for path := range listed {
		t.Errorf("%s is listed, but no field of Kubernetes' KubeletConfiguration", path)
	}
}

func TestFieldsAreExplained(t *testing.T) {
	for _, f := range fieldList {
		if f.fate != inner && (f.fate == translated) != (f.key != "") || f.fate != translated && f.fate != inner && f.why == "" {
			t.Errorf("%s: key %q, why %q", f.path, f.key, f.why)
		}
		if f.fits != nil && f.fate != missing && f.fate != refused {
			t.Errorf("%s: only fields that are missing or refused have values that fit", f.path)
		}
		if strings.Contains(f.why, "|") {
			t.Errorf("%s: | ends a cell of the reference", f.path)
		}
		if conversions[f.path] != nil && f.fate != translated {
			t.Errorf("%s has a conversion, but isn't translated", f.path)
		}
	}
}

// TestWrittenZeros: kubeadm writes the type, with the zero values of what it doesn't set. They say
// nothing.
func TestWrittenZeros(t *testing.T) {
	written, err := yaml.Marshal(kubeletv1beta1.KubeletConfiguration{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kindName}})
	if err != nil || !strings.Contains(string(written), "shutdownGracePeriod: 0s") {
		t.Fatalf("%v\n%s", err, written)
	}
	path := filepath.Join(write(t, map[string]string{"c": string(written)}), "c")
	out, err := Read(path, "")
	if err != nil {
		t.Fatal(err)
	}
	// These two have the zero value of a number, and no omitempty.
	for _, n := range out.Silent {
		if !strings.HasPrefix(n.Field, "logging.options.") {
			t.Errorf("%v", n)
		}
	}
	if len(out.Values) > 0 || len(out.Missing) > 0 {
		t.Errorf("%v %v", out.Values, out.Missing)
	}
}
