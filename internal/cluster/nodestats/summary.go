package nodestats

import (
	"encoding/json"
	"net/http"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/stats"
)

// treeAge is how old the measured size of a volume or a log directory may be. Each measurement
// walks the directory.
const treeAge = time.Minute

// ServeSummary serves /stats/summary.
func (s Source) ServeSummary(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.Summary(r.URL.Query().Get("only_cpu_and_memory") == "true"))
}

// Summary reads all figures or, if brief, only processors, memory and processes.
func (s Source) Summary(brief bool) v1alpha1.Summary {
	out := v1alpha1.Summary{
		Node: v1alpha1.NodeStats{NodeName: s.Node, StartTime: timestamp(s.Booted)},
		Pods: []v1alpha1.PodStats{},
	}
	disk, _ := stats.Filesystem(s.Root)
	if u, err := stats.Node(); err == nil {
		out.Node.CPU, out.Node.Memory, out.Node.Swap, out.Node.IO = s.cpu("node", u), memory(u), swap(u), devices(u)
	}
	now := time.Now()
	layers := stats.DirUsage{At: now}
	for _, p := range s.running() {
		pod := s.pod(p, disk, brief)
		for _, c := range pod.Containers {
			if c.Rootfs != nil {
				layers.Bytes += int64(*c.Rootfs.UsedBytes)
				layers.Inodes += int64(*c.Rootfs.InodesUsed)
			}
		}
		out.Pods = append(out.Pods, pod)
	}
	if brief {
		return out
	}
	if list, err := stats.Network(""); err == nil {
		out.Node.Network = network(list, now)
	}
	used := stats.DirUsage{
		Bytes:  int64(disk.Bytes - min(disk.BytesFree, disk.Bytes)),
		Inodes: int64(disk.Inodes - min(disk.InodesFree, disk.Inodes)),
		At:     now,
	}
	images := stats.DirUsage{At: now}
	images.Bytes, images.Inodes = s.Images()
	out.Node.Fs = filesystem(used, disk)
	out.Node.Runtime = &v1alpha1.RuntimeStats{ImageFs: filesystem(images, disk), ContainerFs: filesystem(layers, disk)}
	return out
}

func (s Source) pod(p running, disk stats.Disk, brief bool) v1alpha1.PodStats {
	uid := string(p.Manifest.UID)
	out := v1alpha1.PodStats{
		PodRef:    v1alpha1.PodReference{Name: p.name, Namespace: p.Manifest.Namespace, UID: uid},
		StartTime: timestamp(p.Created), Containers: []v1alpha1.ContainerStats{},
	}
	cgroup := s.Cgroup(p.sandbox)
	if u, err := s.Meter.Cgroup(cgroup); err == nil {
		out.CPU, out.Memory, out.Swap, out.IO = s.cpu(p.sandbox.ID, u), memory(u), swap(u), devices(u)
		out.ProcessStats = &v1alpha1.ProcessStats{ProcessCount: &u.Processes}
	}
	var total stats.DirUsage
	add := func(l stats.DirUsage) *v1alpha1.FsStats {
		total.Bytes, total.Inodes, total.At = total.Bytes+l.Bytes, total.Inodes+l.Inodes, l.At
		return filesystem(l, disk)
	}
	for _, c := range p.containers {
		status := v1alpha1.ContainerStats{Name: c.Name(), StartTime: timestamp(c.Started)}
		if u, err := s.Meter.Cgroup(c.Cgroup(cgroup)); err == nil {
			status.CPU, status.Memory, status.Swap, status.IO = s.cpu(c.ID, u), memory(u), swap(u), devices(u)
		}
		if !brief {
			status.Rootfs = add(s.Meter.Layer(c.ID, s.Layer(c.ID)))
			if c.Log != "" {
				dir := filepath.Dir(c.Log)
				status.Logs = add(s.Meter.Dir(dir, dir, treeAge))
			}
		}
		out.Containers = append(out.Containers, status)
	}
	if brief {
		return out
	}
	for _, v := range p.Manifest.Spec.Volumes {
		if manifest.OnDisk(&v) {
			dir := s.EmptyDir(uid, v.Name)
			out.VolumeStats = append(out.VolumeStats, v1alpha1.VolumeStats{FsStats: *add(s.Meter.Dir(dir, dir, treeAge)), Name: v.Name})
		}
	}
	if total.At.IsZero() {
		total.At = time.Now()
	}
	out.EphemeralStorage = filesystem(total, disk)
	if !p.sandbox.HostNetwork() {
		if list, err := stats.Network(p.sandbox.Attachment.Netns); err == nil {
			out.Network = network(list, time.Now())
		}
	}
	return out
}

