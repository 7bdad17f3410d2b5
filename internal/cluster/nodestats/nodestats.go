// Package nodestats reports what the node and its pods use, in the kubelet's formats:
// /metrics/resource, which metrics-server reads for kubectl top, /metrics/cadvisor, which
// dashboards read, /metrics/probes and /stats/summary.
package nodestats

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
)

// Source reads the usage of the node and its pods and serves it over HTTP.
type Source struct {
	// Node is the node's name.
	Node  string
	Pods  func() []agent.Pod
	Meter *stats.Meter
	// Cgroup returns the cgroup of a sandbox.
	Cgroup func(sandbox.Status) string
	// Layer returns the directory of a container's writable layer.
	Layer func(container string) string
	// EmptyDir returns the directory of a pod's emptyDir volume.
	EmptyDir func(uid, name string) string
	// Images returns the disk space of all images.
	Images func() (bytes, inodes int64)
	// Root is a path on the file system that holds images, layers, volumes and logs.
	Root string
	// Info identifies the machine.
	Info func() corev1.NodeSystemInfo
	// Tallies returns the results of the pods' probes.
	Tallies func() []probe.Tally
	// UserNamespaced returns how many sandboxes with a user namespace were started, and how many of
	// these starts failed.
	UserNamespaced func() (started, failed uint64)
	// Booted is when the node was booted, Started when huskd was started.
	Booted, Started time.Time
}

// running is a pod whose sandbox is ready, with its running containers.
type running struct {
	agent.Pod
	name       string // its name on the API server
	sandbox    sandbox.Status
	containers []container.Status
}

// running returns the running pods, sorted by namespace and name.
func (s Source) running() (out []running) {
	for _, p := range s.Pods() {
		st, ok := p.Sandbox()
		if !ok || view.SandboxState(st) != podplan.SandboxReady {
			continue
		}
		r := running{Pod: p, name: p.ReportedName(s.Node), sandbox: st}
		for _, c := range p.Containers {
			if c.Sandbox == st.ID && view.ContainerState(c) == podplan.ContainerRunning {
				r.containers = append(r.containers, c)
			}
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b running) int {
		return strings.Compare(a.Manifest.Namespace+"/"+a.name, b.Manifest.Namespace+"/"+b.name)
	})
	return out
}
