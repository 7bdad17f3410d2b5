package housekeeping

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/stats"
)

// To measure a pod is to walk its files: that is done at most once in measureGap,
// and for no more than a part in measureShare of the time.
const (
	measureInterval = 10 * time.Second
	measureShare    = 20
)

// Storage is what pods take on the disk, of those that have a limit for it.
type Storage struct {
	// Pods are those that run.
	Pods func() []*corev1.Pod
	// EmptyDir is where a pod's volume of that name is.
	EmptyDir func(uid, name string) string
	// Layers are the directories of a container's writable layers and logs.
	Layers func(pod *corev1.Pod, container string) []string
	// Evict has a pod go that takes too much.
	Evict func(uid, message string) error
}

// diskUsage is what a pod takes, in bytes: its volumes and containers by their names.
type diskUsage struct{ volumes, containers map[string]int64 }

// exceededLimit says which limit a pod goes beyond, or nothing. The limits, and their
// order, are the kubelet's. It is pure.
func exceededLimit(pod *corev1.Pod, s diskUsage) string {
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if limit := sizeLimit(v); limit != nil && s.volumes[v.Name] > limit.Value() {
			return fmt.Sprintf("volume %s takes %s, more than the emptyDir's sizeLimit of %s", v.Name, bytes(s.volumes[v.Name]), limit.String())
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
		return fmt.Sprintf("the pod takes %s of the disk, more than its containers' limits of ephemeral-storage, %s together", bytes(all), limit.String())
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if limit := c.Resources.Limits.StorageEphemeral(); !limit.IsZero() && s.containers[c.Name] > limit.Value() {
			return fmt.Sprintf("container %s takes %s of the disk, more than its limit of ephemeral-storage of %s", c.Name, bytes(s.containers[c.Name]), limit.String())
		}
	}
	return ""
}

func bytes(n int64) string { return resource.NewQuantity(n, resource.BinarySI).String() }

// sizeLimit is the limit of a volume on disk, or nil. One in memory is no larger
// than it may be.
func sizeLimit(v *corev1.Volume) *resource.Quantity {
	if !manifest.OnDisk(v) || v.EmptyDir.SizeLimit == nil || v.EmptyDir.SizeLimit.Sign() <= 0 {
		return nil
	}
	return v.EmptyDir.SizeLimit
}

// toMeasure says what of a pod has to be measured: all of it if its containers have
// limits, else the volumes that have one, or nothing.
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

// measure walks what has to be measured of a pod.
func (s Storage) measure(ctx context.Context, pod *corev1.Pod) diskUsage {
	out := diskUsage{map[string]int64{}, map[string]int64{}}
	volumes, containers := toMeasure(pod)
	for _, name := range volumes {
		out.volumes[name] = stats.MeasureDir(ctx, s.EmptyDir(string(pod.UID), name)).Bytes
	}
	if !containers {
		return out
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, dir := range s.Layers(pod, c.Name) {
			out.containers[c.Name] += stats.MeasureDir(ctx, dir).Bytes
		}
	}
	return out
}

// guardStorage evicts pods that take more of the disk than they may, until ctx
// ends.
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
				h.Log.Error("housekeeping: evict a pod", "pod", filepath.Join(pod.Namespace, pod.Name), "error", err)
			}
		}
		pause = max(measureInterval, time.Since(began)*measureShare)
	}
}
