package nodestats

import (
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/stats"
)

func TestMetricsText(t *testing.T) {
	t.Parallel()
	m := &metrics{}
	at := time.UnixMilli(5000)
	used := &stats.Usage{At: at, CPU: stats.CPU{Used: 1500000000}, Memory: stats.Memory{WorkingSet: 1 << 20, Swap: 3}}
	m.addUsage("node", nil, used)
	for _, name := range []string{"a", "b"} {
		labels := []*dto.LabelPair{label("container", name), label("namespace", "default"), label("pod", "web")}
		m.add("container_start_time_seconds", labels, 2.5, at)
	}
	m.add("resource_scrape_error", nil, 0, time.Time{})
	want := `# HELP node_cpu_usage_seconds_total processor time, in seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 1.5 5000
# HELP node_memory_working_set_bytes memory that can't be dropped at once, in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.048576e+06 5000
# HELP node_swap_usage_bytes swapped memory, in bytes
# TYPE node_swap_usage_bytes gauge
node_swap_usage_bytes 3 5000
# HELP container_start_time_seconds start, in seconds since 1970
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="a",namespace="default",pod="web"} 2.5 5000
container_start_time_seconds{container="b",namespace="default",pod="web"} 2.5 5000
# HELP resource_scrape_error 1 if a figure could not be read, otherwise 0
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`
	var got strings.Builder
	if err := m.write(&got); err != nil || got.String() != want {
		t.Errorf("%v, got:\n%s\nwant:\n%s", err, got.String(), want)
	}
}

// TestCadvisor: without pods there are the figures of the machine and of the root cgroup, in the
// form that Prometheus reads.
func TestCadvisor(t *testing.T) {
	t.Parallel()
	s := Source{
		Node: "here", Pods: func() []agent.Pod { return nil }, Meter: stats.New(host.Cgroup{}, nil), Root: "/", Booted: stats.Booted(),
		Info: func() corev1.NodeSystemInfo {
			return corev1.NodeSystemInfo{BootID: "b", MachineID: "m", SystemUUID: "u"}
		},
	}
	families := parse(t, s.ServeCadvisor)
	memory := families["machine_memory_bytes"].GetMetric()
	if len(memory) != 1 || memory[0].GetGauge().GetValue() < 1<<20 || !maps.Equal(labelsOf(memory[0]), map[string]string{"boot_id": "b", "machine_id": "m", "system_uuid": "u"}) {
		t.Errorf("%v", memory)
	}
	cpu := families["container_cpu_usage_seconds_total"].GetMetric()
	if len(cpu) != 1 || cpu[0].GetCounter().GetValue() == 0 || cpu[0].GetTimestampMs() == 0 {
		t.Fatalf("%v", cpu)
	}
	if want := map[string]string{"container": "", "cpu": "total", "id": "/", "image": "", "name": "", "namespace": "", "pod": ""}; !maps.Equal(labelsOf(cpu[0]), want) {
		t.Errorf("%v", cpu[0])
	}
	if got := families["machine_scrape_error"].GetMetric()[0].GetGauge().GetValue(); got != 0 {
		t.Error(got)
	}
	_, err := os.Stat("/proc/pressure/cpu")
	if _, has := families["container_pressure_cpu_waiting_seconds_total"]; has != (err == nil) {
		t.Errorf("the pressure is there: %v, and the kernel's is: %v", has, err)
	}
}

