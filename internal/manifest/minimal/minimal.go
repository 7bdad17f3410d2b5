// Package minimal writes manifests that say no more than they must: what package manifest would add
// by itself is left out. It is pure.
package minimal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/manifest"
)

// stays are the fields that are never left out: none has a default, except for emptyDir, without
// which a volume would look unfinished. Most of a large manifest consists of these, so trying them
// would take long.
var stays = []string{"apiVersion", "kind", "name", "image", "command", "args", "value", "key", "mountPath", "containerPort", "emptyDir"}

// Pod returns a manifest in YAML of which manifest.Parse makes the same pod, whatever its node. It
// fails if the pod is from an API server and has what Husk refuses in manifests.
func Pod(pod *corev1.Pod) ([]byte, error) {
	pod = pod.DeepCopy()
	pod.APIVersion, pod.Kind = "v1", "Pod"
	pod.Status, pod.Spec.EphemeralContainers = corev1.PodStatus{}, nil
	want, err := parse(pod)
	if err != nil {
		return nil, fmt.Errorf("pod %s/%s can't be written as a manifest: %w", pod.Namespace, pod.Name, err)
	}
	want.APIVersion, want.Kind = pod.APIVersion, pod.Kind
	w := &writer{want: want}
	raw, err := json.Marshal(want)
	if err != nil {
		return nil, err
	}
	numbers := json.NewDecoder(bytes.NewReader(raw))
	numbers.UseNumber() // as they are: some are too large for a float
	if err := numbers.Decode(&w.all); err != nil {
		return nil, err
	}
	w.shorten(w.all)
	if raw, err = json.Marshal(w.all); err != nil {
		return nil, err
	}
	return yaml.JSONToYAML(raw)
}

// parse returns the only pod of a manifest.
func parse(of any) (*corev1.Pod, error) {
	raw, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	file, err := manifest.Parse(raw, manifest.Origin{File: "manifest", Source: "manifest"})
	if err != nil {
		return nil, err
	}
	return &file.Pods[0], nil
}

type writer struct {
	want *corev1.Pod
	all  map[string]any // the manifest
}

// same reports whether the manifest still means the pod.
func (w *writer) same() bool {
	got, err := parse(w.all)
	return err == nil && got.Name == w.want.Name && got.Namespace == w.want.Namespace && equality.Semantic.DeepEqual(got.Spec, w.want.Spec) &&
		maps.Equal(got.Labels, w.want.Labels) && maps.Equal(got.Annotations, w.want.Annotations)
}

// shorten removes the fields below one that change nothing.
func (w *writer) shorten(value any) {
	switch v := value.(type) {
	case []any:
		for _, item := range v {
			w.shorten(item)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			field := v[key]
			if !slices.Contains(stays, key) {
				delete(v, key)
				if w.same() {
					continue
				}
				v[key] = field
			}
			w.shorten(field)
		}
	}
}
