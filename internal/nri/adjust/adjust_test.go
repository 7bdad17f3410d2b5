package adjust

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

func fresh() *specs.Spec {
	score := 100
	return &specs.Spec{
		Version: "1.0.0",
		Process: &specs.Process{
			Args: []string{"/bin/run"}, Env: []string{"PATH=/bin", "A=1", "AB=2"}, OOMScoreAdj: &score,
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 10, Soft: 5}},
		},
		Mounts:      []specs.Mount{{Destination: "/proc"}, {Destination: "/etc/hosts", Source: "/h"}, {Destination: "/data/x/y"}},
		Annotations: map[string]string{"keep": "1", "drop": "2"},
		Linux: &specs.Linux{
			CgroupsPath: "/pod/ID", Resources: &specs.LinuxResources{}, Devices: []specs.LinuxDevice{{Path: "/dev/a"}},
			Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "ipc", Path: "/i"}},
			Sysctl:     map[string]string{"net.a": "1"},
		},
	}
}

func node() Node {
	return Node{
		Host: host.Facts{
			OOMScoreFloor: -5,
			Cgroup:        host.Cgroup{Controllers: []string{"cpu", "cpuset", "memory", "pids", "hugetlb"}, HugePages: []string{"2MB"}},
		},
		BlockIO: func(class string) (*specs.LinuxBlockIO, error) {
			if weight := uint16(100); class == "known" {
				return &specs.LinuxBlockIO{Weight: &weight}, nil
			}
			return nil, nil
		},
		Relabel: func(path, label string) error { return fmt.Errorf("relabel %s %s", path, label) },
		InjectCDI: func(names []string, into *specs.Spec) error {
			into.Process.Env = append(into.Process.Env, "CDI="+strings.Join(names, ","))
			return nil
		},
		Knows: func(handler, version string) bool { return handler == "new" || version == "1.0.0" },
	}
}

func apply(handler string, a *api.ContainerAdjustment) (*specs.Spec, Result, error) {
	into := fresh()
	has := &runtimeapi.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 1 << 20}
	of := Subject{Name: "c", Handler: handler, With: func(requested *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
		out := proto.CloneOf(has)
		proto.Merge(out, requested)
		return out
	}}
	result, err := Apply(node(), of, a, into)
	return into, result, err
}

// linuxOf returns an adjustment of the Linux section.
func linuxOf(change func(*api.LinuxContainerAdjustment)) *api.ContainerAdjustment {
	l := &api.LinuxContainerAdjustment{}
	change(l)
	return &api.ContainerAdjustment{Linux: l}
}