// TestKubeletMetrics counts pods by their source and state, and containers by their state.
func TestKubeletMetrics(t *testing.T) {
	t.Parallel()
	run := func(name string, edit func(*container.Status)) container.Status {
		st := container.Status{ID: name, Sandbox: "s", Started: time.Unix(1, 0), State: containerstate.Running, Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name}}}
		edit(&st)
		return st
	}
	containers := []container.Status{
		run("a", func(*container.Status) {}), run("b", func(st *container.Status) { st.Finished = true }), run("c", func(st *container.Status) { st.Started = time.Time{} }),
	}
	of := func(from string, want podplan.Want, finished bool) agent.Pod {
		return agent.Pod{Source: from, Want: want, Finished: finished, Manifest: &corev1.Pod{}, Sandboxes: []sandbox.Status{{ID: "s", State: sandboxstate.Ready}}}
	}
	api := of("api:x", podplan.Run, false)
	api.Containers = containers
	ended := of("api:y", podplan.Run, true)
	ended.Sandboxes = nil
	registry := prometheus.NewRegistry()
	registry.MustRegister(Source{
		Node: "here", Pods: func() []agent.Pod { return []agent.Pod{api, of("file:/x", podplan.Stop, false), ended} },
		Info:           func() corev1.NodeSystemInfo { return corev1.NodeSystemInfo{KubeletVersion: "v1"} },
		UserNamespaced: func() (started, failed uint64) { return 3, 1 },
	})
	w := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range []string{
		`kubelet_node_name{node="here"} 1`, "kubelet_running_pods 2", `kubelet_running_containers{container_state="running"} 1`,
		`kubelet_running_containers{container_state="exited"} 1`, `kubelet_running_containers{container_state="created"} 1`,
		`kubelet_desired_pods{static=""} 2`, `kubelet_desired_pods{static="true"} 0`, `kubelet_active_pods{static=""} 1`, `kubelet_active_pods{static="true"} 1`,
		"kubelet_started_user_namespaced_pods_total 3", "kubelet_started_user_namespaced_pods_errors_total 1",
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("no line %s in\n%s", line, w.Body)
		}
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	pod := agent.Pod{Source: "file:/x", Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "u"}}}
	s := Source{
		Node: "here", Pods: func() []agent.Pod { return []agent.Pod{pod} }, Started: time.Unix(5, 0),
		Tallies: func() []probe.Tally {
			return []probe.Tally{{Pod: "gone", Container: "c", Kind: "startup", Failed: 1}, {Pod: "u", Container: "c", Kind: "liveness", Succeeded: 3, Failed: 1, Seconds: 2, Within: [11]uint64{1: 4, 10: 4}}}
		},
	}
	w := httptest.NewRecorder()
	s.ServeProbes(w, httptest.NewRequest(http.MethodGet, "/metrics/probes", nil))
	for _, line := range []string{
		`prober_probe_total{container="c",namespace="ns",pod="web-here",pod_uid="u",probe_type="Liveness",result="successful"} 3`,
		`prober_probe_total{container="c",namespace="ns",pod="web-here",pod_uid="u",probe_type="Liveness",result="failed"} 1`,
		`prober_probe_duration_seconds_bucket{container="c",namespace="ns",pod="web-here",probe_type="Liveness",le="0.01"} 4`,
		`prober_probe_duration_seconds_sum{container="c",namespace="ns",pod="web-here",probe_type="Liveness"} 2`,
		`prober_probe_duration_seconds_count{container="c",namespace="ns",pod="web-here",probe_type="Liveness"} 4`,
		`process_start_time_seconds 5`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("no line %s in\n%s", line, w.Body)
		}
	}
	if strings.Contains(w.Body.String(), "Startup") || strings.Contains(w.Body.String(), "unknown") {
		t.Errorf("%s", w.Body)
	}
}

func labelsOf(m *dto.Metric) map[string]string {
	out := map[string]string{}
	for _, l := range m.GetLabel() {
		out[l.GetName()] = l.GetValue()
	}
	return out
}

// parse returns the metrics that a handler serves, by name.
func parse(t *testing.T, h http.HandlerFunc) map[string]*dto.MetricFamily {
	t.Helper()
	w := httptest.NewRecorder()
	h(w, httptest.NewRequest(http.MethodGet, "/", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(w.Body)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// TestSummaryWithoutPods: the node has figures of its own, and pods is an empty list, not null.
func TestSummaryWithoutPods(t *testing.T) {
	t.Parallel()
	s := Source{
		Node: "here", Pods: func() []agent.Pod { return nil }, Meter: stats.New(host.Cgroup{}, nil), Root: "/",
		Images: func() (int64, int64) { return 7, 1 }, Booted: stats.Booted(),
	}
	for query, full := range map[string]bool{"": true, "?only_cpu_and_memory=true": false} {
		w := httptest.NewRecorder()
		s.ServeSummary(w, httptest.NewRequest(http.MethodGet, "/stats/summary"+query, nil))
		var got v1alpha1.Summary
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		n := got.Node
		if n.NodeName != "here" || *n.CPU.UsageCoreNanoSeconds == 0 || *n.Memory.WorkingSetBytes == 0 || n.Memory.AvailableBytes == nil || n.StartTime.IsZero() || !strings.Contains(w.Body.String(), `"pods":[]`) {
			t.Errorf("%s", w.Body)
		}
		if _, err := os.Stat("/proc/pressure/io"); (err == nil) != (n.CPU.PSI != nil && n.Memory.PSI != nil && n.IO != nil && n.IO.PSI != nil) || n.Swap == nil {
			t.Errorf("pressure or swap: %s", w.Body)
		}
		if full != (n.Fs != nil && *n.Fs.CapacityBytes > 0 && *n.Runtime.ImageFs.UsedBytes == 7) {
			t.Errorf("%q: %s", query, w.Body)
		}
	}
}
