package daemon

import (
	"slices"
	"strings"

	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/housekeeping"
	"github.com/huskd/husk/internal/stats"
)

// newPressure returns what evicts the cluster's pods when the node runs short of something. usage
// reads what the pods use.
func newPressure(d *daemon, keeper *housekeeping.Housekeeper, usage func(brief bool) v1alpha1.Summary) *housekeeping.Pressure {
	return &housekeeping.Pressure{
		Thresholds: d.resources.thresholds, Observe: observer{d.cfg.Root, d.cgroups.Root(), d.meter}.observe,
		Candidates: func(disk bool) []eviction.Candidate { return candidates(d.agent.List(), usage(!disk)) },
		Evict:      d.evict,
		Ended: func(uid string) bool {
			p, err := d.agent.Get(uid)
			return err != nil || p.Finished
		},
		RemoveImages: keeper.RemoveUnusedImages, Log: d.log,
	}
}

// observer reads how much the node has.
type observer struct {
	disk string // a path on the file system of the pods
	pods string // the cgroup of all pods
	*stats.Meter
}

// observe reads how much of everything is available. What can't be read is left out.
func (o observer) observe() eviction.Observations {
	out := eviction.Observations{}
	if u, err := stats.Node(); err == nil {
		out[eviction.MemoryAvailable] = available(u.Memory.WorkingSet, u.Memory.Limit)
	}
	if u, err := o.Cgroup(o.pods); err == nil && u.Memory.Limit > 0 {
		out[eviction.AllocatableMemoryAvailable] = available(u.Memory.WorkingSet, u.Memory.Limit)
	}
	if disk, ok := stats.Filesystem(o.disk); ok {
		space := available(disk.Bytes-min(disk.BytesFree, disk.Bytes), disk.Bytes)
		out[eviction.NodeFSAvailable], out[eviction.ImageFSAvailable] = space, space
		if disk.Inodes > 0 { // btrfs has no fixed number
			files := available(disk.Inodes-min(disk.InodesFree, disk.Inodes), disk.Inodes)
			out[eviction.NodeFSInodesFree], out[eviction.ImageFSInodesFree] = files, files
		}
	}
	if has, most, err := stats.Tasks(); err == nil {
		out[eviction.PIDAvailable] = available(uint64(has), uint64(most))
	}
	return out
}

func available(used, all uint64) eviction.Observation {
	return eviction.Observation{Available: int64(all - min(used, all)), Capacity: int64(all)}
}

// candidates returns the pods of the API server that may be evicted, with what they use. As with a
// kubelet, pods that were declared elsewhere stay: no controller would replace them.
func candidates(list []agent.Pod, used v1alpha1.Summary) []eviction.Candidate {
	list = slices.DeleteFunc(list, func(p agent.Pod) bool { return !strings.HasPrefix(p.Source, string(source.API)) })
	var out []eviction.Candidate
	for _, pod := range evictable(list) {
		c := eviction.Candidate{Pod: pod, Containers: map[string]eviction.Usage{}}
		i := slices.IndexFunc(used.Pods, func(s v1alpha1.PodStats) bool { return s.PodRef.UID == string(pod.UID) })
		if c.Unknown = i < 0; !c.Unknown {
			c.Usage = podUsage(used.Pods[i])
			for _, s := range used.Pods[i].Containers {
				c.Containers[s.Name] = containerUsage(s)
			}
		}
		out = append(out, c)
	}
	return out
}

func podUsage(s v1alpha1.PodStats) (u eviction.Usage) {
	if s.Memory != nil {
		u.Memory = value(s.Memory.WorkingSetBytes)
	}
	if s.EphemeralStorage != nil {
		u.Disk, u.Inodes = value(s.EphemeralStorage.UsedBytes), value(s.EphemeralStorage.InodesUsed)
	}
	if s.ProcessStats != nil {
		u.Processes = value(s.ProcessStats.ProcessCount)
	}
	return u
}

func containerUsage(s v1alpha1.ContainerStats) (u eviction.Usage) {
	if s.Memory != nil {
		u.Memory = value(s.Memory.WorkingSetBytes)
	}
	for _, part := range []*v1alpha1.FsStats{s.Rootfs, s.Logs} {
		if part != nil {
			u.Disk, u.Inodes = u.Disk+value(part.UsedBytes), u.Inodes+value(part.InodesUsed)
		}
	}
	return u
}

func value(n *uint64) int64 {
	if n == nil {
		return 0
	}
	return int64(*n)
}
