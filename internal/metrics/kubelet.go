package metrics

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// operations are the metrics of the work that a kubelet asks of its runtime, in its names.
type operations struct {
	total, failures *prometheus.CounterVec
	took            *prometheus.HistogramVec
}

// operationTypes are the kubelet's names of huskd's own work for a pod, by the names of the spans.
var operationTypes = map[string]string{
	"agent/CreateSandbox": "run_podsandbox", "agent/StartContainer": "start_container", "agent/PullImage": "pull_image",
}

func newOperations() operations {
	of := []string{"operation_type"}
	return operations{
		total:    prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_total", Help: "Operations on sandboxes, containers and images."}, of),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "kubelet_runtime_operations_errors_total", Help: "Those of them that failed."}, of),
		took: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelet_runtime_operations_duration_seconds", Help: "How long they took.", Buckets: buckets,
		}, of),
	}
}

// Begin measures the work for a pod that begins, beside the span that the next Begin starts: see
// agent.Config.
func (m *Metrics) Begin(next func(ctx context.Context, name string, about ...string) (context.Context, func(error))) func(context.Context, string, ...string) (context.Context, func(error)) {
	return func(ctx context.Context, name string, about ...string) (context.Context, func(error)) {
		began := time.Now()
		ctx, end := next(ctx, name, about...)
		return ctx, func(err error) {
			if of, ok := operationTypes[name]; ok {
				m.operations.total.WithLabelValues(of).Inc()
				m.operations.took.WithLabelValues(of).Observe(time.Since(began).Seconds())
				if err != nil {
					m.operations.failures.WithLabelValues(of).Inc()
				}
			}
			end(err)
		}
	}
}

// OfNode returns a handler of the metrics and, in the names that tools read from a kubelet, those
// of the node.
func (m *Metrics) OfNode(node prometheus.Collector) http.Handler {
	kubelet := prometheus.NewRegistry()
	kubelet.MustRegister(node, m.operations.total, m.operations.failures, m.operations.took)
	return promhttp.HandlerFor(prometheus.Gatherers{m.registry, kubelet}, promhttp.HandlerOpts{})
}
