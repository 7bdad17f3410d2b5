package podstatus

import (
	"encoding/json"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// statusPatch returns the strategic merge patch that changes the status of a pod on the server, as
// long as its UID is the same. It keeps what others write at the same time: for lists that the
// server merges by key, it says what to add and what to delete.
func statusPatch(pod *corev1.Pod, status corev1.PodStatus) ([]byte, error) {
	before, err := fieldsOf(pod.Status)
	if err != nil {
		return nil, err
	}
	after, err := fieldsOf(status)
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	for key, value := range after {
		if !reflect.DeepEqual(before[key], value) {
			patch[key] = value
		}
	}
	for key := range before {
		if _, ok := after[key]; !ok {
			patch[key] = nil
		}
	}
	for _, key := range []string{"podIPs", "hostIPs"} { // the server merges these lists by address
		if list, ok := patch[key].([]any); ok {
			patch[key] = append([]any{map[string]any{"$patch": "replace"}}, list...)
		}
	}
	if _, ok := patch["conditions"]; ok {
		if patch["conditions"], err = conditionsPatch(pod.Status.Conditions, status.Conditions); err != nil {
			return nil, err
		}
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": patch})
}

// conditionsPatch returns the changed conditions, each complete, and those to delete.
func conditionsPatch(before, after []corev1.PodCondition) (patch []any, err error) {
	for _, c := range after {
		if slices.Contains(before, c) {
			continue
		}
		fields, err := fieldsOf(c)
		if err != nil {
			return nil, err
		}
		for _, key := range []string{"reason", "message", "observedGeneration"} {
			if _, ok := fields[key]; !ok {
				fields[key] = nil // the server may still have one
			}
		}
		patch = append(patch, fields)
	}
	for _, c := range before {
		if !slices.ContainsFunc(after, func(o corev1.PodCondition) bool { return o.Type == c.Type }) {
			patch = append(patch, map[string]any{"$patch": "delete", "type": c.Type})
		}
	}
	return patch, nil
}

func fieldsOf(v any) (fields map[string]any, err error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fields, json.Unmarshal(raw, &fields)
}
