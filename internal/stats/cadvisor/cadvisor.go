// Package cadvisor holds the metrics of pods and containers under the names and labels of cAdvisor,
// which dashboards expect of a node. It is pure.
package cadvisor

import (
	"fmt"
	"strconv"
	"time"

	"github.com/huskd/husk/internal/stats"
)

// Subject is a pod, a container or the node with its usage. Container, Image and ID are empty for a
// pod.
type Subject struct {
	stats.Usage
	Cgroup, ID, Container, Image, Namespace, Pod string

	Started   time.Time
	Processes stats.Processes
	Layer     stats.DirUsage
	Disk      stats.Disk
}

// LabelKeys are the labels that every metric has. The method Labels returns their values.
var LabelKeys = []string{"container", "id", "image", "name", "namespace", "pod"}

// Labels returns the values of LabelKeys.
func (s *Subject) Labels() []string {
	return []string{s.Container, s.Cgroup, s.Image, s.ID, s.Namespace, s.Pod}
}

// Value is a sample with the values of the metric's own labels.
type Value struct {
	Of     float64
	Labels []string
}

func sample(of uint64, labels ...string) Value { return Value{float64(of), labels} }

func one(of uint64) []Value { return []Value{sample(of)} }

// Metric describes a metric.
type Metric struct {
	Name, Help string
	// Counter says that it is a counter, not a gauge.
	Counter bool
	// Keys are its own labels.
	Keys []string
	// Read returns its samples.
	Read func(s *Subject) []Value
}

// InterfaceMetric describes a metric of a network interface.
type InterfaceMetric struct {
	Name, Help string
	Read       func(i stats.Interface) uint64
}

func seconds(ns uint64) float64 { return float64(ns) / float64(time.Second) }

