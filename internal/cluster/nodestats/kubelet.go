package nodestats

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/version"
)

var (
	nodeName          = prometheus.NewDesc("kubelet_node_name", "The node's name; always 1.", []string{"node"}, nil)
	buildInfo         = prometheus.NewDesc("kubernetes_build_info", "The version of the node; always 1.", []string{"git_version", "go_version"}, nil)
	runningPods       = prometheus.NewDesc("kubelet_running_pods", "Pods with a sandbox that is ready.", nil, nil)
	runningContainers = prometheus.NewDesc("kubelet_running_containers", "Containers, by state.", []string{"container_state"}, nil)
	desiredPods       = prometheus.NewDesc("kubelet_desired_pods", "Pods that should run.", []string{"static"}, nil)
	activePods        = prometheus.NewDesc("kubelet_active_pods", "Pods that run or still have something to do.", []string{"static"}, nil)

	userNamespaced       = prometheus.NewDesc("kubelet_started_user_namespaced_pods_total", "Starts of pods with a user namespace.", nil, nil)
	userNamespacedErrors = prometheus.NewDesc("kubelet_started_user_namespaced_pods_errors_total", "Failed starts of pods with a user namespace.", nil, nil)
)

// Describe sends the descriptors of Collect's metrics.
func (s Source) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{nodeName, buildInfo, runningPods, runningContainers, desiredPods, activePods, userNamespaced, userNamespacedErrors} {
		to <- d
	}
}

// Collect counts the pods and containers, in the kubelet's names.
func (s Source) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	gauge(nodeName, 1, s.Node)
	gauge(buildInfo, 1, s.Info().KubeletVersion, version.Go())
	gauge(runningPods, len(s.running()))
	started, failed := s.UserNamespaced()
	to <- prometheus.MustNewConstMetric(userNamespaced, prometheus.CounterValue, float64(started))
	to <- prometheus.MustNewConstMetric(userNamespacedErrors, prometheus.CounterValue, float64(failed))
	containers := map[string]int{"running": 0, "exited": 0, "created": 0}
	desired, active := map[string]int{"true": 0, "": 0}, map[string]int{"true": 0, "": 0}
	for _, p := range s.Pods() {
		static := "true"
		if strings.HasPrefix(p.Source, string(source.API)) {
			static = ""
		}
		if p.Want == podplan.Run {
			desired[static]++
		}
		if !p.Finished {
			active[static]++
		}
		for _, c := range p.Containers {
			switch view.ContainerState(c) {
			case podplan.ContainerRunning:
				containers["running"]++
			case podplan.ContainerExited:
				containers["exited"]++
			case podplan.ContainerCreated:
				containers["created"]++
			}
		}
	}
	for state, n := range containers {
		gauge(runningContainers, n, state)
	}
	for static, n := range desired {
		gauge(desiredPods, n, static)
		gauge(activePods, active[static], static)
	}
}
