package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	huskv1 "github.com/huskd/husk/api/v1"
)

// UsageView is the usage of a pod in the JSON and YAML of husk top.
type UsageView struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UsedView
	// Network is absent for pods in the node's network namespace.
	Network    *TrafficView         `json:"network,omitempty"`
	Containers []ContainerUsageView `json:"containers"`
}

// UsedView holds counters, and the rate between two samples.
type UsedView struct {
	CPUCores         float64 `json:"cpuCores"` // 0.25 is a quarter of one core
	CPUSeconds       float64 `json:"cpuSeconds"`
	MemoryBytes      uint64  `json:"memoryBytes"`
	MemoryLimitBytes uint64  `json:"memoryLimitBytes,omitempty"`
	Processes        uint64  `json:"processes"`
}

// TrafficView holds counters, and the rates between two samples.
type TrafficView struct {
	ReceivedBytes          uint64  `json:"receivedBytes"`
	SentBytes              uint64  `json:"sentBytes"`
	ReceivedBytesPerSecond float64 `json:"receivedBytesPerSecond"`
	SentBytesPerSecond     float64 `json:"sentBytesPerSecond"`
}

// ContainerUsageView is the usage of one container of a pod.
type ContainerUsageView struct {
	Name string `json:"name"`
	UsedView
}

// UsageViews returns the usage of pods from two samples. Pods and containers that are missing in
// the first have no rates yet.
func UsageViews(before, now []*huskv1.PodUsage) []UsageView {
	earlier := map[string]*huskv1.PodUsage{}
	for _, p := range before {
		earlier[p.Uid] = p
	}
	out := make([]UsageView, 0, len(now))
	for _, p := range now {
		last := earlier[p.Uid]
		v := UsageView{Namespace: p.Namespace, Name: p.Name, UsedView: usedView(last.GetTotal(), p.Total), Containers: []ContainerUsageView{}}
		if !p.HostNetwork {
			v.Network = &TrafficView{ReceivedBytes: p.ReceivedBytes, SentBytes: p.SentBytes}
			if seconds := seconds(last.GetTotal(), p.Total); seconds > 0 {
				v.Network.ReceivedBytesPerSecond = grown(last.GetReceivedBytes(), p.ReceivedBytes) / seconds
				v.Network.SentBytesPerSecond = grown(last.GetSentBytes(), p.SentBytes) / seconds
			}
		}
		for _, c := range p.Containers {
			var was *huskv1.Used
			if i := slices.IndexFunc(last.GetContainers(), func(o *huskv1.ContainerUsage) bool { return o.Name == c.Name }); i >= 0 {
				was = last.Containers[i].Used
			}
			v.Containers = append(v.Containers, ContainerUsageView{c.Name, usedView(was, c.Used)})
		}
		out = append(out, v)
	}
	return out
}

func usedView(before, now *huskv1.Used) UsedView {
	v := UsedView{
		CPUSeconds: float64(now.GetCpuNs()) / 1e9, MemoryBytes: now.GetMemoryBytes(),
		MemoryLimitBytes: now.GetMemoryLimitBytes(), Processes: now.GetProcesses(),
	}
	if seconds := seconds(before, now); seconds > 0 {
		v.CPUCores = grown(before.CpuNs, now.CpuNs) / 1e9 / seconds
	}
	return v
}

// seconds returns the time between two samples; 0 if there aren't two.
func seconds(before, now *huskv1.Used) float64 {
	if before == nil || now == nil {
		return 0
	}
	return float64(now.AtNs-before.AtNs) / 1e9
}

// grown returns the increase of a counter; 0 if it was reset.
func grown(before, now uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}

// UsageOrders are the orders of SortUsage.
var UsageOrders = []string{"name", "cpu", "memory", "pids", "traffic"}

// SortUsage sorts pods by one of UsageOrders, and the containers of each pod likewise. The largest
// usage comes first. Traffic is what a pod receives and sends per second. Pods of equal usage are
// sorted by name.
func SortUsage(views []UsageView, by string) {
	used := func(x, y UsedView) int {
		switch by {
		case "cpu":
			return cmp.Compare(y.CPUCores, x.CPUCores)
		case "memory":
			return cmp.Compare(y.MemoryBytes, x.MemoryBytes)
		case "pids":
			return cmp.Compare(y.Processes, x.Processes)
		}
		return 0
	}
	slices.SortFunc(views, func(x, y UsageView) int {
		order := used(x.UsedView, y.UsedView)
		if by == "traffic" {
			order = cmp.Compare(y.Network.rate(), x.Network.rate())
		}
		return cmp.Or(order, strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	for _, v := range views {
		slices.SortStableFunc(v.Containers, func(x, y ContainerUsageView) int { return used(x.UsedView, y.UsedView) })
	}
}

// rate returns the bytes that are received and sent per second; 0 without a network.
func (t *TrafficView) rate() float64 {
	if t == nil {
		return 0
	}
	return t.ReceivedBytesPerSecond + t.SentBytesPerSecond
}

// UsageTable returns a table with a row for each pod or for each container.
func UsageTable(views []UsageView, containers bool) *Table {
	if containers {
		t := NewTable("POD", "CONTAINER", "CPU(cores)", "MEMORY", "LIMIT", "PIDS")
		for _, v := range views {
			for _, c := range v.Containers {
				t.Row(PodName(v.Namespace, v.Name), c.Name, millicores(c.CPUCores), binarySize(c.MemoryBytes), limitText(c.MemoryLimitBytes), c.Processes)
			}
		}
		return t
	}
	t := NewTable("POD", "CPU(cores)", "MEMORY", "LIMIT", "PIDS", "RECEIVED", "SENT", "IN", "OUT")
	for _, v := range views {
		row := []any{PodName(v.Namespace, v.Name), millicores(v.CPUCores), binarySize(v.MemoryBytes), limitText(v.MemoryLimitBytes), v.Processes}
		if n := v.Network; n != nil {
			row = append(row, Size(int64(n.ReceivedBytes)), Size(int64(n.SentBytes)), Size(int64(n.ReceivedBytesPerSecond))+"/s", Size(int64(n.SentBytesPerSecond))+"/s")
		} else {
			row = append(row, none, none, none, none)
		}
		t.Row(row...)
	}
	return t
}

// millicores formats CPU cores as Kubernetes does.
func millicores(cores float64) string { return fmt.Sprintf("%.0fm", cores*1000) }

// binarySize formats memory in the units in which limits are given.
func binarySize(n uint64) string {
	switch {
	case n < 1<<20:
		return fmt.Sprintf("%dKi", n>>10)
	case n < 10<<30:
		return fmt.Sprintf("%dMi", n>>20)
	}
	return fmt.Sprintf("%dGi", n>>30)
}

func limitText(n uint64) string {
	if n == 0 {
		return none
	}
	return binarySize(n)
}
