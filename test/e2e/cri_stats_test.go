package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestCRIStats tests the stats and metrics of pods and containers.
func TestCRIStats(t *testing.T) {
	t.Parallel()
	c := startCRI(t, node.Flags("--metrics-listen", "127.0.0.1:9477"))
	c.pull(webImage)
	pod := c.pod()
	id := c.run(pod, "head -c 3000000 /dev/urandom >/tmp/file; touch /tmp/ready; while :; do :; done", func(k *runtimeapi.ContainerConfig) {
		k.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuQuota: 10000, CpuPeriod: 100000}
	})
	c.ready(id)
	idle := c.run(pod, forever)
	ended := c.run(pod, "true")
	c.exited(ended)
	c.subtest(t, "containers", func(t *testing.T, c *criNode) { containerStats(t, c, pod, id, idle) })
	c.subtest(t, "sandboxes", func(t *testing.T, c *criNode) { sandboxStats(t, c, pod, id) })
	c.subtest(t, "metrics", func(t *testing.T, c *criNode) { metrics(t, c, pod, id) })
	c.subtest(t, "Prometheus", prometheus)
	c.subtest(t, "exited", func(t *testing.T, c *criNode) {
		r, err := c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: ended})
		c.must(err)
		if s := r.GetStats(); s.GetAttributes().GetId() != ended || s.GetMemory() != nil {
			t.Errorf("stats of a container that has exited: %v", s)
		}
		_, err = c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: "none"})
		fails(t, err, codes.NotFound, "not found")
		_, err = c.PodSandboxStats(c.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: "none"})
		fails(t, err, codes.NotFound, "not found")
	})
	c.end()
}

func containerStats(t *testing.T, c *criNode, pod, id, idle string) {
	var s *runtimeapi.ContainerStats
	node.Eventually(t, 30*time.Second, func() string {
		r, err := c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		c.must(err)
		s = r.GetStats()
		if s.GetCpu().GetUsageNanoCores().GetValue() == 0 || s.GetWritableLayer().GetUsedBytes().GetValue() < 3_000_000 {
			return fmt.Sprintf("the stats are %v", s)
		}
		return ""
	})
	m := s.GetMemory()
	available := m.GetAvailableBytes().GetValue()
	if m.GetWorkingSetBytes().GetValue() == 0 || m.GetUsageBytes().GetValue() < m.GetWorkingSetBytes().GetValue() || available == 0 || available > 64<<20 || m.GetPageFaults().GetValue() == 0 {
		t.Errorf("memory: %v", m)
	}
	if cpu := s.GetCpu(); cpu.GetTimestamp() == 0 || cpu.GetUsageCoreNanoSeconds().GetValue() == 0 || cpu.GetUsageNanoCores().GetValue() > 300_000_000 {
		t.Errorf("CPU of a container limited to a tenth of one: %v", cpu)
	}
	if s.GetAttributes().GetMetadata().GetName() == "" || s.GetWritableLayer().GetInodesUsed().GetValue() == 0 || s.GetWritableLayer().GetTimestamp() == 0 {
		t.Errorf("stats: %v", s)
	}
	for _, f := range []struct {
		filter *runtimeapi.ContainerStatsFilter
		want   []string
	}{
		{nil, []string{id, idle}},
		{&runtimeapi.ContainerStatsFilter{Id: id}, []string{id}},
		{&runtimeapi.ContainerStatsFilter{PodSandboxId: pod}, []string{id, idle}},
		{&runtimeapi.ContainerStatsFilter{PodSandboxId: "none"}, nil},
		{&runtimeapi.ContainerStatsFilter{LabelSelector: s.GetAttributes().GetLabels()}, []string{id}},
	} {
		r, err := c.ListContainerStats(c.ctx, &runtimeapi.ListContainerStatsRequest{Filter: f.filter})
		c.must(err)
		var listed, streamed []string
		for _, one := range r.GetStats() {
			listed = append(listed, one.GetAttributes().GetId())
		}
		stream, err := c.StreamContainerStats(c.ctx, &runtimeapi.StreamContainerStatsRequest{Filter: f.filter})
		c.must(err)
		for part, err := stream.Recv(); err == nil; part, err = stream.Recv() {
			for _, one := range part.GetContainerStats() {
				streamed = append(streamed, one.GetAttributes().GetId())
			}
		}
		for _, list := range [][]string{f.want, listed, streamed} {
			slices.Sort(list)
		}
		if !slices.Equal(listed, f.want) || !slices.Equal(streamed, f.want) {
			t.Errorf("filter %v: listed %v, streamed %v, want %v", f.filter, listed, streamed, f.want)
		}
	}
}