func TestApply(t *testing.T) {
	t.Parallel()
	mode, uid := os.FileMode(0o640), uint32(3)
	for name, c := range map[string]struct {
		adjust *api.ContainerAdjustment
		want   func(*specs.Spec)
	}{
		"nothing": {&api.ContainerAdjustment{}, func(*specs.Spec) {}},
		"annotations": {&api.ContainerAdjustment{Annotations: map[string]string{"-drop": "", "new": "3"}},
			func(s *specs.Spec) { s.Annotations = map[string]string{"keep": "1", "new": "3"} }},
		"an annotation replaces another": {&api.ContainerAdjustment{Annotations: map[string]string{"-keep": "", "keep": "9"}},
			func(s *specs.Spec) { s.Annotations["keep"] = "9" }},
		"env": {&api.ContainerAdjustment{Env: []*api.KeyValue{{Key: "A", Value: "x=y"}, {Key: "-AB"}, {Key: "NEW"}, {Key: "-NONE"}}},
			func(s *specs.Spec) { s.Process.Env = []string{"PATH=/bin", "A=x=y", "NEW="} }},
		"args":                          {&api.ContainerAdjustment{Args: []string{"/other", ""}}, func(s *specs.Spec) { s.Process.Args = []string{"/other", ""} }},
		"args replace another plugin's": {&api.ContainerAdjustment{Args: []string{"", "/other"}}, func(s *specs.Spec) { s.Process.Args = []string{"/other"} }},
		"mounts": {&api.ContainerAdjustment{Mounts: []*api.Mount{
			{Destination: "/data", Source: "/d", Type: "bind", Options: []string{"rbind", "rslave"}},
			{Destination: "/etc/hosts/", Source: "/mine", Type: "bind", Options: []string{"ro", "relabel"}}, {Destination: "-/proc"},
		}}, func(s *specs.Spec) {
			s.Linux.RootfsPropagation = "rslave"
			s.Mounts = []specs.Mount{
				{Destination: "/data", Source: "/d", Type: "bind", Options: []string{"rbind", "rslave"}},
				{Destination: "/etc/hosts", Source: "/mine", Type: "bind", Options: []string{"ro"}}, {Destination: "/data/x/y"},
			}
		}},
		"hooks": {&api.ContainerAdjustment{Hooks: &api.Hooks{CreateRuntime: []*api.Hook{{Path: "/hook", Args: []string{"hook"}, Timeout: api.Int(3)}}}},
			func(s *specs.Spec) {
				timeout := 3
				s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/hook", Args: []string{"hook"}, Timeout: &timeout}}}
			}},
		"rlimits": {&api.ContainerAdjustment{Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 7, Soft: 7}, {Type: "RLIMIT_CORE"}}},
			func(s *specs.Spec) {
				s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 7, Soft: 7}, {Type: "RLIMIT_CORE"}}
			}},
		"CDI devices": {&api.ContainerAdjustment{CDIDevices: []*api.CDIDevice{{Name: "v/c=1"}, {Name: "v/c=2"}}},
			func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "CDI=v/c=1,v/c=2") }},
		"devices": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Devices = []*api.LinuxDevice{{Path: "-/dev/a"}, {Path: "/dev/b", Type: "c", Major: 1, Minor: 2, FileMode: api.FileMode(mode), Uid: api.UInt32(uid)}}
		}), func(s *specs.Spec) {
			major, minor := int64(1), int64(2)
			s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/b", Type: "c", Major: 1, Minor: 2, FileMode: &mode, UID: &uid}}
			s.Linux.Resources.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Type: "c", Major: &major, Minor: &minor, Access: "rw"}}
		}},
		"cgroup": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.CgroupsPath = "/elsewhere/ID" }),
			func(s *specs.Spec) { s.Linux.CgroupsPath = "/elsewhere/ID" }},
		"OOM score": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.OomScoreAdj = api.Int(7) }),
			func(s *specs.Spec) { *s.Process.OOMScoreAdj = 7 }},
		"an OOM score below the floor": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.OomScoreAdj = api.Int(-900) }),
			func(s *specs.Spec) { *s.Process.OOMScoreAdj = -5 }},
		"namespaces": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Namespaces = []*api.LinuxNamespace{{Type: "-pid"}, {Type: "ipc", Path: "/other"}, {Type: "cgroup"}}
		}), func(s *specs.Spec) {
			s.Linux.Namespaces = []specs.LinuxNamespace{{Type: "ipc", Path: "/other"}, {Type: "cgroup"}}
		}},
		"sysctls": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.Sysctl = map[string]string{"-net.a": "", "net.b": "2"} }),
			func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{"net.b": "2"} }},
		"seccomp": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.SeccompPolicy = &api.LinuxSeccomp{
				DefaultAction: "SCMP_ACT_ERRNO", DefaultErrno: api.UInt32(uint32(38)), Architectures: []string{"SCMP_ARCH_X86_64"},
				Flags: []string{"SECCOMP_FILTER_FLAG_LOG"}, Syscalls: []*api.LinuxSyscall{{Names: []string{"read"}, Action: "SCMP_ACT_ALLOW"}},
			}
		}), func(s *specs.Spec) {
			errno := uint(38)
			s.Linux.Seccomp = &specs.LinuxSeccomp{
				DefaultAction: "SCMP_ACT_ERRNO", DefaultErrnoRet: &errno, Architectures: []specs.Arch{"SCMP_ARCH_X86_64"},
				Flags: []specs.LinuxSeccompFlag{"SECCOMP_FILTER_FLAG_LOG"}, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: "SCMP_ACT_ALLOW"}},
			}
		}},
		"resources": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Resources = &api.LinuxResources{
				Cpu:    &api.LinuxCPU{Cpus: "0", RealtimeRuntime: api.Int64(int64(5))},
				Memory: &api.LinuxMemory{Reservation: api.Int64(int64(4096))}, Pids: &api.LinuxPids{Limit: 9},
				HugepageLimits: []*api.HugepageLimit{{PageSize: "2MB", Limit: 1 << 21}},
			}
		}), func(s *specs.Spec) {
			shares, limit, reservation, pids, realtime := uint64(512), int64(1<<20), int64(4096), int64(9), int64(5)
			s.Linux.Resources = &specs.LinuxResources{
				CPU: &specs.LinuxCPU{Shares: &shares, Cpus: "0", RealtimeRuntime: &realtime}, Memory: &specs.LinuxMemory{Limit: &limit, Reservation: &reservation},
				Pids: &specs.LinuxPids{Limit: &pids}, HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 1 << 21}},
			}
		}},
		"a block I/O class": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Resources = &api.LinuxResources{BlockioClass: api.String("known")}
		}),
			func(s *specs.Spec) {
				weight, shares, limit := uint16(100), uint64(512), int64(1<<20)
				s.Linux.Resources = &specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: &weight}, CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{Limit: &limit}}
			}},
		"an RDT class": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.Resources = &api.LinuxResources{RdtClass: api.String("gold")} }),
			func(s *specs.Spec) {
				shares, limit := uint64(512), int64(1<<20)
				s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "gold"}
				s.Linux.Resources.CPU, s.Linux.Resources.Memory = &specs.LinuxCPU{Shares: &shares}, &specs.LinuxMemory{Limit: &limit}
			}},
		"RDT": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.Rdt = &api.LinuxRdt{ClosId: api.String("gold")} }),
			func(s *specs.Spec) { s.Linux.IntelRdt = &specs.LinuxIntelRdt{ClosID: "gold"} }},
	} {
		got, result, err := apply("", c.adjust)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		want := fresh()
		c.want(want)
		if text(got) != text(want) {
			t.Errorf("%s:\n got %s\nwant %s", name, text(got), text(want))
		}
		if strings.Contains(name, "below the floor") != (len(result.Notes) > 0) {
			t.Errorf("%s: notes %q", name, result.Notes)
		}
	}
}

