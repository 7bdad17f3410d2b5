// Package eviction decides when a node runs short of memory, disk space or process IDs, what it
// reports then, and which pod has to go. It follows the kubelet's rules: the signals and their
// thresholds, the order of the pods, and the messages, which tools parse. It is pure.
package eviction

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Signal is an observed quantity that a threshold refers to.
type Signal string

// The signals. Images, writable layers, volumes and logs share a file system, which both nodefs
// and imagefs are.
const (
	MemoryAvailable   Signal = "memory.available"
	NodeFSAvailable   Signal = "nodefs.available"
	NodeFSInodesFree  Signal = "nodefs.inodesFree"
	ImageFSAvailable  Signal = "imagefs.available"
	ImageFSInodesFree Signal = "imagefs.inodesFree"
	PIDAvailable      Signal = "pid.available"
	// AllocatableMemoryAvailable is what the pods together have left of their memory limit. Its
	// threshold is that of MemoryAvailable.
	AllocatableMemoryAvailable Signal = "allocatableMemory.available"
)

// Names of resources that only evictions know.
const (
	inodes corev1.ResourceName = "inodes"
	pids   corev1.ResourceName = "pids"
)

// about is what a signal is about.
type about struct {
	condition corev1.NodeConditionType
	resource  corev1.ResourceName
}

var signals = map[Signal]about{
	MemoryAvailable:            {corev1.NodeMemoryPressure, corev1.ResourceMemory},
	AllocatableMemoryAvailable: {corev1.NodeMemoryPressure, corev1.ResourceMemory},
	NodeFSAvailable:            {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	ImageFSAvailable:           {corev1.NodeDiskPressure, corev1.ResourceEphemeralStorage},
	NodeFSInodesFree:           {corev1.NodeDiskPressure, inodes},
	ImageFSInodesFree:          {corev1.NodeDiskPressure, inodes},
	PIDAvailable:               {corev1.NodePIDPressure, pids},
}

// DefaultHard are the kubelet's hard thresholds. A threshold of 0% turns its signal off.
func DefaultHard() map[string]string {
	return map[string]string{
		string(MemoryAvailable): "100Mi", string(NodeFSAvailable): "10%", string(NodeFSInodesFree): "5%",
		string(ImageFSAvailable): "15%", string(ImageFSInodesFree): "5%",
	}
}

// Amount is a number of bytes or other units, or a fraction of the capacity.
type Amount struct {
	units    int64
	fraction float64
}

// of returns the amount in units, for a capacity.
func (a Amount) of(capacity int64) int64 {
	if a.fraction > 0 {
		return int64(float64(capacity) * a.fraction)
	}
	return a.units
}

// Threshold is crossed when less than Limit of a signal is available.
type Threshold struct {
	Signal Signal
	Limit  Amount
	// Reclaim is how much more than Limit must be available before a crossed threshold counts as
	// resolved.
	Reclaim Amount
	// Grace is how long a soft threshold must be crossed before a pod is evicted. It is zero for a
	// hard one.
	Grace time.Duration
}

// Settings are the thresholds as they are configured: values by signal.
type Settings struct{ Hard, Soft, SoftGrace, MinReclaim map[string]string }

// Parse returns the thresholds, sorted by signal, and all errors. Hard thresholds that aren't set
// have their default.
func Parse(s Settings) ([]Threshold, error) {
	hard := DefaultHard()
	maps.Copy(hard, s.Hard)
	p := parser{}
	reclaim := p.amounts("eviction-minimum-reclaim", s.MinReclaim)
	var out []Threshold
	add := func(limits map[Signal]Amount, grace func(Signal) time.Duration) {
		for _, signal := range slices.Sorted(maps.Keys(limits)) {
			if limit := limits[signal]; limit != (Amount{}) {
				out = append(out, Threshold{signal, limit, reclaim[signal], grace(signal)})
			}
		}
	}
	limits := p.amounts("eviction-hard", hard)
	if _, set := limits[AllocatableMemoryAvailable]; !set {
		limits[AllocatableMemoryAvailable] = limits[MemoryAvailable]
	}
	add(limits, func(Signal) time.Duration { return 0 })
	add(p.amounts("eviction-soft", s.Soft), func(signal Signal) time.Duration {
		grace, err := time.ParseDuration(s.SoftGrace[string(signal)])
		if err != nil || grace <= 0 {
			p.errs = append(p.errs, fmt.Errorf("eviction-soft: %s needs a duration such as 90s in eviction-soft-grace-period", signal))
		}
		return grace
	})
	for _, signal := range slices.Sorted(maps.Keys(s.SoftGrace)) {
		if _, set := s.Soft[signal]; !set {
			p.errs = append(p.errs, fmt.Errorf("eviction-soft-grace-period: %q has no threshold in eviction-soft", signal))
		}
	}
	return out, errors.Join(p.errs...)
}

type parser struct{ errs []error }

// amounts parses values by signal. An amount of 0% or 100% is empty.
func (p *parser) amounts(key string, values map[string]string) map[Signal]Amount {
	out := map[Signal]Amount{}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		signal, text := Signal(name), values[name]
		if _, known := signals[signal]; !known {
			p.errs = append(p.errs, fmt.Errorf("%s: %q is not one of the signals %v", key, name, slices.Sorted(maps.Keys(signals))))
			continue
		}
		a, err := parseAmount(text)
		if err != nil {
			p.errs = append(p.errs, fmt.Errorf("%s: %s: %q is neither a quantity such as 100Mi nor a percentage such as 10%%", key, name, text))
			continue
		}
		out[signal] = a
	}
	return out
}

func parseAmount(text string) (Amount, error) {
	if percent, ok := strings.CutSuffix(text, "%"); ok {
		n, err := strconv.ParseFloat(percent, 64)
		if err != nil || !(n >= 0 && n <= 100) {
			return Amount{}, errors.New("not a percentage")
		}
		if n == 100 {
			n = 0 // the kubelet ignores both
		}
		return Amount{fraction: n / 100}, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return Amount{}, errors.New("not a quantity")
	}
	return Amount{units: q.Value()}, nil
}

// Reserved returns what the hard thresholds keep from pods, for a node of this capacity.
func Reserved(thresholds []Threshold, capacity corev1.ResourceList) corev1.ResourceList {
	out := corev1.ResourceList{}
	for _, t := range thresholds {
		if name := signals[t.Signal].resource; t.Grace == 0 && (t.Signal == MemoryAvailable || t.Signal == NodeFSAvailable) {
			has := capacity[name]
			out[name] = *resource.NewQuantity(t.Limit.of(has.Value()), resource.BinarySI)
		}
	}
	return out
}
