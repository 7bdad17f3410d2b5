// Package metrics exports Prometheus metrics of huskd: durations and failures of calls, of
// the steps of pods, of CNI plugins and of pulls, and the numbers of objects.
package metrics

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/huskd/husk/internal/cni"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/dns/nameserver"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// Sources return the current objects.
type Sources struct {
	Sandboxes  func() iter.Seq[*sandbox.Status]
	Containers func() iter.Seq[*container.Status]
	Images     func() []image.Image
	// Refused returns the number of problems for which files in the manifests directory are
	// refused.
	Refused func() int
	// Debts returns the number of network debts.
	Debts func() int
	// Dropped returns how many packets the pod network has dropped.
	Dropped func() ([]network.Dropped, error)
	// Nodes returns the state of the other nodes of the pod network.
	Nodes func() nodes.Status
	// Policy returns what network policy says about this node's pods.
	Policy func() firewall.Report
	// Tracked returns how full the node's connection tracking table is.
	Tracked func() (network.Connections, error)
	// Names returns what huskd's DNS server was asked. It is nil if there is none.
	Names func() nameserver.Usage
}

// Metrics are the metrics of huskd.
type Metrics struct {
	registry *prometheus.Registry
	page     http.Handler
	calls    *prometheus.HistogramVec
	steps    stage
	plugins  stage
	pulls    stage
	operations
}

// stage has the durations and failures of one kind of work.
type stage struct {
	took     *prometheus.HistogramVec
	failures *prometheus.CounterVec
}

// newStage returns a stage with the metrics husk_NAME_seconds, for successes only, and
// husk_NAME_failures_total.
func newStage(name, what string, labels ...string) stage {
	return stage{
		prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "husk_" + name + "_seconds", Help: "How long " + what + " took that succeeded.", Buckets: buckets,
		}, labels),
		prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "husk_" + name + "_failures_total", Help: "How many of " + what + " failed.",
		}, labels),
	}
}

func (s stage) ended(took time.Duration, err error, labels ...string) {
	if err != nil {
		s.failures.WithLabelValues(labels...).Inc()
		return
	}
	s.took.WithLabelValues(labels...).Observe(took.Seconds())
}

// buckets range from a quarter of a millisecond, the duration of an attachment, to half a
// minute, which nothing should take.
var buckets = []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}

// New returns Metrics without observations.
func New(sources Sources) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "husk_call_seconds", Help: "How long calls took, by how they ended.", Buckets: buckets,
		}, []string{"service", "method", "code"}),
		steps:      newStage("step", "the steps of sandboxes and containers", "of", "step"),
		plugins:    newStage("cni", "the runs of CNI plugins", "network", "plugin", "op"),
		pulls:      newStage("pull", "the pulls of images"),
		operations: newOperations(),
	}
	for _, s := range []stage{m.steps, m.plugins, m.pulls} {
		m.registry.MustRegister(s.took, s.failures)
	}
	m.registry.MustRegister(m.calls, &inventory{sources}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	m.page = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

// Unary is an interceptor that records calls. It must be outside of the interceptors that
// convert errors to gRPC statuses.
func (m *Metrics) Unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	began := time.Now()
	answer, err := next(ctx, req)
	m.called(info.FullMethod, began, err)
	return answer, err
}

// Stream is Unary for streams.
func (m *Metrics) Stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	began := time.Now()
	err := next(srv, stream)
	m.called(info.FullMethod, began, err)
	return err
}

func (m *Metrics) called(name string, began time.Time, err error) {
	service, method, _ := strings.Cut(strings.TrimPrefix(name, "/"), "/")
	m.calls.WithLabelValues(service, method, status.Code(err).String()).Observe(time.Since(began).Seconds())
}

// SandboxStep records a step of a sandbox's setup or teardown.
func (m *Metrics) SandboxStep(s pod.Step, err error) { m.steps.ended(s.Took, err, "sandbox", s.Name) }

// ContainerStep records a step of a container's setup or teardown.
func (m *Metrics) ContainerStep(s pod.Step, err error) {
	m.steps.ended(s.Took, err, "container", s.Name)
}

// Plugin records a run of a CNI plugin.
func (m *Metrics) Plugin(r cni.Run) { m.plugins.ended(r.Took, r.Err, r.Network, r.Plugin, r.Op) }

// Pull records a pull of an image.
func (m *Metrics) Pull(took time.Duration, err error) { m.pulls.ended(took, err) }

const (
	// headerTimeout is how long a client may take to send its request's header, and idleTimeout
	// how long it may wait before the next one.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	// maxConnections is more than any monitoring needs.
	maxConnections = 100
)

// ServeHTTP serves the metrics.
func (m *Metrics) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.page.ServeHTTP(w, r) }

// Serve serves /metrics on the listener until ctx ends.
func (m *Metrics) Serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.ServeHTTP)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(netutil.LimitListener(listener, maxConnections)); ctx.Err() == nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// inventory collects the numbers of objects at each scrape.
type inventory struct{ Sources }

