package cri

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stats/cadvisor"
)

// readMetrics returns the samples of metrics for a subject. CRI's samples are whole numbers.
func readMetrics(of *cadvisor.Subject, lists ...[]cadvisor.Metric) (out []*runtimeapi.Metric) {
	for _, list := range lists {
		for _, m := range list {
			kind := runtimeapi.MetricType_GAUGE
			if m.Counter {
				kind = runtimeapi.MetricType_COUNTER
			}
			for _, v := range m.Read(of) {
				out = append(out, sample(of, m.Name, kind, v))
			}
		}
	}
	return out
}

// readTraffic returns the samples of a pod's interfaces.
func readTraffic(of *cadvisor.Subject, interfaces []stats.Interface) (out []*runtimeapi.Metric) {
	for _, m := range cadvisor.Interfaces {
		for _, i := range interfaces {
			out = append(out, sample(of, m.Name, runtimeapi.MetricType_COUNTER, cadvisor.Value{Of: float64(m.Read(i)), Labels: []string{i.Name}}))
		}
	}
	return out
}

func sample(of *cadvisor.Subject, name string, kind runtimeapi.MetricType, v cadvisor.Value) *runtimeapi.Metric {
	return &runtimeapi.Metric{
		Name: name, MetricType: kind, Timestamp: time.Now().UnixNano(),
		LabelValues: append(of.Labels(), v.Labels...), Value: number(uint64(v.Of)),
	}
}

func descriptors() []*runtimeapi.MetricDescriptor {
	var out []*runtimeapi.MetricDescriptor
	add := func(name, help string, keys ...string) {
		keys = append(cadvisor.LabelKeys[:len(cadvisor.LabelKeys):len(cadvisor.LabelKeys)], keys...)
		out = append(out, &runtimeapi.MetricDescriptor{Name: name, Help: help, LabelKeys: keys})
	}
	for _, list := range [][]cadvisor.Metric{cadvisor.Cgroups, cadvisor.Containers} {
		for _, m := range list {
			add(m.Name, m.Help, m.Keys...)
		}
	}
	for _, m := range cadvisor.Interfaces {
		add(m.Name, m.Help, "interface")
	}
	return out
}
