// Package metrics tells Prometheus what huskd does and has: how long calls and
// the steps of a pod take, what fails, and what there is.
package metrics

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/container"
	containerlife "github.com/huskd/husk/internal/container/lifecycle"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/lifecycle"
)

// Sources say what there is at the moment.
type Sources struct {
	Sandboxes  func() []sandbox.Status
	Containers func() []container.Status
	Images     func() []image.Image
	// Debts counts what is still owed to the network of pods that are gone.
	Debts func() int
}

// Metrics are what is counted.
type Metrics struct {
	registry *prometheus.Registry
	calls    *prometheus.HistogramVec
	steps    *prometheus.HistogramVec
}

// buckets go from a quarter of a millisecond, which an attachment takes, to half
// a minute, which nothing should.
var buckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// New returns metrics of which nothing is counted yet.
func New(sources Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "husk_call_seconds", Help: "How long calls took, by how they ended.", Buckets: buckets,
		}, []string{"service", "method", "code"}),
		steps: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "husk_step_seconds", Help: "How long the steps took by which sandboxes and containers came up.", Buckets: buckets,
		}, []string{"of", "step"}),
	}
	m.registry.MustRegister(m.calls, m.steps, &inventory{sources}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Unary counts calls. It comes before what makes their errors gRPC's.
func (m *Metrics) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	began := time.Now()
	answer, err := next(ctx, req)
	service, method, _ := strings.Cut(strings.TrimPrefix(info.FullMethod, "/"), "/")
	m.calls.WithLabelValues(service, method, status.Code(err).String()).Observe(time.Since(began).Seconds())
	return answer, err
}

// Sandbox is told of every change of a sandbox's state.
func (m *Metrics) Sandbox(st sandbox.Status) {
	if st.State == lifecycle.Ready {
		m.took("sandbox", st.Steps)
	}
}

// Container is told of every change of a container's state.
func (m *Metrics) Container(st container.Status) {
	if st.State == containerlife.Running {
		m.took("container", st.Steps)
	}
}

func (m *Metrics) took(of string, steps []pod.Step) {
	for _, s := range steps {
		m.steps.WithLabelValues(of, s.Name).Observe(s.Took.Seconds())
	}
}

// headerTimeout is how long a client may take to say what it wants.
const headerTimeout = 10 * time.Second

// Serve serves /metrics on the listener until ctx ends.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// inventory collects what there is when it is asked for.
type inventory struct{ Sources }

var (
	sandboxes  = prometheus.NewDesc("husk_sandboxes", "Pod sandboxes.", []string{"state"}, nil)
	containers = prometheus.NewDesc("husk_containers", "Containers.", []string{"state"}, nil)
	images     = prometheus.NewDesc("husk_images", "Images.", nil, nil)
	imageBytes = prometheus.NewDesc("husk_image_bytes", "Size of all images' blobs.", nil, nil)
	debts      = prometheus.NewDesc("husk_network_debts", "Attachments of pods that are gone, still to be undone.", nil, nil)
)

// Describe names what Collect collects.
func (*inventory) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxes, containers, images, imageBytes, debts} {
		to <- d
	}
}

// Collect counts.
func (v *inventory) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	inState := map[string]int{}
	for _, st := range v.Sandboxes() {
		inState[string(st.State)]++
	}
	for state, n := range inState {
		gauge(sandboxes, float64(n), state)
	}
	clear(inState)
	for _, st := range v.Containers() {
		inState[string(st.State)]++
	}
	for state, n := range inState {
		gauge(containers, float64(n), state)
	}
	var bytes int64
	list := v.Images()
	for _, img := range list {
		bytes += img.Size
	}
	gauge(images, float64(len(list)))
	gauge(imageBytes, float64(bytes))
	gauge(debts, float64(v.Debts()))
}
