package spec

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

func TestResources(t *testing.T) {
	t.Parallel()
	type asked = runtimeapi.LinuxContainerResources
	noSwap := func(h *host.Facts) { h.Cgroup.Swap = false }
	for _, c := range []struct {
		name  string
		asked *asked
		host  func(*host.Facts)
		want  string
		notes int
	}{
		{"nothing", &asked{}, nil, `{}`, 0},
		{"shares", &asked{CpuShares: 1024}, nil, `{"cpu":{"shares":1024}}`, 0},
		{"shares without the controller", &asked{CpuShares: 1024}, func(h *host.Facts) { h.Cgroup.Controllers = nil }, `{}`, 0},
		{"quota", &asked{CpuQuota: 5000}, nil, `{"cpu":{"quota":5000,"period":100000}}`, 0},
		{"no quota", &asked{CpuQuota: -1, CpuPeriod: 50000}, nil, `{"cpu":{"quota":-1,"period":50000}}`, 0},
		{"memory", &asked{MemoryLimitInBytes: 100}, nil, `{"memory":{"limit":100,"swap":100}}`, 0},
		{"memory, no swap accounting", &asked{MemoryLimitInBytes: 100}, noSwap, `{"memory":{"limit":100}}`, 0},
		{"swap", &asked{MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 300}, nil, `{"memory":{"limit":100,"swap":300}}`, 0},
		{"swap, no swap accounting", &asked{MemoryLimitInBytes: 100, MemorySwapLimitInBytes: 300}, noSwap, `{"memory":{"limit":100}}`, 1},
		{"any swap", &asked{MemoryLimitInBytes: 100, MemorySwapLimitInBytes: -1}, nil, `{"memory":{"limit":100,"swap":-1}}`, 0},
		{"no limit again", &asked{MemoryLimitInBytes: -1}, nil, `{"memory":{"limit":-1,"swap":-1}}`, 0},
		{"cpuset", &asked{CpusetCpus: "0-3,6", CpusetMems: "0"}, nil, `{"cpu":{"cpus":"0-3,6","mems":"0"}}`, 0},
	} {
		h := facts()
		if c.host != nil {
			c.host(&h)
		}
		out, notes, err := Resources("server", c.asked, h)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got, _ := json.Marshal(out)
		if string(got) != c.want || len(notes) != c.notes {
			t.Errorf("%s: %s with notes %q, want %s", c.name, got, notes, c.want)
		}
	}
}

func TestBadResources(t *testing.T) {
	t.Parallel()
	type asked = runtimeapi.LinuxContainerResources
	v2 := func(h *host.Facts) { h.Cgroup.Mode = host.CgroupV2 }
	bare := func(h *host.Facts) { h.Cgroup = host.Cgroup{Mode: host.CgroupV1} }
	for _, c := range []struct {
		words string
		asked *asked
		host  func(*host.Facts)
	}{
		{"cpu_shares: -1", &asked{CpuShares: -1}, nil},
		{"cpu_period: 10 µs", &asked{CpuPeriod: 10}, nil},
		{"cpu_period: 1000001", &asked{CpuPeriod: 1000001}, nil},
		{"cpu_quota: 999 µs", &asked{CpuQuota: 999}, nil},
		{`cpuset_cpus: "0-"`, &asked{CpusetCpus: "0-"}, nil},
		{`cpuset_mems: "x"`, &asked{CpusetMems: "x"}, nil},
		{"memory_limit_in_bytes: -2", &asked{MemoryLimitInBytes: -2}, nil},
		{"memory_swap_limit_in_bytes: -2", &asked{MemorySwapLimitInBytes: -2}, nil},
		{"memory_swap_limit_in_bytes: needs", &asked{MemorySwapLimitInBytes: 5}, nil},
		{"memory_swap_limit_in_bytes: 5 is less", &asked{MemorySwapLimitInBytes: 5, MemoryLimitInBytes: 6}, nil},
		{`hugepage_limits[0]: this host can't limit pages of "16MB": it supports 2MB, 1GB`, &asked{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "16MB", Limit: 1}}}, nil},
		{"it supports none", &asked{HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}}, bare},
		{"unified: needs cgroup v2, and this host has v1", &asked{Unified: map[string]string{"memory.high": "1"}}, nil},
		{`unified: "../x" is not`, &asked{Unified: map[string]string{"../x": "1"}}, v2},
		{`unified: "memory" is not`, &asked{Unified: map[string]string{"memory": "1"}}, v2},
		{"memory_limit_in_bytes: this host has no memory controller", &asked{MemoryLimitInBytes: 5}, bare},
		{"cpu_quota: this host has no cpu controller", &asked{CpuQuota: 5000}, bare},
		{"cpu_period: this host has no cpu controller", &asked{CpuPeriod: 5000}, bare},
		{"cpuset_cpus: this host has no cpuset controller", &asked{CpusetCpus: "0"}, bare},
	} {
		_, err := Container(with(func(r *Request) {
			r.Config.Linux.Resources = c.asked
			if c.host != nil {
				c.host(&r.Host)
			}
		}))
		fails(t, err, "linux.resources."+strings.TrimPrefix(c.words, "it supports none"))
	}
}