// Cgroups are the metrics of every cgroup.
var Cgroups = []Metric{
	{"container_cpu_usage_seconds_total", "Processor time used.", true, []string{"cpu"}, func(s *Subject) []Value {
		return []Value{{seconds(s.CPU.Used), []string{"total"}}}
	}},
	{"container_cpu_user_seconds_total", "Processor time used in user mode.", true, nil, func(s *Subject) []Value { return []Value{{Of: seconds(s.CPU.User)}} }},
	{"container_cpu_system_seconds_total", "Processor time used in kernel mode.", true, nil, func(s *Subject) []Value { return []Value{{Of: seconds(s.CPU.System)}} }},
	{"container_cpu_cfs_periods_total", "Periods in which the processor limit applied.", true, nil, func(s *Subject) []Value { return one(s.CPU.Periods) }},
	{"container_cpu_cfs_throttled_periods_total", "Periods in which the processor limit was reached.", true, nil, func(s *Subject) []Value { return one(s.CPU.Throttled) }},
	{"container_cpu_cfs_throttled_seconds_total", "Time for which processes were throttled.", true, nil, func(s *Subject) []Value { return []Value{{Of: seconds(s.CPU.ThrottledTime)}} }},
	{"container_spec_cpu_period", "Period of the processor limit in microseconds.", false, nil, func(s *Subject) []Value { return one(s.CPU.Period) }},
	{"container_spec_cpu_quota", "Processor limit in each period in microseconds; 0 for none.", false, nil, func(s *Subject) []Value { return one(s.CPU.Quota) }},
	{"container_spec_cpu_shares", "Processor weight, as cpu.shares.", false, nil, func(s *Subject) []Value { return one(s.CPU.Shares) }},
	{"container_memory_usage_bytes", "Memory in use, including what could be dropped.", false, nil, func(s *Subject) []Value { return one(s.Memory.Used) }},
	{"container_memory_max_usage_bytes", "Highest memory usage so far.", false, nil, func(s *Subject) []Value { return one(s.Memory.Max) }},
	{"container_memory_working_set_bytes", "Memory in use that can't be dropped at once.", false, nil, func(s *Subject) []Value { return one(s.Memory.WorkingSet) }},
	{"container_memory_rss", "Anonymous memory.", false, nil, func(s *Subject) []Value { return one(s.Memory.RSS) }},
	{"container_memory_cache", "Memory in the page cache.", false, nil, func(s *Subject) []Value { return one(s.Memory.Cache) }},
	{"container_memory_mapped_file", "Memory of mapped files.", false, nil, func(s *Subject) []Value { return one(s.Memory.Mapped) }},
	{"container_memory_kernel_usage", "Memory used by the kernel.", false, nil, func(s *Subject) []Value { return one(s.Memory.Kernel) }},
	{"container_memory_swap", "Swap in use.", false, nil, func(s *Subject) []Value { return one(s.Memory.Swap) }},
	{"container_memory_failcnt", "How often the memory limit was reached.", true, nil, func(s *Subject) []Value { return one(s.Memory.Failures) }},
	{"container_memory_failures_total", "Page faults.", true, []string{"failure_type", "scope"}, func(s *Subject) []Value {
		return []Value{
			sample(s.Memory.Own.Minor, "pgfault", "container"), sample(s.Memory.Own.Major, "pgmajfault", "container"),
			sample(s.Memory.Faults.Minor, "pgfault", "hierarchy"), sample(s.Memory.Faults.Major, "pgmajfault", "hierarchy"),
		}
	}},
	{"container_spec_memory_limit_bytes", "Memory limit; 0 for none.", false, nil, func(s *Subject) []Value { return one(s.Memory.Limit) }},
	{"container_spec_memory_swap_limit_bytes", "Limit of swap; 0 for none.", false, nil, func(s *Subject) []Value { return one(s.Memory.SwapLimit) }},
	{"container_spec_memory_reservation_limit_bytes", "Reserved memory; always 0.", false, nil, func(*Subject) []Value { return one(0) }},
	{"container_oom_events_total", "Processes killed because of the memory limit.", true, nil, func(s *Subject) []Value { return one(s.Memory.OOMKills) }},
	{"container_threads", "Threads.", false, nil, func(s *Subject) []Value { return one(s.Usage.Processes) }},
	{"container_threads_max", "Limit of threads; 0 for none.", false, nil, func(s *Subject) []Value { return one(s.ProcessLimit) }},
	{"container_hugetlb_usage_bytes", "Huge pages in use.", false, []string{"pagesize"}, func(s *Subject) []Value {
		return s.hugePages(func(h stats.HugePages) uint64 { return h.Usage })
	}},
	{"container_hugetlb_max_usage_bytes", "Highest usage of huge pages so far.", false, []string{"pagesize"}, func(s *Subject) []Value {
		return s.hugePages(func(h stats.HugePages) uint64 { return h.Max })
	}},
	{"container_blkio_device_usage_total", "Bytes to and from devices.", true, []string{"device", "major", "minor", "operation"}, func(s *Subject) []Value {
		var out []Value
		for _, d := range s.Disks {
			major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
			out = append(out, sample(d.ReadBytes, device(d), major, minor, "Read"), sample(d.WrittenBytes, device(d), major, minor, "Write"))
		}
		return out
	}},
	{"container_fs_reads_bytes_total", "Bytes read from devices.", true, []string{"device"}, func(s *Subject) []Value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.ReadBytes })
	}},
	{"container_fs_writes_bytes_total", "Bytes written to devices.", true, []string{"device"}, func(s *Subject) []Value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.WrittenBytes })
	}},
	{"container_fs_reads_total", "Reads from devices.", true, []string{"device"}, func(s *Subject) []Value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.ReadCount })
	}},
	{"container_fs_writes_total", "Writes to devices.", true, []string{"device"}, func(s *Subject) []Value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.WrittenCount })
	}},
	{"container_pressure_cpu_waiting_seconds_total", "Time for which some processes waited for a processor.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.CPU, false) }},
	{"container_pressure_cpu_stalled_seconds_total", "Time for which all processes waited for a processor.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.CPU, true) }},
	{"container_pressure_memory_waiting_seconds_total", "Time for which some processes waited for memory.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.Memory, false) }},
	{"container_pressure_memory_stalled_seconds_total", "Time for which all processes waited for memory.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.Memory, true) }},
	{"container_pressure_io_waiting_seconds_total", "Time for which some processes waited for devices.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.IO, false) }},
	{"container_pressure_io_stalled_seconds_total", "Time for which all processes waited for devices.", true, nil, func(s *Subject) []Value { return stalled(s.Pressure.IO, true) }},
	{"container_last_seen", "When the figures were read, in seconds since 1970.", false, nil, func(s *Subject) []Value { return one(uint64(s.At.Unix())) }},
	{"container_start_time_seconds", "When the pod or container was started, in seconds since 1970.", false, nil, func(s *Subject) []Value { return one(uint64(max(s.Started.Unix(), 0))) }},
}

// Containers are the metrics of containers only.
var Containers = []Metric{
	{"container_processes", "Processes.", false, nil, func(s *Subject) []Value { return one(s.Processes.Count) }},
	{"container_file_descriptors", "Open files.", false, nil, func(s *Subject) []Value { return one(s.Processes.Files) }},
	{"container_sockets", "Open sockets.", false, nil, func(s *Subject) []Value { return one(s.Processes.Sockets) }},
	{"container_ulimits_soft", "Soft limits of the first process.", false, []string{"ulimit"}, func(s *Subject) []Value {
		return []Value{sample(s.Processes.OpenFiles, "max_open_files")}
	}},
	{"container_fs_usage_bytes", "Size of the writable layer.", false, []string{"device"}, func(s *Subject) []Value { return onOverlay(uint64(s.Layer.Bytes)) }},
	{"container_fs_limit_bytes", "Size of the file system of the writable layer.", false, []string{"device"}, func(s *Subject) []Value { return onOverlay(s.Disk.Bytes) }},
	{"container_fs_inodes_total", "Inodes of the file system of the writable layer.", false, []string{"device"}, func(s *Subject) []Value { return onOverlay(s.Disk.Inodes) }},
	{"container_fs_inodes_free", "Free inodes of the file system of the writable layer.", false, []string{"device"}, func(s *Subject) []Value { return onOverlay(s.Disk.InodesFree) }},
}

// Interfaces are the metrics of a pod's network interfaces. All are counters, with the interface's
// name as their own label.
var Interfaces = []InterfaceMetric{
	{"container_network_receive_bytes_total", "Bytes received.", func(i stats.Interface) uint64 { return i.Received.Bytes }},
	{"container_network_receive_packets_total", "Packets received.", func(i stats.Interface) uint64 { return i.Received.Packets }},
	{"container_network_receive_errors_total", "Errors on receipt.", func(i stats.Interface) uint64 { return i.Received.Errors }},
	{"container_network_receive_packets_dropped_total", "Packets dropped on receipt.", func(i stats.Interface) uint64 { return i.Received.Dropped }},
	{"container_network_transmit_bytes_total", "Bytes sent.", func(i stats.Interface) uint64 { return i.Sent.Bytes }},
	{"container_network_transmit_packets_total", "Packets sent.", func(i stats.Interface) uint64 { return i.Sent.Packets }},
	{"container_network_transmit_errors_total", "Errors on sending.", func(i stats.Interface) uint64 { return i.Sent.Errors }},
	{"container_network_transmit_packets_dropped_total", "Packets dropped on sending.", func(i stats.Interface) uint64 { return i.Sent.Dropped }},
}

func onOverlay(n uint64) []Value { return []Value{sample(n, "overlay")} }

func device(d stats.DiskIO) string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

func (s *Subject) disks(of func(stats.DiskIO) uint64) (out []Value) {
	for _, d := range s.Disks {
		out = append(out, sample(of(d), device(d)))
	}
	return out
}

func (s *Subject) hugePages(of func(stats.HugePages) uint64) (out []Value) {
	for _, h := range s.HugePages {
		out = append(out, sample(of(h), h.Size))
	}
	return out
}

func stalled(p *stats.Pressure, full bool) []Value {
	switch {
	case p == nil:
		return nil
	case full:
		return []Value{{Of: seconds(p.Full.Total)}}
	}
	return []Value{{Of: seconds(p.Some.Total)}}
}
