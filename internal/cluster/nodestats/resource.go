package nodestats

import (
	"io"
	"net/http"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/huskd/husk/internal/stats"
)

// ServeResource serves /metrics/resource.
func (s Source) ServeResource(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_ = s.resource().write(w)
}

// resource reads the usage of the node and of all running pods. A cgroup that is gone by now is
// left out.
func (s Source) resource() *metrics {
	m := &metrics{}
	failed := 0.0
	if u, err := stats.Node(); err == nil {
		m.addUsage("node", nil, u)
	} else {
		failed = 1
	}
	for _, p := range s.running() {
		pod := []*dto.LabelPair{label("namespace", p.Manifest.Namespace), label("pod", p.name)}
		cgroup := s.Cgroup(p.sandbox)
		for _, c := range p.containers {
			if u, err := s.Meter.Cgroup(c.Cgroup(cgroup)); err == nil {
				container := append([]*dto.LabelPair{label("container", c.Name())}, pod...)
				m.addUsage("container", container, u)
				m.add("container_start_time_seconds", container, float64(c.Started.UnixNano())/1e9, u.At)
			}
		}
		if u, err := s.Meter.Cgroup(cgroup); err == nil {
			m.addUsage("pod", pod, u)
		}
	}
	m.add("resource_scrape_error", nil, failed, time.Time{})
	return m
}

func label(name, value string) *dto.LabelPair { return &dto.LabelPair{Name: &name, Value: &value} }

// metrics are metric families, in the order in which they were first added.
type metrics struct {
	families []*dto.MetricFamily
	index    map[string]int // of families, by name
}

// help is the help text of each metric, by its name without the node_, pod_ or container_ before.
var help = map[string]string{
	"cpu_usage_seconds_total":  "processor time, in seconds",
	"memory_working_set_bytes": "memory that can't be dropped at once, in bytes",
	"swap_usage_bytes":         "swapped memory, in bytes",
	"start_time_seconds":       "start, in seconds since 1970",
	"scrape_error":             "1 if a figure could not be read, otherwise 0",
}

// addUsage adds the usage of a node, a pod or a container.
func (m *metrics) addUsage(kind string, labels []*dto.LabelPair, u *stats.Usage) {
	m.add(kind+"_cpu_usage_seconds_total", labels, float64(u.CPU.Used)/1e9, u.At)
	m.add(kind+"_memory_working_set_bytes", labels, float64(u.Memory.WorkingSet), u.At)
	m.add(kind+"_swap_usage_bytes", labels, float64(u.Memory.Swap), u.At)
}

// add adds a sample: a counter if name ends in _total, otherwise a gauge. A zero time is left out.
func (m *metrics) add(name string, labels []*dto.LabelPair, value float64, at time.Time) {
	_, rest, _ := strings.Cut(name, "_")
	f := m.family(name, help[rest], strings.HasSuffix(name, "_total"))
	sample := &dto.Metric{Label: labels}
	if f.GetType() == dto.MetricType_COUNTER {
		sample.Counter = &dto.Counter{Value: &value}
	} else {
		sample.Gauge = &dto.Gauge{Value: &value}
	}
	if !at.IsZero() {
		sample.TimestampMs = new(at.UnixMilli())
	}
	f.Metric = append(f.Metric, sample)
}

// family returns the metric of that name, which it adds if there is none yet.
func (m *metrics) family(name, help string, counter bool) *dto.MetricFamily {
	i, ok := m.index[name]
	if !ok {
		if m.index == nil {
			m.index = map[string]int{}
		}
		kind := dto.MetricType_GAUGE
		if counter {
			kind = dto.MetricType_COUNTER
		}
		i = len(m.families)
		m.index[name] = i
		m.families = append(m.families, &dto.MetricFamily{Name: &name, Help: &help, Type: &kind})
	}
	return m.families[i]
}

// write writes all metrics in Prometheus' text format.
func (m *metrics) write(w io.Writer) error {
	for _, f := range m.families {
		if _, err := expfmt.MetricFamilyToText(w, f); err != nil {
			return err
		}
	}
	return nil
}
