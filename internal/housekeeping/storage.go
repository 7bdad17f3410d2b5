package housekeeping

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/stats"
)

// Measuring a pod walks its files. It is done at most once in measureInterval, and for at most
// 1/measureShare of the time.
const (
	measureInterval = 10 * time.Second
	measureShare    = 20
)

// Storage gives access to the pods and their files on disk.
type Storage struct {
	// Pods returns the running pods.
	Pods func() []*corev1.Pod
	// EmptyDir returns the path of a pod's volume.
	EmptyDir func(uid, name string) string
	// Layers returns the directories of a container's writable layers and logs.
	Layers func(pod *corev1.Pod, container string) []string
	// Evict evicts a pod.
	Evict func(uid, message string) error
}

// diskUsage is the disk usage of a pod in bytes: of its volumes and containers, by name.
type diskUsage struct{ volumes, containers map[string]int64 }

// exceededLimit returns a message about the first limit that a pod exceeds, or "". The limits and
// their order are kubelet's. It is pure.
func exceededLimit(pod *corev1.Pod, s diskUsage) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if limit := sizeLimit(v); limit != nil && s.volumes[v.Name] > limit.Value() {
			return fmt.Sprintf("volume %s uses %s, more than the emptyDir's sizeLimit of %s", v.Name, bytes(s.volumes[v.Name]), limit.String())
		}
	}
	all := int64(0)
	for _, n := range s.volumes {
		all += n
	}
	for _, n := range s.containers {
		all += n
	}
	if limit := criconfig.StorageLimit(pod); !limit.IsZero() && all > limit.Value() {
		return fmt.Sprintf("the pod uses %s of disk space, more than the sum of its containers' ephemeral-storage limits, %s", bytes(all), limit.String())
	}
	for c := range podspec.Containers(&pod.Spec) {
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && s.containers[c.Name] > limit.Value() {
			return fmt.Sprintf("container %s uses %s of disk space, more than its ephemeral-storage limit of %s", c.Name, bytes(s.containers[c.Name]), limit.String())
		}
	}
	return ""
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// sizeLimit returns the limit of a volume on disk, or nil. The kernel enforces the limits of
// volumes in memory.
func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if !manifest.OnDisk(v) || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

// toMeasure returns what must be measured of a pod: everything if a container has a limit,
// otherwise the volumes with limits.
func toMeasure(pod *corev1.Pod) (volumes []string, containers bool) {
	limit := criconfig.StorageLimit(pod)
	containers = !limit.IsZero()
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; sizeLimit(v) != nil || containers && manifest.OnDisk(v) {
			volumes = append(volumes, v.Name)
		}
	}
	return volumes, containers
}

// measure measures the disk usage of a pod, as far as toMeasure returns it.
func (s Storage) measure(ctx context.Context, pod *corev1.Pod) diskUsage {
	out := diskUsage{map[string]int64{}, map[string]int64{}}
	volumes, containers := toMeasure(pod)
	for _, name := range volumes {
		out.volumes[name] = stats.MeasureDir(ctx, s.EmptyDir(string(pod.UID), name)).Bytes
	}
	if !containers {
		return out
	}
	for c := range podspec.Containers(&pod.Spec) {
		for _, dir := range s.Layers(pod, c.Name) {
			out.containers[c.Name] += stats.MeasureDir(ctx, dir).Bytes
		}
	}
	return out
}

// guardStorage evicts pods that exceed their disk limits, until ctx ends.
func (h *Housekeeper) guardStorage(ctx context.Context) {
	for pause := measureInterval; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		began := time.Now()
		for _, pod := range h.Storage.Pods() {
			if volumes, containers := toMeasure(pod); len(volumes) == 0 && !containers {
				continue
			}
			message := exceededLimit(pod, h.Storage.measure(ctx, pod))
			if message == "" || ctx.Err() != nil {
				continue
			}
			if err := h.Storage.Evict(string(pod.UID), message); err != nil {
				h.Log.Error("housekeeping: pod not evicted", "pod", filepath.Join(pod.Namespace, pod.Name), "error", err)
			}
		}
		pause = max(measureInterval, time.Since(began)*measureShare)
	}
}
