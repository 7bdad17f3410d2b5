package nodestats

import (
	"cmp"
	"math"
	"net/http"
	"slices"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/probe"
)

// ServeProbes serves /metrics/probes.
func (s Source) ServeProbes(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_ = s.probes().write(w)
}

// probes returns the results and durations of probes.
func (s Source) probes() *metrics {
	m := &metrics{}
	pods := map[string]agent.Pod{}
	for _, p := range s.Pods() {
		pods[string(p.Manifest.UID)] = p
	}
	for _, t := range s.Tallies() {
		p, ok := pods[t.Pod]
		if !ok {
			continue
		}
		labels := []*dto.LabelPair{
			label("container", t.Container), label("namespace", p.Manifest.Namespace), label("pod", p.ReportedName(s.Node)), label("probe_type", title(t.Kind)),
		}
		m.addDurations("prober_probe_duration_seconds", labels, t)
		for _, of := range []struct {
			result string
			n      uint64
		}{{"successful", t.Succeeded}, {"failed", t.Failed}, {"unknown", t.Unknown}} {
			if of.n > 0 {
				m.family("prober_probe_total", "Checks of a probe.", true)
				m.add("prober_probe_total", sorted(append(slices.Clone(labels), label("pod_uid", t.Pod), label("result", of.result))), float64(of.n), time.Time{})
			}
		}
	}
	m.family("process_start_time_seconds", "Start of huskd, in seconds since 1970.", false)
	m.add("process_start_time_seconds", nil, float64(s.Started.UnixNano())/1e9, time.Time{})
	return m
}

// addDurations adds a histogram.
func (m *metrics) addDurations(name string, labels []*dto.LabelPair, t probe.Tally) {
	f := m.family(name, "How long the checks of a probe took.", false)
	f.Type = dto.MetricType_HISTOGRAM.Enum()
	h := &dto.Histogram{SampleCount: new(t.Checks()), SampleSum: &t.Seconds}
	for i, n := range t.Within {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: new(probe.Buckets[i]), CumulativeCount: new(n)})
	}
	h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: new(math.Inf(1)), CumulativeCount: new(t.Checks())})
	f.Metric = append(f.Metric, &dto.Metric{Label: labels, Histogram: h})
}

func sorted(labels []*dto.LabelPair) []*dto.LabelPair {
	slices.SortFunc(labels, func(a, b *dto.LabelPair) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return labels
}

// title returns a kind of probe as the kubelet spells it, such as Readiness.
func title(kind string) string { return string(kind[0]-'a'+'A') + kind[1:] }
