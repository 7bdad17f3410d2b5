// Package nodestats tells what a node and its pods use, at the paths and in the words
// of the kubelet: /metrics/resource for metrics-server, and so for kubectl top, and
// /stats/summary.
package nodestats

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/stats"
)

// volumeAge is how old the measure of a volume may be, which is walked for it.
const volumeAge = time.Minute

// Source has what is told.
type Source struct {
	Node  string
	Pods  func() []agent.Pod
	Meter *stats.Meter
	// Cgroup is a sandbox's.
	Cgroup func(sandbox.Status) string
	// Layer and EmptyDir are where a container and a volume write to.
	Layer    func(container string) string
	EmptyDir func(uid, name string) string
	// Images is what images take.
	Images func() (bytes, inodes int64)
	// Root is on the disk that all write to.
	Root string
	// Booted is when the node was started.
	Booted time.Time
}

// running is a pod whose sandbox is ready, with the containers of it that run.
type running struct {
	agent.Pod
	name       string // as the API server has it
	sandbox    sandbox.Status
	containers []container.Status
}

func (s Source) running() (out []running) {
	for _, p := range s.Pods() {
		st, ok := p.Sandbox()
		if !ok || view.Sandbox(st) != podplan.SandboxReady {
			continue
		}
		r := running{Pod: p, name: p.Manifest.Name, sandbox: st}
		if !strings.HasPrefix(p.Source, string(source.API)) {
			r.name += "-" + s.Node // its mirror's
		}
		for _, c := range p.Containers {
			if c.Sandbox == st.ID && view.Container(c) == podplan.ContainerRunning {
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

// ServeResource answers with the figures that metrics-server asks for.
func (s Source) ServeResource(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = io.WriteString(w, s.resource().text())
}

// resource reads what is used now. What is gone meanwhile uses nothing, and is
// left out.
func (s Source) resource() *metrics {
	m := &metrics{}
	if u, err := stats.Node(); err == nil {
		m.usage("node", nil, u)
	} else {
		m.failed = true
	}
	for _, p := range s.running() {
		of := []string{"namespace", p.Manifest.Namespace, "pod", p.name}
		cgroup := s.Cgroup(p.sandbox)
		for _, c := range p.containers {
			if u, err := s.Meter.Cgroup(c.Cgroup(cgroup)); err == nil {
				of := append([]string{"container", c.Name()}, of...)
				m.usage("container", of, u)
				m.add("container_start_time_seconds", of, float64(c.Started.UnixNano())/1e9, u.At)
			}
		}
		if u, err := s.Meter.Cgroup(cgroup); err == nil {
			m.usage("pod", of, u)
		}
	}
	return m
}

// ServeSummary answers with all that is known.
func (s Source) ServeSummary(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.summary(r.URL.Query().Get("only_cpu_and_memory") == "true"))
}

// summary reads what is used now, or only what costs little to read.
func (s Source) summary(brief bool) summary {
	out := summary{Node: nodeStats{NodeName: s.Node, StartTime: stamp(s.Booted)}, Pods: []podStats{}}
	disk, _ := stats.Filesystem(s.Root)
	if u, err := stats.Node(); err == nil {
		out.Node.CPU, out.Node.Memory, out.Node.Swap = s.cpu("node", u), memoryOf(u), swapOf(u)
	}
	var layers stats.Layer
	for _, p := range s.running() {
		one := s.pod(p, disk, brief)
		for _, c := range one.Containers {
			if c.Rootfs != nil {
				layers.Bytes, layers.Inodes = layers.Bytes+int64(c.Rootfs.UsedBytes), layers.Inodes+int64(c.Rootfs.InodesUsed)
			}
		}
		out.Pods = append(out.Pods, one)
	}
	if brief {
		return out
	}
	now := time.Now()
	if list, err := stats.Network(""); err == nil {
		out.Node.Network = networkOf(list, now)
	}
	used := stats.Layer{Bytes: int64(disk.Bytes - min(disk.BytesFree, disk.Bytes)), Inodes: int64(disk.Inodes - min(disk.InodesFree, disk.Inodes)), At: now}
	bytes, inodes := s.Images()
	layers.At = now
	out.Node.Fs = filesystem(used, disk)
	out.Node.Runtime = &runtimeStats{
		ImageFs:     filesystem(stats.Layer{Bytes: bytes, Inodes: inodes, At: now}, disk),
		ContainerFs: filesystem(layers, disk),
	}
	return out
}

func (s Source) pod(p running, disk stats.Disk, brief bool) podStats {
	uid := string(p.Manifest.UID)
	out := podStats{
		PodRef:    podReference{Name: p.name, Namespace: p.Manifest.Namespace, UID: uid},
		StartTime: stamp(p.Created), Containers: []containerStats{},
	}
	cgroup := s.Cgroup(p.sandbox)
	if u, err := s.Meter.Cgroup(cgroup); err == nil {
		out.CPU, out.Memory, out.Swap = s.cpu(p.sandbox.ID, u), memoryOf(u), swapOf(u)
		out.Processes = &processStats{u.Processes}
	}
	var all stats.Layer
	add := func(l stats.Layer) *fsStats {
		all.Bytes, all.Inodes, all.At = all.Bytes+l.Bytes, all.Inodes+l.Inodes, l.At
		return filesystem(l, disk)
	}
	for _, c := range p.containers {
		one := containerStats{Name: c.Name(), StartTime: stamp(c.Started)}
		if u, err := s.Meter.Cgroup(c.Cgroup(cgroup)); err == nil {
			one.CPU, one.Memory, one.Swap = s.cpu(c.ID, u), memoryOf(u), swapOf(u)
		}
		if !brief {
			one.Rootfs = add(s.Meter.Layer(c.ID, s.Layer(c.ID)))
			if c.Log != "" {
				dir := filepath.Dir(c.Log)
				one.Logs = add(s.Meter.Tree(dir, dir, volumeAge))
			}
		}
		out.Containers = append(out.Containers, one)
	}
	if brief {
		return out
	}
	for _, v := range p.Manifest.Spec.Volumes {
		if manifest.OnDisk(&v) {
			dir := s.EmptyDir(uid, v.Name)
			out.Volumes = append(out.Volumes, volumeStats{*add(s.Meter.Tree(dir, dir, volumeAge)), v.Name})
		}
	}
	if all.At.IsZero() {
		all.At = time.Now()
	}
	out.EphemeralStorage = filesystem(all, disk)
	if !p.sandbox.HostNetwork() {
		if list, err := stats.Network(p.sandbox.Attachment.Netns); err == nil {
			out.Network = networkOf(list, time.Now())
		}
	}
	return out
}

func (s Source) cpu(id string, u *stats.Usage) *cpuStats {
	out := &cpuStats{Time: stamp(u.At), UsageCoreNanoSeconds: u.CPU.Used}
	if rate, ok := s.Meter.Rate(id, u.At, u.CPU.Used); ok {
		out.UsageNanoCores = &rate
	}
	return out
}

// metrics are figures with their names, in the order of the names' first use.
type metrics struct {
	names   []string
	samples map[string][]string
	failed  bool
}

// families say of each metric what it is.
var families = map[string]string{
	"cpu_usage_seconds_total":  "counter processor time, in seconds",
	"memory_working_set_bytes": "gauge memory that can't be dropped at once, in bytes",
	"swap_usage_bytes":         "gauge swapped memory, in bytes",
	"start_time_seconds":       "gauge start, in seconds since 1970",
	"scrape_error":             "gauge 1 if a figure could not be read, otherwise 0",
}

func (m *metrics) usage(of string, labels []string, u *stats.Usage) {
	m.add(of+"_cpu_usage_seconds_total", labels, float64(u.CPU.Used)/1e9, u.At)
	m.add(of+"_memory_working_set_bytes", labels, float64(u.Memory.WorkingSet), u.At)
	m.add(of+"_swap_usage_bytes", labels, float64(u.Memory.Swap), u.At)
}

// add adds a figure; labels are names and values in turn.
func (m *metrics) add(name string, labels []string, value float64, at time.Time) {
	var of []string
	for i := 0; i+1 < len(labels); i += 2 {
		of = append(of, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
	}
	sample := name
	if len(of) > 0 {
		sample += "{" + strings.Join(of, ",") + "}"
	}
	sample += fmt.Sprintf(" %v", value)
	if !at.IsZero() {
		sample += fmt.Sprintf(" %d", at.UnixMilli())
	}
	if m.samples == nil {
		m.samples = map[string][]string{}
	}
	if m.samples[name] == nil {
		m.names = append(m.names, name)
	}
	m.samples[name] = append(m.samples[name], sample)
}

// text is all of it in the text format of Prometheus.
func (m *metrics) text() string {
	failed := 0.0
	if m.failed {
		failed = 1
	}
	m.add("resource_scrape_error", nil, failed, time.Time{})
	var out strings.Builder
	for _, name := range m.names {
		_, rest, _ := strings.Cut(name, "_")
		kind, help, _ := strings.Cut(families[rest], " ")
		fmt.Fprintf(&out, "# HELP %s %s\n# TYPE %s %s\n%s\n", name, help, name, kind, strings.Join(m.samples[name], "\n"))
	}
	return out.String()
}