func TestLimits(t *testing.T) {
	t.Parallel()
	weight := uint16(500)
	limits := Limits{Pids: 10, BlockIO: &specs.LinuxBlockIO{Weight: &weight}, RDT: &specs.LinuxIntelRdt{ClosID: "gold"}}
	linux := must(t, with(func(r *Request) { r.Limits = limits })).Spec.Linux
	if *linux.Resources.Pids.Limit != 10 || *linux.Resources.BlockIO.Weight != 500 || linux.IntelRdt.ClosID != "gold" {
		t.Errorf("%+v", linux)
	}
	if got := must(t, request()).Spec.Linux.Resources.Pids; got != nil {
		t.Errorf("no pids limit: %+v", got)
	}
	bare := must(t, with(func(r *Request) { r.Limits, r.Host.Cgroup.Controllers = limits, nil }))
	if got := bare.Spec.Linux.Resources.Pids; got != nil {
		t.Errorf("no pids controller: %+v", got)
	}
}

func TestDevices(t *testing.T) {
	t.Parallel()
	sda := Device{specs.LinuxDevice{Path: "/dev/sda", Type: "b", Major: 8}, "rwm"}
	fuse := Device{specs.LinuxDevice{Path: "/dev//fuse", Type: "c", Major: 10, Minor: 229}, "rw"}
	linux := must(t, with(func(r *Request) { r.Devices, r.HostDevices = []Device{fuse}, []Device{sda} })).Spec.Linux
	if len(linux.Devices) != 1 || linux.Devices[0].Path != "/dev/fuse" {
		t.Errorf("%+v", linux.Devices)
	}
	if last := linux.Resources.Devices[len(linux.Resources.Devices)-1]; !last.Allow || *last.Major != 10 || *last.Minor != 229 || last.Access != "rw" {
		t.Errorf("%+v", last)
	}
	if first := linux.Resources.Devices[0]; first.Allow || first.Access != "rwm" || first.Type != "" {
		t.Errorf("the first rule must deny all: %+v", first)
	}
	privileged := must(t, with(func(r *Request) {
		security(r).Privileged, r.Sandbox.Linux.SecurityContext.Privileged = true, true
		mine := Device{specs.LinuxDevice{Path: "/dev/sda", Type: "b", Major: 9}, "r"}
		r.Devices, r.HostDevices = []Device{mine}, []Device{sda, fuse}
	})).Spec.Linux
	if len(privileged.Devices) != 2 || privileged.Devices[0].Major != 9 || len(privileged.Resources.Devices) != 1 {
		t.Errorf("privileged: %+v", privileged.Devices)
	}
	for words, d := range map[string][]Device{
		`devices[0].permissions: ""`:          {{specs.LinuxDevice{Path: "/dev/x"}, ""}},
		`devices[0].permissions: "rx"`:        {{specs.LinuxDevice{Path: "/dev/x"}, "rx"}},
		`devices[0].container_path: "dev"`:    {{specs.LinuxDevice{Path: "dev"}, "r"}},
		`devices[0].container_path: "/dev/..`: {{specs.LinuxDevice{Path: "/dev/../x"}, "r"}},
		`devices[1].container_path: /dev/x`:   {{specs.LinuxDevice{Path: "/dev/x"}, "r"}, {specs.LinuxDevice{Path: "/dev/x/"}, "r"}},
	} {
		_, err := Container(with(func(r *Request) { r.Devices = d }))
		fails(t, err, words)
	}
}