func timestamp(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func (s Source) cpu(id string, u *stats.Usage) *v1alpha1.CPUStats {
	out := &v1alpha1.CPUStats{Time: timestamp(u.At), UsageCoreNanoSeconds: &u.CPU.Used, PSI: pressure(u.Pressure.CPU)}
	if rate, ok := s.Meter.Rate(id, u.At, u.CPU.Used); ok {
		out.UsageNanoCores = &rate
	}
	return out
}

func memory(u *stats.Usage) *v1alpha1.MemoryStats {
	out := &v1alpha1.MemoryStats{
		Time: timestamp(u.At), UsageBytes: &u.Memory.Used, WorkingSetBytes: &u.Memory.WorkingSet, RSSBytes: &u.Memory.RSS,
		PageFaults: &u.Memory.Faults.Minor, MajorPageFaults: &u.Memory.Faults.Major, PSI: pressure(u.Pressure.Memory),
	}
	if u.Memory.Limit > 0 {
		out.AvailableBytes = new(u.Memory.Limit - min(u.Memory.WorkingSet, u.Memory.Limit))
	}
	return out
}

func swap(u *stats.Usage) *v1alpha1.SwapStats {
	out := &v1alpha1.SwapStats{Time: timestamp(u.At), SwapUsageBytes: &u.Memory.Swap}
	if u.Memory.SwapLimit > 0 {
		out.SwapAvailableBytes = new(u.Memory.SwapLimit - min(u.Memory.Swap, u.Memory.SwapLimit))
	}
	return out
}

// devices returns the pressure on devices, or nil where the kernel doesn't report it.
func devices(u *stats.Usage) *v1alpha1.IOStats {
	if u.Pressure.IO == nil {
		return nil
	}
	return &v1alpha1.IOStats{Time: timestamp(u.At), PSI: pressure(u.Pressure.IO)}
}

// pressure returns p in the API's type; nil stays nil.
func pressure(p *stats.Pressure) *v1alpha1.PSIStats {
	if p == nil {
		return nil
	}
	data := func(s stats.Stall) v1alpha1.PSIData {
		return v1alpha1.PSIData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &v1alpha1.PSIStats{Full: data(p.Full), Some: data(p.Some)}
}

// mainInterface is the interface whose figures are reported as those of the pod.
const mainInterface = "eth0"

func network(list []stats.Interface, at time.Time) *v1alpha1.NetworkStats {
	out := &v1alpha1.NetworkStats{Time: timestamp(at)}
	for _, i := range list {
		one := v1alpha1.InterfaceStats{
			Name: i.Name, RxBytes: &i.Received.Bytes, RxErrors: &i.Received.Errors, TxBytes: &i.Sent.Bytes, TxErrors: &i.Sent.Errors,
		}
		if len(out.Interfaces) == 0 || i.Name == mainInterface {
			out.InterfaceStats = one
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out
}

// filesystem returns the share of a disk that l takes.
func filesystem(l stats.DirUsage, disk stats.Disk) *v1alpha1.FsStats {
	return &v1alpha1.FsStats{
		Time: timestamp(l.At), UsedBytes: new(uint64(l.Bytes)), InodesUsed: new(uint64(l.Inodes)),
		AvailableBytes: &disk.BytesFree, CapacityBytes: &disk.Bytes, InodesFree: &disk.InodesFree, Inodes: &disk.Inodes,
	}
}
