package fields

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/huskd/husk/internal/network/policy/accept"
)

// TestObjectKinds compares the tables with the types of the API: they have each other's fields.
func TestObjectKinds(t *testing.T) {
	t.Parallel()
	types := map[string]any{
		"ConfigMap": corev1.ConfigMap{}, "Secret": corev1.Secret{}, "Service": corev1.Service{},
		"PersistentVolumeClaim": corev1.PersistentVolumeClaim{}, "PersistentVolume": corev1.PersistentVolume{},
		"Endpoints": corev1.Endpoints{}, "EndpointSlice": discoveryv1.EndpointSlice{}, //nolint:staticcheck // manifests still have Endpoints
		"NetworkPolicy": networkingv1.NetworkPolicy{}, "ClusterNetworkPolicy": accept.ClusterNetworkPolicy{},
	}
	for _, k := range objectKinds {
		listed := map[string]bool{}
		for _, f := range k.fields {
			if listed[f.Path] {
				t.Errorf("%s: %s is listed twice", k.kind, f.Path)
			}
			listed[f.Path] = true
		}
		var walk func(of reflect.Type, at string)
		walk = func(of reflect.Type, at string) {
			for of.Kind() == reflect.Pointer || of.Kind() == reflect.Slice {
				of = of.Elem()
			}
			if of.Kind() != reflect.Struct {
				t.Errorf("%s: %s isn't listed", k.kind, at)
				return
			}
			for i := range of.NumField() {
				f := of.Field(i)
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				path := strings.TrimPrefix(at+"."+name, ".")
				if f.Type.Kind() == reflect.Slice && f.Type.Elem().Kind() == reflect.Struct && !listed[path] {
					path += "[]"
				}
				switch {
				case listed[path]:
					delete(listed, path)
				case at == "" && (name == "" || name == "metadata" || name == "status"): // as described for workloads
				case name == "":
					walk(f.Type, at)
				case of == reflect.TypeFor[corev1.PersistentVolumeSource](): // the others have no effect, see about
				default:
					walk(f.Type, path)
				}
			}
		}
		typ := types[k.kind]
		if typ == nil {
			t.Fatalf("%s: no type is known", k.kind)
		}
		delete(types, k.kind)
		walk(reflect.TypeOf(typ), "")
		for path := range listed {
			t.Errorf("%s: %s is listed, but no field of the type", k.kind, path)
		}
	}
	for kind := range types {
		t.Errorf("%s isn't listed", kind)
	}
}
