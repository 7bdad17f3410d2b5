package container

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/host"
)

func TestResourcesWith(t *testing.T) {
	has := &runtimeapi.LinuxContainerResources{
		CpuShares: 512, MemoryLimitInBytes: 64, CpusetCpus: "0", Unified: map[string]string{"memory.high": "1", "memory.low": "2"},
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}},
	}
	before := proto.CloneOf(has)
	for name, c := range map[string]struct {
		asked, want *runtimeapi.LinuxContainerResources
	}{
		"nothing": {nil, has},
		"a field": {
			&runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32, Unified: map[string]string{"memory.high": "3"}},
			&runtimeapi.LinuxContainerResources{
				CpuShares: 512, MemoryLimitInBytes: 32, CpusetCpus: "0", Unified: map[string]string{"memory.high": "3", "memory.low": "2"},
				HugepageLimits: has.GetHugepageLimits(),
			},
		},
		"a list": {
			&runtimeapi.LinuxContainerResources{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 2}}},
			&runtimeapi.LinuxContainerResources{
				CpuShares: 512, MemoryLimitInBytes: 64, CpusetCpus: "0", Unified: has.GetUnified(),
				HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "1GB", Limit: 2}},
			},
		},
	} {
		if got := (Status{record: record{Resources: has}}).ResourcesWith(c.asked); !proto.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
		if !proto.Equal(has, before) {
			t.Fatalf("%s: the former resources were modified", name)
		}
	}
	asked := &runtimeapi.LinuxContainerResources{CpuShares: 3}
	if got := (Status{}).ResourcesWith(asked); !proto.Equal(got, asked) {
		t.Errorf("without former resources: %v", got)
	}
}

// TestSpecWithLimits: limits that can be changed replace those of the spec, the others stay.
// limited records the limits that a container was given last.
type limited struct {
	Sessions
	limits *specs.LinuxResources
}

func (l *limited) Update(_ context.Context, _ string, limits *specs.LinuxResources) error {
	l.limits = limits
	return nil
}

// TestLimitBelowUsage: the runtime must compare a new memory limit with the usage, as the kernel
// doesn't with cgroup v2.
func TestLimitBelowUsage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := resumeStuck(t, containerstate.Running, "this")
		l := &limited{}
		s.cfg.Sessions, s.cfg.Host.Cgroup = l, host.Cgroup{Controllers: []string{"memory"}}
		if err := s.Limit(t.Context(), stuckID, &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}); err != nil {
			t.Fatal(err)
		}
		if m := l.limits.Memory; m == nil || *m.Limit != 1<<20 || m.CheckBeforeUpdate == nil || !*m.CheckBeforeUpdate {
			t.Errorf("memory: %+v", m)
		}
	})
}

func TestSpecWithLimits(t *testing.T) {
	was := `{"ociVersion":"1.2.0","linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}],"memory":{"limit":64,"swap":64},"cpu":{"shares":2},"pids":{"limit":7},"unified":{"a.b":"1"}}}}`
	memory := int64(32)
	got := withLimits(json.RawMessage(was), &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, Unified: map[string]string{"memory.high": "3"}})
	want := `{"ociVersion":"1.2.0","linux":{"resources":{"devices":[{"allow":false,"access":"rwm"}],"memory":{"limit":32},"cpu":{"shares":2},"pids":{"limit":7},"unified":{"a.b":"1","memory.high":"3"}}}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestSignalInCRITerms: a signal has the name that was asked for, unless that is an alias.
func TestSignalInCRITerms(t *testing.T) {
	for n, name := range runtimeapi.Signal_name {
		if n == 0 {
			continue
		}
		asked := &runtimeapi.ContainerConfig{StopSignal: runtimeapi.Signal(n)}
		got := criSignalOf(stopSignal(asked, ""))
		again := stopSignal(&runtimeapi.ContainerConfig{StopSignal: got}, "")
		if got == runtimeapi.Signal_SIGNAL_RUNTIME_DEFAULT || again != stopSignal(asked, "") {
			t.Errorf("%s is shown as %s", name, got)
		}
	}
	if got := (Status{Config: &runtimeapi.ContainerConfig{}}).Signal(); got != runtimeapi.Signal_SIGNAL_SIGTERM {
		t.Errorf("by default: %s", got)
	}
}
