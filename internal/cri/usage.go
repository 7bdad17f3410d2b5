package cri

import (
	"context"
	"time"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stats/cadvisor"
)

// usage implements the methods about resource usage.
type usage struct{ *view }

// ContainerStats returns the usage of a container.
func (m usage) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	st, err := m.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: m.containerStats(st, m.cgroup(st.Sandbox))}, nil
}

// ListContainerStats returns the usage of running containers.
func (m usage) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	list, err := m.listContainers(req.GetFilter())
	return &runtimeapi.ListContainerStatsResponse{Stats: list}, err
}

// StreamContainerStats is ListContainerStats for lists of any length.
func (m usage) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamContainerStatsResponse]) error {
	list, err := m.listContainers(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []*runtimeapi.ContainerStats) error {
		return to.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: part})
	})
}

func (m usage) listContainers(filter *runtimeapi.ContainerStatsFilter) ([]*runtimeapi.ContainerStats, error) {
	running, err := m.containers(filter.GetId(), filter.GetPodSandboxId(), filter.GetLabelSelector(), func(st *container.Status) bool {
		return containerState(*st) == runtimeapi.ContainerState_CONTAINER_RUNNING
	})
	var out []*runtimeapi.ContainerStats
	for _, st := range running {
		out = append(out, m.containerStats(st, m.cgroup(st.Sandbox)))
	}
	return out, err
}

// cgroup returns the cgroup of a sandbox.
func (m usage) cgroup(id string) string {
	st, err := m.Sandboxes.Get(id)
	if err != nil {
		return ""
	}
	return m.Sandboxes.Cgroup(st)
}

// containerStats returns the usage of a container: of one that doesn't run, only that of the disk.
func (m usage) containerStats(st container.Status, parent string) *runtimeapi.ContainerStats {
	layer := m.Meter.Layer(st.ID, m.Containers.Layer(st.ID))
	out := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: st.ID, Metadata: st.Config.GetMetadata(), Labels: st.Config.GetLabels(), Annotations: st.Config.GetAnnotations(),
		},
		WritableLayer: m.filesystem(layer.Bytes, layer.Inodes),
	}
	out.WritableLayer.Timestamp = layer.At.UnixNano()
	u, err := m.Meter.Cgroup(st.Cgroup(parent))
	if err != nil {
		return out
	}
	at := u.At.UnixNano()
	out.Cpu, out.Memory = m.cpu(st.ID, u), memory(u)
	out.Swap = &runtimeapi.SwapUsage{Timestamp: at, SwapUsageBytes: number(u.Memory.Swap)}
	if u.Memory.SwapLimit > 0 {
		out.Swap.SwapAvailableBytes = number(u.Memory.SwapLimit - min(u.Memory.Swap, u.Memory.SwapLimit))
	}
	out.Io = &runtimeapi.IoUsage{Timestamp: at, Psi: pressure(u.Pressure.IO)}
	return out
}

func (m usage) cpu(id string, u *stats.Usage) *runtimeapi.CpuUsage {
	out := &runtimeapi.CpuUsage{Timestamp: u.At.UnixNano(), UsageCoreNanoSeconds: number(u.CPU.Used), Psi: pressure(u.Pressure.CPU)}
	if rate, ok := m.Meter.Rate(id, u.At, u.CPU.Used); ok {
		out.UsageNanoCores = number(rate)
	}
	return out
}

func memory(u *stats.Usage) *runtimeapi.MemoryUsage {
	out := &runtimeapi.MemoryUsage{
		Timestamp: u.At.UnixNano(), WorkingSetBytes: number(u.Memory.WorkingSet), UsageBytes: number(u.Memory.Used), RssBytes: number(u.Memory.RSS),
		PageFaults: number(u.Memory.Faults.Minor), MajorPageFaults: number(u.Memory.Faults.Major), Psi: pressure(u.Pressure.Memory),
	}
	if u.Memory.Limit > 0 {
		out.AvailableBytes = number(u.Memory.Limit - min(u.Memory.WorkingSet, u.Memory.Limit))
	}
	return out
}

func pressure(p *stats.Pressure) *runtimeapi.PsiStats {
	if p == nil {
		return nil
	}
	data := func(s stats.Stall) *runtimeapi.PsiData {
		return &runtimeapi.PsiData{Total: s.Total, Avg10: s.Avg10, Avg60: s.Avg60, Avg300: s.Avg300}
	}
	return &runtimeapi.PsiStats{Full: data(p.Full), Some: data(p.Some)}
}

// PodSandboxStats returns the usage of a pod.
func (m usage) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	st, err := m.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out, err := m.sandboxStats(st)
	return &runtimeapi.PodSandboxStatsResponse{Stats: out}, err
}

// ListPodSandboxStats returns the usage of ready pods.
func (m usage) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	list, err := m.listSandboxes(req.GetFilter())
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: list}, err
}

// StreamPodSandboxStats is ListPodSandboxStats for lists of any length.
func (m usage) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxStatsResponse]) error {
	list, err := m.listSandboxes(req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(part []*runtimeapi.PodSandboxStats) error {
		return to.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: part})
	})
}

