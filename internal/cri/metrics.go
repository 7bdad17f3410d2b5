package cri

import (
	"fmt"
	"strconv"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/stats"
)

// subject is a pod or a container with its usage. Container, image and id are empty for a pod.
type subject struct {
	stats.Usage
	cgroup, id, container, image, namespace, pod string

	started   time.Time
	processes stats.Processes
	layer     stats.DirUsage
	disk      stats.Disk
}

// labelKeys are cAdvisor's labels, which the kubelet's metrics have. The method labels returns
// their values.
var labelKeys = []string{"container", "id", "image", "name", "namespace", "pod"}

func (s *subject) labels() []string {
	return []string{s.container, s.cgroup, s.image, s.id, s.namespace, s.pod}
}

// value is a sample with the values of the metric's own labels.
type value struct {
	of     uint64
	labels []string
}

func one(of uint64) []value { return []value{{of: of}} }

// metric describes one of cAdvisor's metrics.
type metric struct {
	name, help string
	kind       runtimeapi.MetricType
	keys       []string
	values     func(s *subject) []value
}

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

func seconds(ns uint64) uint64 { return ns / uint64(time.Second) }

// ofCgroups are the metrics of every cgroup.
var ofCgroups = []metric{
	{"container_cpu_usage_seconds_total", "Processor time used.", counter, []string{"cpu"}, func(s *subject) []value {
		return []value{{seconds(s.CPU.Used), []string{"total"}}}
	}},
	{"container_cpu_user_seconds_total", "Processor time used in user mode.", counter, nil, func(s *subject) []value { return one(seconds(s.CPU.User)) }},
	{"container_cpu_system_seconds_total", "Processor time used in kernel mode.", counter, nil, func(s *subject) []value { return one(seconds(s.CPU.System)) }},
	{"container_cpu_cfs_periods_total", "Periods in which the processor limit applied.", counter, nil, func(s *subject) []value { return one(s.CPU.Periods) }},
	{"container_cpu_cfs_throttled_periods_total", "Periods in which the processor limit was reached.", counter, nil, func(s *subject) []value { return one(s.CPU.Throttled) }},
	{"container_cpu_cfs_throttled_seconds_total", "Time for which processes were throttled.", counter, nil, func(s *subject) []value { return one(seconds(s.CPU.ThrottledTime)) }},
	{"container_spec_cpu_period", "Period of the processor limit in microseconds.", gauge, nil, func(s *subject) []value { return one(s.CPU.Period) }},
	{"container_spec_cpu_quota", "Processor limit in each period in microseconds; 0 for none.", gauge, nil, func(s *subject) []value { return one(s.CPU.Quota) }},
	{"container_spec_cpu_shares", "Processor weight, as cpu.shares.", gauge, nil, func(s *subject) []value { return one(s.CPU.Shares) }},
	{"container_memory_usage_bytes", "Memory in use, including what could be dropped.", gauge, nil, func(s *subject) []value { return one(s.Memory.Used) }},
	{"container_memory_max_usage_bytes", "Highest memory usage so far.", gauge, nil, func(s *subject) []value { return one(s.Memory.Max) }},
	{"container_memory_working_set_bytes", "Memory in use that can't be dropped at once.", gauge, nil, func(s *subject) []value { return one(s.Memory.WorkingSet) }},
	{"container_memory_rss", "Anonymous memory.", gauge, nil, func(s *subject) []value { return one(s.Memory.RSS) }},
	{"container_memory_cache", "Memory in the page cache.", gauge, nil, func(s *subject) []value { return one(s.Memory.Cache) }},
	{"container_memory_mapped_file", "Memory of mapped files.", gauge, nil, func(s *subject) []value { return one(s.Memory.Mapped) }},
	{"container_memory_kernel_usage", "Memory used by the kernel.", gauge, nil, func(s *subject) []value { return one(s.Memory.Kernel) }},
	{"container_memory_swap", "Swap in use.", gauge, nil, func(s *subject) []value { return one(s.Memory.Swap) }},
	{"container_memory_failcnt", "How often the memory limit was reached.", counter, nil, func(s *subject) []value { return one(s.Memory.Failures) }},
	{"container_memory_failures_total", "Page faults.", counter, []string{"failure_type", "scope"}, func(s *subject) []value {
		return []value{
			{s.Memory.Own.Minor, []string{"pgfault", "container"}}, {s.Memory.Own.Major, []string{"pgmajfault", "container"}},
			{s.Memory.Faults.Minor, []string{"pgfault", "hierarchy"}}, {s.Memory.Faults.Major, []string{"pgmajfault", "hierarchy"}},
		}
	}},
	{"container_spec_memory_limit_bytes", "Memory limit; 0 for none.", gauge, nil, func(s *subject) []value { return one(s.Memory.Limit) }},
	{"container_spec_memory_swap_limit_bytes", "Limit of swap; 0 for none.", gauge, nil, func(s *subject) []value { return one(s.Memory.SwapLimit) }},
	{"container_spec_memory_reservation_limit_bytes", "Reserved memory; always 0.", gauge, nil, func(*subject) []value { return one(0) }},
	{"container_oom_events_total", "Processes killed because of the memory limit.", counter, nil, func(s *subject) []value { return one(s.Memory.OOMKills) }},
	{"container_threads", "Threads.", gauge, nil, func(s *subject) []value { return one(s.Usage.Processes) }},
	{"container_threads_max", "Limit of threads; 0 for none.", gauge, nil, func(s *subject) []value { return one(s.ProcessLimit) }},
	{"container_hugetlb_usage_bytes", "Huge pages in use.", gauge, []string{"pagesize"}, func(s *subject) []value {
		return s.hugePages(func(h stats.HugePages) uint64 { return h.Usage })
	}},
	{"container_hugetlb_max_usage_bytes", "Highest usage of huge pages so far.", gauge, []string{"pagesize"}, func(s *subject) []value {
		return s.hugePages(func(h stats.HugePages) uint64 { return h.Max })
	}},
	{"container_blkio_device_usage_total", "Bytes to and from devices.", counter, []string{"device", "major", "minor", "operation"}, func(s *subject) []value {
		var out []value
		for _, d := range s.Disks {
			major, minor := strconv.FormatUint(d.Major, 10), strconv.FormatUint(d.Minor, 10)
			out = append(out, value{d.ReadBytes, []string{device(d), major, minor, "Read"}}, value{d.WrittenBytes, []string{device(d), major, minor, "Write"}})
		}
		return out
	}},
	{"container_fs_reads_bytes_total", "Bytes read from devices.", counter, []string{"device"}, func(s *subject) []value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.ReadBytes })
	}},
	{"container_fs_writes_bytes_total", "Bytes written to devices.", counter, []string{"device"}, func(s *subject) []value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.WrittenBytes })
	}},
	{"container_fs_reads_total", "Reads from devices.", counter, []string{"device"}, func(s *subject) []value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.ReadCount })
	}},
	{"container_fs_writes_total", "Writes to devices.", counter, []string{"device"}, func(s *subject) []value {
		return s.disks(func(d stats.DiskIO) uint64 { return d.WrittenCount })
	}},
	{"container_pressure_cpu_waiting_seconds_total", "Time for which some processes waited for a processor.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.CPU, false) }},
	{"container_pressure_cpu_stalled_seconds_total", "Time for which all processes waited for a processor.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.CPU, true) }},
	{"container_pressure_memory_waiting_seconds_total", "Time for which some processes waited for memory.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.Memory, false) }},
	{"container_pressure_memory_stalled_seconds_total", "Time for which all processes waited for memory.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.Memory, true) }},
	{"container_pressure_io_waiting_seconds_total", "Time for which some processes waited for devices.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.IO, false) }},
	{"container_pressure_io_stalled_seconds_total", "Time for which all processes waited for devices.", counter, nil, func(s *subject) []value { return stalled(s.Pressure.IO, true) }},
	{"container_last_seen", "When the figures were read, in seconds since 1970.", gauge, nil, func(s *subject) []value { return one(uint64(s.At.Unix())) }},
	{"container_start_time_seconds", "When the pod or container was started, in seconds since 1970.", gauge, nil, func(s *subject) []value { return one(uint64(max(s.started.Unix(), 0))) }},
}

// ofContainers are the metrics of containers only.
var ofContainers = []metric{
	{"container_processes", "Processes.", gauge, nil, func(s *subject) []value { return one(s.processes.Count) }},
	{"container_file_descriptors", "Open files.", gauge, nil, func(s *subject) []value { return one(s.processes.Files) }},
	{"container_sockets", "Open sockets.", gauge, nil, func(s *subject) []value { return one(s.processes.Sockets) }},
	{"container_ulimits_soft", "Soft limits of the first process.", gauge, []string{"ulimit"}, func(s *subject) []value {
		return []value{{s.processes.OpenFiles, []string{"max_open_files"}}}
	}},
	{"container_fs_usage_bytes", "Size of the writable layer.", gauge, []string{"device"}, func(s *subject) []value { return onOverlay(uint64(s.layer.Bytes)) }},
	{"container_fs_limit_bytes", "Size of the file system of the writable layer.", gauge, []string{"device"}, func(s *subject) []value { return onOverlay(s.disk.Bytes) }},
	{"container_fs_inodes_total", "Inodes of the file system of the writable layer.", gauge, []string{"device"}, func(s *subject) []value { return onOverlay(s.disk.Inodes) }},
	{"container_fs_inodes_free", "Free inodes of the file system of the writable layer.", gauge, []string{"device"}, func(s *subject) []value { return onOverlay(s.disk.InodesFree) }},
}

// ofNetworks are the metrics of a pod's interfaces.
var ofNetworks = []struct {
	name, help string
	value      func(i stats.Interface) uint64
}{
	{"container_network_receive_bytes_total", "Bytes received.", func(i stats.Interface) uint64 { return i.Received.Bytes }},
	{"container_network_receive_packets_total", "Packets received.", func(i stats.Interface) uint64 { return i.Received.Packets }},
	{"container_network_receive_errors_total", "Errors on receipt.", func(i stats.Interface) uint64 { return i.Received.Errors }},
	{"container_network_receive_packets_dropped_total", "Packets dropped on receipt.", func(i stats.Interface) uint64 { return i.Received.Dropped }},
	{"container_network_transmit_bytes_total", "Bytes sent.", func(i stats.Interface) uint64 { return i.Sent.Bytes }},
	{"container_network_transmit_packets_total", "Packets sent.", func(i stats.Interface) uint64 { return i.Sent.Packets }},
	{"container_network_transmit_errors_total", "Errors on sending.", func(i stats.Interface) uint64 { return i.Sent.Errors }},
	{"container_network_transmit_packets_dropped_total", "Packets dropped on sending.", func(i stats.Interface) uint64 { return i.Sent.Dropped }},
}

func onOverlay(n uint64) []value { return []value{{n, []string{"overlay"}}} }

func device(d stats.DiskIO) string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

func (s *subject) disks(of func(stats.DiskIO) uint64) (out []value) {
	for _, d := range s.Disks {
		out = append(out, value{of(d), []string{device(d)}})
	}
	return out
}

func (s *subject) hugePages(of func(stats.HugePages) uint64) (out []value) {
	for _, h := range s.HugePages {
		out = append(out, value{of(h), []string{h.Size}})
	}
	return out
}

func stalled(p *stats.Pressure, full bool) []value {
	switch {
	case p == nil:
		return nil
	case full:
		return one(seconds(p.Full.Total))
	}
	return one(seconds(p.Some.Total))
}

func (s *subject) metrics() []*runtimeapi.Metric { return s.read(ofCgroups) }

func (s *subject) containerMetrics() []*runtimeapi.Metric {
	return append(s.read(ofCgroups), s.read(ofContainers)...)
}

func (s *subject) read(list []metric) []*runtimeapi.Metric {
	var out []*runtimeapi.Metric
	for _, m := range list {
		for _, v := range m.values(s) {
			out = append(out, s.metric(m.name, m.kind, v))
		}
	}
	return out
}

func (s *subject) traffic(interfaces []stats.Interface) []*runtimeapi.Metric {
	var out []*runtimeapi.Metric
	for _, m := range ofNetworks {
		for _, i := range interfaces {
			out = append(out, s.metric(m.name, counter, value{m.value(i), []string{i.Name}}))
		}
	}
	return out
}

func (s *subject) metric(name string, kind runtimeapi.MetricType, v value) *runtimeapi.Metric {
	return &runtimeapi.Metric{
		Name: name, MetricType: kind, Timestamp: time.Now().UnixNano(),
		LabelValues: append(s.labels(), v.labels...), Value: number(v.of),
	}
}

func descriptors() []*runtimeapi.MetricDescriptor {
	var out []*runtimeapi.MetricDescriptor
	add := func(name, help string, keys ...string) {
		out = append(out, &runtimeapi.MetricDescriptor{Name: name, Help: help, LabelKeys: append(labelKeys[:len(labelKeys):len(labelKeys)], keys...)})
	}
	for _, list := range [][]metric{ofCgroups, ofContainers} {
		for _, m := range list {
			add(m.name, m.help, m.keys...)
		}
	}
	for _, m := range ofNetworks {
		add(m.name, m.help, "interface")
	}
	return out
}
