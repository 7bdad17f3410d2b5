package nodestats

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/stats"
)

// What follows are the words of /stats/summary, which are the kubelet's. What
// isn't known is left out.

type summary struct {
	Node nodeStats  `json:"node"`
	Pods []podStats `json:"pods"`
}

type nodeStats struct {
	NodeName  string        `json:"nodeName"`
	StartTime metav1.Time   `json:"startTime"`
	CPU       *cpuStats     `json:"cpu,omitempty"`
	Memory    *memoryStats  `json:"memory,omitempty"`
	Network   *networkStats `json:"network,omitempty"`
	Fs        *fsStats      `json:"fs,omitempty"`
	Runtime   *runtimeStats `json:"runtime,omitempty"`
	Swap      *swapStats    `json:"swap,omitempty"`
}

type runtimeStats struct {
	ImageFs     *fsStats `json:"imageFs,omitempty"`
	ContainerFs *fsStats `json:"containerFs,omitempty"`
}

type podStats struct {
	PodRef           podReference     `json:"podRef"`
	StartTime        metav1.Time      `json:"startTime"`
	Containers       []containerStats `json:"containers"`
	CPU              *cpuStats        `json:"cpu,omitempty"`
	Memory           *memoryStats     `json:"memory,omitempty"`
	Network          *networkStats    `json:"network,omitempty"`
	Volumes          []volumeStats    `json:"volume,omitempty"`
	EphemeralStorage *fsStats         `json:"ephemeral-storage,omitempty"`
	Processes        *processStats    `json:"process_stats,omitempty"`
	Swap             *swapStats       `json:"swap,omitempty"`
}

type podReference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

type containerStats struct {
	Name      string       `json:"name"`
	StartTime metav1.Time  `json:"startTime"`
	CPU       *cpuStats    `json:"cpu,omitempty"`
	Memory    *memoryStats `json:"memory,omitempty"`
	Rootfs    *fsStats     `json:"rootfs,omitempty"`
	Logs      *fsStats     `json:"logs,omitempty"`
	Swap      *swapStats   `json:"swap,omitempty"`
}

type cpuStats struct {
	Time                 metav1.Time `json:"time"`
	UsageNanoCores       *uint64     `json:"usageNanoCores,omitempty"`
	UsageCoreNanoSeconds uint64      `json:"usageCoreNanoSeconds"`
}

type memoryStats struct {
	Time            metav1.Time `json:"time"`
	AvailableBytes  *uint64     `json:"availableBytes,omitempty"`
	UsageBytes      uint64      `json:"usageBytes"`
	WorkingSetBytes uint64      `json:"workingSetBytes"`
	RSSBytes        uint64      `json:"rssBytes"`
	PageFaults      uint64      `json:"pageFaults"`
	MajorPageFaults uint64      `json:"majorPageFaults"`
}

type swapStats struct {
	Time               metav1.Time `json:"time"`
	SwapAvailableBytes *uint64     `json:"swapAvailableBytes,omitempty"`
	SwapUsageBytes     uint64      `json:"swapUsageBytes"`
}

type networkStats struct {
	Time metav1.Time `json:"time"`
	interfaceStats
	Interfaces []interfaceStats `json:"interfaces"`
}

type interfaceStats struct {
	Name     string `json:"name"`
	RxBytes  uint64 `json:"rxBytes"`
	RxErrors uint64 `json:"rxErrors"`
	TxBytes  uint64 `json:"txBytes"`
	TxErrors uint64 `json:"txErrors"`
}

type fsStats struct {
	Time           metav1.Time `json:"time"`
	AvailableBytes *uint64     `json:"availableBytes,omitempty"`
	CapacityBytes  *uint64     `json:"capacityBytes,omitempty"`
	UsedBytes      uint64      `json:"usedBytes"`
	InodesFree     *uint64     `json:"inodesFree,omitempty"`
	Inodes         *uint64     `json:"inodes,omitempty"`
	InodesUsed     uint64      `json:"inodesUsed"`
}

type volumeStats struct {
	fsStats
	Name string `json:"name"`
}

type processStats struct {
	Count uint64 `json:"process_count"`
}

func stamp(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }

func memoryOf(u *stats.Usage) *memoryStats {
	out := &memoryStats{
		Time: stamp(u.At), UsageBytes: u.Memory.Used, WorkingSetBytes: u.Memory.WorkingSet, RSSBytes: u.Memory.RSS,
		PageFaults: u.Memory.Faults.Minor, MajorPageFaults: u.Memory.Faults.Major,
	}
	if u.Memory.Limit > 0 {
		out.AvailableBytes = new(u.Memory.Limit - min(u.Memory.WorkingSet, u.Memory.Limit))
	}
	return out
}

func swapOf(u *stats.Usage) *swapStats {
	out := &swapStats{Time: stamp(u.At), SwapUsageBytes: u.Memory.Swap}
	if u.Memory.SwapLimit > 0 {
		out.SwapAvailableBytes = new(u.Memory.SwapLimit - min(u.Memory.Swap, u.Memory.SwapLimit))
	}
	return out
}

// networkOf has the interface of the pod's network, or of the node's, first.
func networkOf(list []stats.Interface, at time.Time) *networkStats {
	out := &networkStats{Time: stamp(at)}
	for _, i := range list {
		one := interfaceStats{Name: i.Name, RxBytes: i.Received.Bytes, RxErrors: i.Received.Errors, TxBytes: i.Sent.Bytes, TxErrors: i.Sent.Errors}
		if len(out.Interfaces) == 0 || i.Name == mainInterface {
			out.interfaceStats = one
		}
		out.Interfaces = append(out.Interfaces, one)
	}
	return out
}

// mainInterface is the one that a pod's figures are of.
const mainInterface = "eth0"

// filesystem is what something takes of a disk.
func filesystem(l stats.Layer, on stats.Disk) *fsStats {
	return &fsStats{
		Time: stamp(l.At), UsedBytes: uint64(l.Bytes), InodesUsed: uint64(l.Inodes),
		AvailableBytes: &on.BytesFree, CapacityBytes: &on.Bytes, InodesFree: &on.InodesFree, Inodes: &on.Inodes,
	}
}
