// Package capacity computes which part of a node's resources pods can request: its capacity minus
// what is reserved for the system. It is pure.
package capacity

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// PIDs is the kubelet's name for process IDs in a reservation.
const PIDs corev1.ResourceName = "pid"

// reservable are the resources that can be reserved, as in the kubelet.
var reservable = []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage, PIDs}

// Parse parses a reservation, quantities by resource, and returns all errors.
func Parse(reserved map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(reserved)) {
		name := corev1.ResourceName(key)
		q, err := resource.ParseQuantity(reserved[key])
		switch {
		case !slices.Contains(reservable, name):
			errs = append(errs, fmt.Errorf("%q can't be reserved: only %v can", key, reservable))
		case err != nil || q.Sign() < 0:
			errs = append(errs, fmt.Errorf("%q is not a quantity of %s such as 500m or 1Gi", reserved[key], key))
		default:
			out[name] = q
		}
	}
	return out, errors.Join(errs...)
}

// Allocatable returns the capacity minus all reservations, but nothing below zero.
func Allocatable(capacity corev1.ResourceList, reservations ...corev1.ResourceList) corev1.ResourceList {
	out := capacity.DeepCopy()
	for name, q := range out {
		for _, r := range reservations {
			q.Sub(r[name])
		}
		if q.Sign() < 0 {
			q.Set(0)
		}
		out[name] = q
	}
	return out
}

// Check returns an error if more is reserved than there is.
func Check(capacity corev1.ResourceList, reservations ...corev1.ResourceList) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(capacity)) {
		sum := resource.Quantity{}
		for _, r := range reservations {
			sum.Add(r[name])
		}
		if has := capacity[name]; sum.Cmp(has) > 0 {
			errs = append(errs, fmt.Errorf("kube-reserved, system-reserved and eviction-hard reserve %s of %s, but the node has %s: reserve less", sum.String(), name, has.String()))
		}
	}
	return errors.Join(errs...)
}
