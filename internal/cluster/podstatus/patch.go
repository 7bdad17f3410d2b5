package podstatus

import (
	"encoding/json"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// statusPatch returns the strategic merge patch that changes the status of the pod with that UID on
// the server. It keeps what others write at the same time: for lists that the server merges by key,
// it says what to add and what to delete. It is nil if nothing changes.
func statusPatch(uid types.UID, from, to corev1.PodStatus) ([]byte, error) {
	before, err := fieldsOf(from)
	if err != nil {
		return nil, err
	}
	after, err := fieldsOf(to)
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
		changed, err := conditionsPatch(from.Conditions, to.Conditions)
		if err != nil {
			return nil, err
		}
		patch["conditions"] = changed
		if len(changed) == 0 { // only their order differs
			delete(patch, "conditions")
		}
	}
	if len(patch) == 0 {
		return nil, nil
	}
	return json.Marshal(map[string]any{"metadata": map[string]any{"uid": uid}, "status": patch})
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