func text(s *specs.Spec) string {
	content, _ := json.Marshal(s)
	return string(content)
}

func TestLimitsAreKeptForLaterChanges(t *testing.T) {
	t.Parallel()
	_, result, err := apply("", linuxOf(func(l *api.LinuxContainerAdjustment) {
		l.Resources = &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0"}, Memory: &api.LinuxMemory{}}
	}))
	want := &runtimeapi.LinuxContainerResources{CpuShares: 512, MemoryLimitInBytes: 1 << 20, CpusetCpus: "0"}
	if err != nil || !proto.Equal(result.Limits, want) {
		t.Errorf("%v, %v, want %v", result.Limits, err, want)
	}
	// The adaptation's answer when no plugin requests anything.
	_, result, err = apply("", linuxOf(func(l *api.LinuxContainerAdjustment) {
		l.Resources = &api.LinuxResources{Cpu: &api.LinuxCPU{}, Memory: &api.LinuxMemory{}, Unified: map[string]string{}}
	}))
	if err != nil || result.Limits != nil {
		t.Errorf("nothing requested: %v, %v", result.Limits, err)
	}
}

func TestAdjustmentsOfLaterVersions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		adjust  *api.ContainerAdjustment
		version string
	}{
		"scheduler":   {linuxOf(func(l *api.LinuxContainerAdjustment) { l.Scheduler = &api.LinuxScheduler{Policy: 4} }), "1.1.0"},
		"io_priority": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.IoPriority = &api.LinuxIOPriority{Class: 2, Priority: 3} }), "1.1.0"},
		"net_devices": {linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.NetDevices = map[string]*api.LinuxNetDevice{"eth7": {Name: "net7"}}
		}), "1.3.0"},
		"memory_policy": {linuxOf(func(l *api.LinuxContainerAdjustment) { l.MemoryPolicy = &api.LinuxMemoryPolicy{Mode: 2, Nodes: "0"} }), "1.3.0"},
		"rdt":           {linuxOf(func(l *api.LinuxContainerAdjustment) { l.Rdt = &api.LinuxRdt{EnableMonitoring: api.Bool(true)} }), "1.3.0"},
	} {
		got, _, err := apply("new", c.adjust)
		if err != nil || got.Version != c.version {
			t.Errorf("%s: version %s, %v, want %s", name, got.Version, err, c.version)
		}
		if _, _, err := apply("", c.adjust); err == nil || !strings.Contains(err.Error(), "adjustment of "+name+": the container's runtime does not know version "+c.version) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRelabel(t *testing.T) {
	t.Parallel()
	into := fresh()
	into.Linux.MountLabel = "a:b:c:s0"
	_, err := Apply(node(), Subject{}, &api.ContainerAdjustment{Mounts: []*api.Mount{{Destination: "/m", Source: "/src", Options: []string{"relabel"}}}}, into)
	if err == nil || err.Error() != "relabel /src a:b:c:s0" {
		t.Errorf("got %v", err)
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	for words, a := range map[string]*api.ContainerAdjustment{
		`env: "" is not`:                 {Env: []*api.KeyValue{{}}},
		`env: "A=B" is not`:              {Env: []*api.KeyValue{{Key: "A=B"}}},
		"has a zero byte":                {Env: []*api.KeyValue{{Key: "A", Value: "\x00"}}},
		"args: there is no program":      {Args: []string{""}},
		`mounts: "relative" is not`:      {Mounts: []*api.Mount{{Destination: "relative"}}},
		`mounts: "/a/../b" is not`:       {Mounts: []*api.Mount{{Destination: "/a/../b"}}},
		`mounts: "/" is not`:             {Mounts: []*api.Mount{{Destination: "/"}}},
		`hooks: "hook" is not`:           {Hooks: &api.Hooks{Poststop: []*api.Hook{{Path: "hook"}}}},
		`rlimits: "NOFILE"`:              {Rlimits: []*api.POSIXRlimit{{Type: "NOFILE"}}},
		`rlimits: "RLIMIT_CORE", soft 2`: {Rlimits: []*api.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 2, Hard: 1}}},
		`devices: "a" is not`:            linuxOf(func(l *api.LinuxContainerAdjustment) { l.Devices = []*api.LinuxDevice{{Path: "a"}} }),
		`devices: /dev/a: type "x"`:      linuxOf(func(l *api.LinuxContainerAdjustment) { l.Devices = []*api.LinuxDevice{{Path: "/dev/a", Type: "x"}} }),
		`cgroups_path: "/pod" is not`:    linuxOf(func(l *api.LinuxContainerAdjustment) { l.CgroupsPath = "/pod" }),
		`cgroups_path: "/a/../ID"`:       linuxOf(func(l *api.LinuxContainerAdjustment) { l.CgroupsPath = "/a/../ID" }),
		`cgroups_path: "sys.slice:x:ID"`: linuxOf(func(l *api.LinuxContainerAdjustment) { l.CgroupsPath = "sys.slice:x:ID" }),
		"oom_score_adj: 1001":            linuxOf(func(l *api.LinuxContainerAdjustment) { l.OomScoreAdj = api.Int(1001) }),
		`namespaces: ipc: "rel"`: linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Namespaces = []*api.LinuxNamespace{{Type: "ipc", Path: "rel"}}
		}),
		`blockio_class: unknown class "slow"`: linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Resources = &api.LinuxResources{BlockioClass: api.String("slow")}
		}),
		"cpuset_cpus: \"x\" is not": linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Resources = &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "x"}}
		}),
		"unified: needs cgroup v2": linuxOf(func(l *api.LinuxContainerAdjustment) {
			l.Resources = &api.LinuxResources{Unified: map[string]string{"memory.high": "1"}}
		}),
	} {
		if _, _, err := apply("", a); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
}