var (
	sandboxes  = prometheus.NewDesc("husk_sandboxes", "Pod sandboxes.", []string{"state"}, nil)
	containers = prometheus.NewDesc("husk_containers", "Containers.", []string{"state"}, nil)
	images     = prometheus.NewDesc("husk_images", "Images.", nil, nil)
	imageBytes = prometheus.NewDesc("husk_image_bytes", "Size of all images' blobs.", nil, nil)
	refused    = prometheus.NewDesc("husk_manifest_problems", "Problems of files in the manifests directory, which are refused for them.", nil, nil)
	debts      = prometheus.NewDesc("husk_network_debts", "Attachments of pods that are gone, still to be undone.", nil, nil)
	peers      = prometheus.NewDesc("husk_network_nodes", "Other nodes of the pod network, by the way that packets take to them; none if they can't reach them.", []string{"way"}, nil)
	peerRTT    = prometheus.NewDesc("husk_network_node_rtt_seconds", "Round-trip time to a node.", []string{"node"}, nil)
	unsummed   = prometheus.NewDesc("husk_network_checksum_offload_disabled", "1 for each VXLAN link whose checksum offloading is off, as packets were lost with it.", []string{"link"}, nil)
	dropped    = prometheus.NewDesc("husk_network_dropped_packets_total", "Packets that the pod network drops whatever the policies say, by the reason.", []string{"reason"}, nil)
	denied     = prometheus.NewDesc("husk_network_policy_denied_packets_total", "Packets that pods' network policies denied, by all policies of the pod for that direction; other beyond 100 combinations.", []string{"direction", "policies"}, nil)
	tracked    = prometheus.NewDesc("husk_conntrack_entries", "Entries of the node's connection tracking table.", nil, nil)
	trackable  = prometheus.NewDesc("husk_conntrack_entries_limit", "How many entries the connection tracking table may have.", nil, nil)
	greedy     = prometheus.NewDesc("husk_conntrack_refused_pods", "Pods that begin no further connections, as they hold too much of the connection tracking table.", nil, nil)
	greedDrops = prometheus.NewDesc("husk_conntrack_refused_packets_total", "Packets of pods that begin no further connections, which were dropped.", nil, nil)
	questions  = prometheus.NewDesc("husk_dns_questions_total", "Questions of pods that huskd's DNS server has taken, and connections to it.", nil, nil)
	limited    = prometheus.NewDesc("husk_dns_limited_total", "Questions and connections that got no answer, because a pod asks for more than 1000 names a second. The kernel drops what exceeds twice that, uncounted.", nil, nil)
	peerLoss   = prometheus.NewDesc("husk_network_node_loss_ratio", "Share of the last probes of a node that got no answer.", []string{"node"}, nil)
)

// Describe sends the descriptors of Collect's metrics.
func (*inventory) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{sandboxes, containers, images, imageBytes, refused, debts, peers, peerRTT, peerLoss, unsummed, dropped, denied, tracked, trackable, greedy, greedDrops, questions, limited} {
		to <- d
	}
}

// Collect counts the objects.
func (v *inventory) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, n, labels...)
	}
	inState := map[string]int{}
	for st := range v.Sandboxes() {
		inState[string(st.State)]++
	}
	for state, n := range inState {
		gauge(sandboxes, float64(n), state)
	}
	clear(inState)
	for st := range v.Containers() {
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
	gauge(refused, float64(v.Refused()))
	gauge(debts, float64(v.Debts()))
	v.collectDenied(to)
	if drops, err := v.Dropped(); err == nil {
		for _, d := range drops {
			to <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(d.Count), string(d.Why))
		}
	}
	if c, err := v.Tracked(); err == nil {
		gauge(tracked, float64(c.Entries))
		gauge(trackable, float64(c.Max))
		gauge(greedy, float64(len(c.Refused)))
		to <- prometheus.MustNewConstMetric(greedDrops, prometheus.CounterValue, float64(c.Dropped))
	}
	if v.Names != nil {
		asked := v.Names()
		to <- prometheus.MustNewConstMetric(questions, prometheus.CounterValue, float64(asked.Answers))
		to <- prometheus.MustNewConstMetric(limited, prometheus.CounterValue, float64(asked.Dropped))
	}
	clear(inState)
	others := v.Nodes()
	for _, link := range others.Unsummed {
		gauge(unsummed, 1, link)
	}
	for _, p := range others.Peers {
		inState[cmp.Or(string(p.Way), "none")]++
		if p.Health.Answered {
			gauge(peerRTT, p.Health.RTT.Seconds(), p.Name)
			gauge(peerLoss, p.Health.Loss, p.Name)
		}
	}
	for way, n := range inState {
		gauge(peers, float64(n), way)
	}
}

// maxCombinations is how many combinations of policies have a metric of their own.
const maxCombinations = 100

// collectDenied counts denied packets. Pods with the same policies share a counter in the kernel.
func (v *inventory) collectDenied(to chan<- prometheus.Metric) {
	type combination struct{ direction, policies string }
	counts := map[combination]uint64{}
	for _, p := range v.Policy().Pods {
		for direction, end := range map[string]firewall.End{"ingress": p.Ingress, "egress": p.Egress} {
			if end.Restricted {
				counts[combination{direction, strings.Join(end.Policies, ", ")}] = end.Denied
			}
		}
	}
	keys := slices.SortedFunc(maps.Keys(counts), func(a, b combination) int {
		return cmp.Or(cmp.Compare(a.policies, b.policies), cmp.Compare(a.direction, b.direction))
	})
	if len(keys) > maxCombinations {
		for _, k := range keys[maxCombinations:] {
			counts[combination{k.direction, "other"}] += counts[k]
		}
		keys = append(keys[:maxCombinations:maxCombinations], combination{"ingress", "other"}, combination{"egress", "other"})
	}
	for _, k := range keys {
		to <- prometheus.MustNewConstMetric(denied, prometheus.CounterValue, float64(counts[k]), k.direction, k.policies)
	}
}
