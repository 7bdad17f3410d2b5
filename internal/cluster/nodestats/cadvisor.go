package nodestats

import (
	"net/http"
	"runtime"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/huskd/husk/internal/stats"
	"github.com/huskd/husk/internal/stats/cadvisor"
)

// ServeCadvisor serves /metrics/cadvisor.
func (s Source) ServeCadvisor(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	_ = s.cadvisor().write(w)
}

// cadvisor reads the metrics of the machine, and of the cgroups of the node, of all running pods
// and of their containers. A cgroup that is gone by now is left out.
func (s Source) cadvisor() *metrics {
	m := &metrics{}
	disk, _ := stats.Filesystem(s.Root)
	root := cadvisor.Subject{Cgroup: "/", Started: s.Booted, Disk: disk}
	failed := 0.0
	if u, err := stats.Node(); err == nil {
		root.Usage = *u
		m.addSubject(&root, cadvisor.Cgroups)
	} else {
		failed = 1
	}
	if list, err := stats.Network(""); err == nil {
		m.addTraffic(&root, list)
	}
	for _, p := range s.running() {
		cgroup := s.Cgroup(p.sandbox)
		pod := cadvisor.Subject{Cgroup: cgroup, Namespace: p.Manifest.Namespace, Pod: p.name, Started: p.sandbox.Created, Disk: disk}
		if u, err := s.Meter.Cgroup(cgroup); err == nil {
			pod.Usage = *u
			m.addSubject(&pod, cadvisor.Cgroups)
		}
		if list, err := stats.Network(p.sandbox.Attachment.Netns); err == nil && !p.sandbox.HostNetwork() {
			m.addTraffic(&pod, list)
		}
		for _, c := range p.containers {
			of := pod
			of.Cgroup, of.Container, of.ID, of.Image, of.Started = c.Cgroup(cgroup), c.Name(), c.ID, c.Config.GetImage().GetUserSpecifiedImage(), c.Started
			if of.Image == "" {
				of.Image = c.Config.GetImage().GetImage()
			}
			u, err := s.Meter.Cgroup(of.Cgroup)
			if err != nil {
				continue
			}
			of.Usage, of.Processes, of.Layer = *u, s.Meter.Processes(of.Cgroup), s.Meter.Layer(c.ID, s.Layer(c.ID))
			m.addSubject(&of, cadvisor.Cgroups)
			m.addSubject(&of, cadvisor.Containers)
		}
	}
	s.addMachine(m, &root, failed)
	return m
}

// addMachine adds the metrics of the machine. failed is 1 if some of them could not be read, or 0.
func (s Source) addMachine(m *metrics, root *cadvisor.Subject, failed float64) {
	info := s.Info()
	labels := []*dto.LabelPair{label("boot_id", info.BootID), label("machine_id", info.MachineID), label("system_uuid", info.SystemUUID)}
	for _, of := range []struct {
		name, help string
		value      float64
	}{
		{"machine_cpu_cores", "Processors.", float64(runtime.NumCPU())},
		{"machine_memory_bytes", "Memory.", float64(root.Memory.Limit)},
		{"machine_swap_bytes", "Swap.", float64(root.Memory.SwapLimit)},
	} {
		m.family(of.name, of.help, false)
		m.add(of.name, labels, of.value, time.Time{})
	}
	for _, name := range []string{"machine_scrape_error", "container_scrape_error"} {
		m.family(name, "1 if a figure could not be read, otherwise 0.", false)
		m.add(name, nil, failed, time.Time{})
	}
}

// addSubject adds the samples of metrics for a subject.
func (m *metrics) addSubject(of *cadvisor.Subject, list []cadvisor.Metric) {
	for _, metric := range list {
		for _, v := range metric.Read(of) {
			m.family(metric.Name, metric.Help, metric.Counter)
			m.add(metric.Name, cadvisorLabels(of, metric.Keys, v.Labels), v.Of, of.At)
		}
	}
}

// addTraffic adds the samples of interfaces.
func (m *metrics) addTraffic(of *cadvisor.Subject, list []stats.Interface) {
	now := time.Now()
	for _, metric := range cadvisor.Interfaces {
		for _, i := range list {
			m.family(metric.Name, metric.Help, true)
			m.add(metric.Name, cadvisorLabels(of, []string{"interface"}, []string{i.Name}), float64(metric.Read(i)), now)
		}
	}
}

func cadvisorLabels(of *cadvisor.Subject, keys, values []string) []*dto.LabelPair {
	out := make([]*dto.LabelPair, 0, len(cadvisor.LabelKeys)+len(keys))
	for i, value := range of.Labels() {
		out = append(out, label(cadvisor.LabelKeys[i], value))
	}
	for i, value := range values {
		out = append(out, label(keys[i], value))
	}
	return out
}