func TestLimitsOfARunningContainer(t *testing.T) {
	t.Parallel()
	cri := &runtimeapi.LinuxContainerResources{
		CpuShares: 2, CpuQuota: -1, CpuPeriod: 100000, CpusetCpus: "0-1", CpusetMems: "0", MemoryLimitInBytes: 5, MemorySwapLimitInBytes: 6,
		HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 3}}, Unified: map[string]string{"memory.high": "9"},
	}
	if got, err := ToCRI(FromCRI(cri)); err != nil || !proto.Equal(got, cri) {
		t.Errorf("round trip: %v, %v", got, err)
	}
	if got := FromCRI(&runtimeapi.LinuxContainerResources{}); got.Strip() != nil {
		t.Errorf("no limits: %v", got)
	}
	for words, r := range map[string]*api.LinuxResources{
		"memory: only limit and swap": {Memory: &api.LinuxMemory{Reservation: api.Int64(int64(1))}},
		"cpu: the realtime limits":    {Cpu: &api.LinuxCPU{RealtimePeriod: api.UInt64(uint64(1))}},
		"pids: the limit":             {Pids: &api.LinuxPids{Limit: 1}},
		"devices: the devices":        {Devices: []*api.LinuxDeviceCgroup{{}}},
		"resources: the class":        {RdtClass: api.String("gold")},
	} {
		if _, err := ToCRI(r); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%v, want %q", err, words)
		}
	}
	over := Override(&api.LinuxResources{Pids: &api.LinuxPids{Limit: 4}, Cpu: &api.LinuxCPU{Cpus: "3", Shares: api.UInt64(uint64(1))}}, cri)
	if over.GetPids().GetLimit() != 4 || over.GetCpu().GetCpus() != "0-1" || over.GetCpu().GetShares().GetValue() != 2 {
		t.Errorf("overridden: %v", over)
	}
}