func sandboxStats(t *testing.T, c *criNode, pod, id string) {
	c.sh(id, "wget -q -T 5 -O /dev/null http://"+node.Address4+"/ || true")
	r, err := c.PodSandboxStats(c.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	c.must(err)
	l := r.GetStats().GetLinux()
	if l.GetCpu().GetUsageCoreNanoSeconds().GetValue() == 0 || l.GetMemory().GetWorkingSetBytes().GetValue() == 0 || len(l.GetContainers()) != 2 || l.GetProcess().GetProcessCount().GetValue() < 2 {
		t.Errorf("stats: %v", l)
	}
	if n := l.GetNetwork(); n.GetDefaultInterface().GetName() != "eth0" || n.GetDefaultInterface().GetTxBytes().GetValue() == 0 || n.GetTimestamp() == 0 {
		t.Errorf("network: %v", n)
	}
	empty := c.pod()
	r, err = c.PodSandboxStats(c.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: empty})
	c.must(err)
	if n := r.GetStats().GetLinux().GetNetwork(); n.GetDefaultInterface().GetName() != "eth0" {
		t.Errorf("stats of a pod without containers: %v", r.GetStats())
	}
	for id, want := range map[string]int{"": 2, pod: 1, "none": 0} {
		list, err := c.ListPodSandboxStats(c.ctx, &runtimeapi.ListPodSandboxStatsRequest{Filter: &runtimeapi.PodSandboxStatsFilter{Id: id}})
		c.must(err)
		stream, err := c.StreamPodSandboxStats(c.ctx, &runtimeapi.StreamPodSandboxStatsRequest{Filter: &runtimeapi.PodSandboxStatsFilter{Id: id}})
		c.must(err)
		n := 0
		for part, err := stream.Recv(); err == nil; part, err = stream.Recv() {
			n += len(part.GetPodSandboxStats())
		}
		if len(list.GetStats()) != want || n != want {
			t.Errorf("id %q: %d listed, %d streamed, want %d", id, len(list.GetStats()), n, want)
		}
	}
}

// metrics checks that metrics have as many labels as their descriptors name, and plausible values.
func metrics(t *testing.T, c *criNode, pod, id string) {
	d, err := c.ListMetricDescriptors(c.ctx, &runtimeapi.ListMetricDescriptorsRequest{})
	c.must(err)
	keys := map[string]int{}
	for _, m := range d.GetDescriptors() {
		if m.GetHelp() == "" || keys[m.GetName()] != 0 {
			t.Errorf("descriptor: %v", m)
		}
		keys[m.GetName()] = len(m.GetLabelKeys())
	}
	r, err := c.ListPodSandboxMetrics(c.ctx, &runtimeapi.ListPodSandboxMetricsRequest{})
	c.must(err)
	seen := map[string]uint64{}
	for _, p := range r.GetPodMetrics() {
		for _, k := range p.GetContainerMetrics() {
			p.Metrics = append(p.Metrics, k.GetMetrics()...)
		}
		for _, m := range p.GetMetrics() {
			if len(m.GetLabelValues()) != keys[m.GetName()] || m.GetTimestamp() == 0 {
				t.Errorf("metric %v: %d labels in its descriptor", m, keys[m.GetName()])
			}
			if p.GetPodSandboxId() == pod {
				seen[m.GetName()] = max(seen[m.GetName()], m.GetValue().GetValue())
			}
		}
	}
	for _, name := range []string{
		"container_memory_working_set_bytes", "container_spec_memory_limit_bytes", "container_spec_cpu_quota", "container_network_transmit_bytes_total",
		"container_processes", "container_file_descriptors", "container_fs_usage_bytes", "container_start_time_seconds", "container_last_seen", "container_threads",
	} {
		if seen[name] == 0 {
			t.Errorf("%s of container %s is 0", name, id)
		}
	}
}

// prometheus tests huskd's own metrics page.
func prometheus(t *testing.T, c *criNode) {
	_, _ = c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: "none"})
	page := c.Must("curl", "-sS", "http://127.0.0.1:9477/metrics")
	for _, line := range []string{
		`husk_sandboxes{state="ready"} `, `husk_containers{state="running"} 2`, "husk_images 1\n", "husk_network_debts 0\n",
		`husk_step_seconds_count{of="sandbox",step="attach"} `, `husk_step_seconds_count{of="container",step="create"} `,
		`husk_call_seconds_count{code="NotFound",method="ContainerStatus",service="runtime.v1.RuntimeService"} 1`,
		`husk_call_seconds_count{code="OK",method="RunPodSandbox",service="runtime.v1.RuntimeService"} `,
	} {
		if !strings.Contains(page, line) {
			t.Errorf("the metrics page lacks %q", line)
		}
	}
}

// TestCRIEvents tests the stream of container events.
func TestCRIEvents(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	c.pull(webImage)
	ctx, cancel := context.WithCancel(c.ctx)
	events, err := c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	c.must(err)
	_, err = c.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}) // a stream that is never read
	c.must(err)
	_, err = events.Header() // the stream is established
	c.must(err)
	pod := c.pod()
	id := c.run(pod, "exit 5")
	c.exited(id)
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
	var got []string
	for len(got) == 0 || got[len(got)-1] != "DELETED sandbox" {
		e, err := events.Recv()
		c.must(err)
		kind := strings.TrimSuffix(strings.TrimPrefix(e.GetContainerEventType().String(), "CONTAINER_"), "_EVENT")
		switch e.GetContainerId() {
		case pod:
			got = append(got, kind+" sandbox")
		case id:
			got = append(got, kind+" container")
			if s := e.GetPodSandboxStatus(); s != nil && s.GetId() != pod || e.GetCreatedAt() == 0 {
				t.Errorf("event: %v", e)
			}
		}
	}
	for _, want := range [][]string{
		{"CREATED container", "STARTED container", "STOPPED container", "DELETED container", "DELETED sandbox"},
		{"CREATED sandbox", "STARTED sandbox", "STOPPED sandbox", "DELETED sandbox"},
	} {
		at := -1
		for _, w := range want {
			if i := slices.Index(got, w); i <= at {
				t.Errorf("%s is missing or out of order in %v", w, got)
			} else {
				at = i
			}
		}
	}
	cancel()
	c.end()
}