func (m usage) listSandboxes(filter *runtimeapi.PodSandboxStatsFilter) ([]*runtimeapi.PodSandboxStats, error) {
	ready, err := m.ready(filter.GetId(), filter.GetLabelSelector())
	if err != nil {
		return nil, err
	}
	var out []*runtimeapi.PodSandboxStats
	for _, st := range ready {
		// A sandbox may be removed meanwhile.
		if one, err := m.sandboxStats(st); err == nil {
			out = append(out, one)
		}
	}
	return out, nil
}

func (m usage) ready(id string, labels map[string]string) ([]sandbox.Status, error) {
	return m.sandboxes(id, labels, func(st *sandbox.Status) bool {
		return sandboxState(*st) == runtimeapi.PodSandboxState_SANDBOX_READY
	})
}

func (m usage) sandboxStats(st sandbox.Status) (*runtimeapi.PodSandboxStats, error) {
	cgroup := m.Sandboxes.Cgroup(st)
	linux := &runtimeapi.LinuxPodSandboxStats{Process: &runtimeapi.ProcessUsage{Timestamp: time.Now().UnixNano()}}
	// Before the first container there is no cgroup.
	if u, err := m.Meter.Cgroup(cgroup); err == nil {
		linux.Cpu, linux.Memory = m.cpu(st.ID, u), memory(u)
		linux.Process.ProcessCount = number(u.Processes)
		linux.Io = &runtimeapi.IoUsage{Timestamp: u.At.UnixNano(), Psi: pressure(u.Pressure.IO)}
	}
	for _, c := range m.Containers.List(st.ID) {
		if containerState(c) == runtimeapi.ContainerState_CONTAINER_RUNNING {
			linux.Containers = append(linux.Containers, m.containerStats(c, cgroup))
		}
	}
	var err error
	if !st.HostNetwork() && sandboxState(st) == runtimeapi.PodSandboxState_SANDBOX_READY {
		linux.Network, err = network(st)
	}
	return &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: st.ID, Metadata: st.Config.GetMetadata(), Labels: st.Config.GetLabels(), Annotations: st.Config.GetAnnotations(),
		},
		Linux: linux,
	}, err
}

// network returns the traffic of a sandbox's interfaces, with that of the first as the default.
func network(st sandbox.Status) (*runtimeapi.NetworkUsage, error) {
	list, err := stats.Network(st.Attachment.Netns)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range list {
		usage := &runtimeapi.NetworkInterfaceUsage{
			Name: i.Name, RxBytes: number(i.Received.Bytes), RxErrors: number(i.Received.Errors),
			TxBytes: number(i.Sent.Bytes), TxErrors: number(i.Sent.Errors),
		}
		if i.Name == st.Attachment.IfName {
			out.DefaultInterface = usage
		} else {
			out.Interfaces = append(out.Interfaces, usage)
		}
	}
	return out, nil
}

// ListMetricDescriptors describes all metrics.
func (m usage) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	return &runtimeapi.ListMetricDescriptorsResponse{Descriptors: descriptors()}, nil
}

// ListPodSandboxMetrics returns the metrics of ready pods.
func (m usage) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	list, err := m.metrics()
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: list}, err
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics for lists of any length.
func (m usage) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, to grpc.ServerStreamingServer[runtimeapi.StreamPodSandboxMetricsResponse]) error {
	list, err := m.metrics()
	if err != nil {
		return err
	}
	return inChunks(list, func(part []*runtimeapi.PodSandboxMetrics) error {
		return to.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}

func (m usage) metrics() ([]*runtimeapi.PodSandboxMetrics, error) {
	ready, err := m.ready("", nil)
	if err != nil {
		return nil, err
	}
	disk, _ := stats.Filesystem(m.Root)
	var out []*runtimeapi.PodSandboxMetrics
	for _, st := range ready {
		cgroup, meta := m.Sandboxes.Cgroup(st), st.Config.GetMetadata()
		s := cadvisor.Subject{Cgroup: cgroup, Namespace: meta.GetNamespace(), Pod: meta.GetName(), Started: st.Created, Disk: disk}
		pod := &runtimeapi.PodSandboxMetrics{PodSandboxId: st.ID}
		if u, err := m.Meter.Cgroup(cgroup); err == nil {
			s.Usage = *u
			pod.Metrics = readMetrics(&s, cadvisor.Cgroups)
		}
		if interfaces, err := stats.Network(st.Attachment.Netns); err == nil && !st.HostNetwork() {
			pod.Metrics = append(pod.Metrics, readTraffic(&s, interfaces)...)
		}
		for _, c := range m.Containers.List(st.ID) {
			s.Container, s.Image, s.ID = c.Name(), c.Config.GetImage().GetImage(), c.ID
			s.Cgroup, s.Started = c.Cgroup(cgroup), c.Started
			u, err := m.Meter.Cgroup(s.Cgroup)
			if err != nil {
				continue // it doesn't run
			}
			s.Usage, s.Processes, s.Layer = *u, m.Meter.Processes(s.Cgroup), m.Meter.Layer(c.ID, m.Containers.Layer(c.ID))
			pod.ContainerMetrics = append(pod.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: c.ID, Metrics: readMetrics(&s, cadvisor.Cgroups, cadvisor.Containers)})
		}
		out = append(out, pod)
	}
	return out, nil
}
