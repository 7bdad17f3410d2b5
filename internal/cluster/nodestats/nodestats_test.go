package nodestats

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/host"
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
		if full != (n.Fs != nil && *n.Fs.CapacityBytes > 0 && *n.Runtime.ImageFs.UsedBytes == 7) {
			t.Errorf("%q: %s", query, w.Body)
		}
	}
}
