package render

import (
	"strings"
	"testing"
)

func TestSortUsage(t *testing.T) {
	t.Parallel()
	views := func() []UsageView {
		used := func(cpu float64, memory, pids uint64) UsedView {
			return UsedView{CPUCores: cpu, MemoryBytes: memory, Processes: pids}
		}
		return []UsageView{
			{
				Name: "c", UsedView: used(0.3, 1, 5), Network: &TrafficView{ReceivedBytesPerSecond: 3},
				Containers: []ContainerUsageView{{"idle", used(0.1, 1, 2)}, {"busy", used(0.2, 0, 3)}},
			},
			{Name: "b", UsedView: used(0.1, 7, 5)}, // in the node's network
			{Name: "a", UsedView: used(0.2, 3, 9), Network: &TrafficView{ReceivedBytesPerSecond: 2, SentBytesPerSecond: 2}},
		}
	}
	want := map[string]string{
		"name": "a b c idle busy", "cpu": "c busy idle a b", "memory": "b a c idle busy",
		"pids": "a b c busy idle", "traffic": "a c idle busy b",
	}
	for _, by := range UsageOrders {
		v := views()
		SortUsage(v, by)
		var names []string
		for _, p := range v {
			names = append(names, p.Name)
			for _, c := range p.Containers {
				names = append(names, c.Name)
			}
		}
		if got := strings.Join(names, " "); got != want[by] {
			t.Errorf("by %s: %s, want %s", by, got, want[by])
		}
	}
}
