package daemon

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/stats"
)

func TestCandidates(t *testing.T) {
	t.Parallel()
	pod := func(uid, from string, priority int32, phase podplan.Phase) agent.Pod {
		return agent.Pod{
			Source: from, Want: podplan.Run, Status: podplan.Status{Phase: phase},
			Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}, Spec: corev1.PodSpec{Priority: &priority}},
		}
	}
	api := string(source.API) + "/x"
	got := candidates([]agent.Pod{
		pod("known", api, 0, podplan.PhaseRunning), pod("new", api, 0, podplan.PhasePending), pod("done", api, 0, podplan.PhaseSucceeded),
		pod("critical", api, 2_000_000_000, podplan.PhaseRunning), pod("static", string(source.File)+"/x", 0, podplan.PhaseRunning),
	}, v1alpha1.Summary{Pods: []v1alpha1.PodStats{{
		PodRef: v1alpha1.PodReference{UID: "known"}, Memory: &v1alpha1.MemoryStats{WorkingSetBytes: new(uint64(5))},
		EphemeralStorage: &v1alpha1.FsStats{UsedBytes: new(uint64(6)), InodesUsed: new(uint64(7))}, ProcessStats: &v1alpha1.ProcessStats{ProcessCount: new(uint64(8))},
		Containers: []v1alpha1.ContainerStats{{Name: "c", Rootfs: &v1alpha1.FsStats{UsedBytes: new(uint64(1))}, Logs: &v1alpha1.FsStats{UsedBytes: new(uint64(2))}}},
	}}})
	if len(got) != 2 || got[0].Usage != (eviction.Usage{Memory: 5, Disk: 6, Inodes: 7, Processes: 8}) || got[0].Containers["c"].Disk != 3 || got[0].Unknown || !got[1].Unknown {
		t.Errorf("%+v", got)
	}
}

// TestObserveNode: every signal is read on this host, apart from that of a cgroup that isn't there.
func TestObserveNode(t *testing.T) {
	t.Parallel()
	facts := host.Probe("/")
	got := observer{t.TempDir(), "/husk-none", stats.New(facts.Cgroup, nil)}.observe()
	for _, signal := range []eviction.Signal{eviction.MemoryAvailable, eviction.NodeFSAvailable, eviction.ImageFSAvailable, eviction.PIDAvailable} {
		if o := got[signal]; o.Available <= 0 || o.Capacity <= o.Available {
			t.Errorf("%s: %+v", signal, o)
		}
	}
	if _, ok := got[eviction.AllocatableMemoryAvailable]; ok {
		t.Error("the memory of a cgroup that doesn't exist is available")
	}
}
