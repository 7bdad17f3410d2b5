package kubelet

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/test/node"
)

// viaProxy sends a GET request to the node through the API server.
func (o huskNode) viaProxy(path string) []byte {
	o.t.Helper()
	body, err := o.api.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/node/proxy" + path).DoRaw(o.t.Context())
	o.must(err)
	return body
}

// testUsage checks the figures that metrics-server and others read from a kubelet, in the kubelet's
// types.
func (o huskNode) testUsage() {
	spin := `command: [sh, -c, "dd if=/dev/zero of=/v/file bs=1M count=3 2>/dev/null; while :; do :; done"], resources: {limits: {cpu: 300m, memory: 64Mi}}, volumeMounts: [{name: v, mountPath: /v}]`
	o.create(simple("busy", "volumes: [{name: v, emptyDir: {}}]", spin))
	busy := o.await("busy", ready)
	o.write("manifests/declared.yaml", simple("declared", "", "command: [sleep, '1000']"))
	o.await("declared-node", ready)
	stats := func(name string) (found v1alpha1.PodStats, all v1alpha1.Summary) {
		d := json.NewDecoder(bytes.NewReader(o.viaProxy("/stats/summary")))
		d.DisallowUnknownFields()
		o.must(d.Decode(&all))
		for _, p := range all.Pods {
			if p.PodRef.Name == name {
				found = p
			}
		}
		return found, all
	}
	node.Eventually(o.t, time.Minute, func() string { // a rate needs two readings
		p, _ := stats("busy")
		if len(p.Containers) != 1 || p.CPU == nil || p.CPU.UsageNanoCores == nil || *p.CPU.UsageNanoCores < 50e6 || *p.CPU.UsageNanoCores > 600e6 {
			return fmt.Sprintf("the pod's stats are %+v", p)
		}
		return ""
	})
	p, all := stats("busy")
	c := p.Containers[0]
	switch {
	case p.PodRef.UID != string(busy.UID) || c.Name != "c" || *c.CPU.UsageCoreNanoSeconds == 0 || c.StartTime.IsZero():
		o.t.Errorf("the pod's stats are %+v", p)
	case *c.Memory.WorkingSetBytes == 0 || *c.Memory.WorkingSetBytes > 64<<20 || *c.Memory.WorkingSetBytes+*c.Memory.AvailableBytes != 64<<20:
		o.t.Errorf("the container's memory is %+v", c.Memory)
	case c.Rootfs == nil || c.Logs == nil || p.Network == nil || p.Network.Name != "eth0" || len(p.VolumeStats) != 1 || p.EphemeralStorage == nil || *p.ProcessStats.ProcessCount == 0:
		o.t.Errorf("the pod's stats are %+v", p)
	case all.Node.NodeName != "node" || *all.Node.CPU.UsageCoreNanoSeconds < *p.CPU.UsageCoreNanoSeconds || *all.Node.Memory.WorkingSetBytes == 0 || *all.Node.Fs.CapacityBytes == 0:
		o.t.Errorf("the node: %+v", all.Node)
	}
	if p, _ := stats("declared-node"); len(p.Containers) != 1 {
		o.t.Errorf("the pod of a manifest is %+v", p)
	}

	text := o.viaProxy("/metrics/resource")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	o.must(err)
	want := []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds", "container_swap_usage_bytes",
		"node_cpu_usage_seconds_total", "node_memory_working_set_bytes", "node_swap_usage_bytes",
		"pod_cpu_usage_seconds_total", "pod_memory_working_set_bytes", "pod_swap_usage_bytes", "resource_scrape_error"}
	if got := slices.Sorted(maps.Keys(families)); !slices.Equal(got, want) {
		o.t.Errorf("the metrics are %v", got)
	}
	for _, m := range families["container_cpu_usage_seconds_total"].GetMetric() {
		if m.GetTimestampMs() == 0 || m.GetCounter().GetValue() == 0 {
			o.t.Errorf("the metric has no time or value: %v", m)
		}
	}
	if !strings.Contains(string(text), `container_memory_working_set_bytes{container="c",namespace="default",pod="busy"} `) {
		o.t.Errorf("the memory of pod busy is not in the metrics:\n%s", text)
	}
	o.testNodePages(busy.UID)
	o.Must("rm", o.Dir+"/manifests/declared.yaml")
}

// testNodePages checks what others read from a kubelet: pods, and metrics for dashboards.
func (o huskNode) testNodePages(uid types.UID) {
	var list corev1.PodList
	o.must(json.Unmarshal(o.viaProxy("/pods"), &list))
	found := false
	for _, p := range list.Items {
		if p.UID == uid {
			found = true
			if len(p.Status.ContainerStatuses) != 1 || !strings.HasPrefix(p.Status.ContainerStatuses[0].ContainerID, "husk://") || p.ResourceVersion == "" {
				o.t.Errorf("/pods has %+v", p)
			}
		}
	}
	if !found {
		o.t.Errorf("/pods doesn't have pod busy: %+v", list)
	}
	for path, want := range map[string]string{
		"/metrics": `kubelet_node_name{node="node"} 1`, "/metrics/cadvisor": `container_cpu_usage_seconds_total{container="c",`, "/metrics/probes": "process_start_time_seconds",
		"/runningpods/": `"name":"busy"`, "/configz": `"kubeletconfig":{`, "/healthz": "ok", "/statusz": "huskd statusz",
	} {
		if page := string(o.viaProxy(path)); !strings.Contains(page, want) {
			o.t.Errorf("%s has no %s:\n%s", path, want, page)
		}
	}
}
