package spec

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/golden"
	"github.com/huskd/husk/internal/host"
)

// facts returns the facts of a host that supports everything.
func facts() host.Facts {
	return host.Facts{
		Kernel: "6.18.0", CPUs: 2, Memory: 4 << 30,
		Cgroup: host.Cgroup{
			Mode: host.CgroupV1, Swap: true, HugePages: []string{"2MB", "1GB"},
			Controllers: []string{"blkio", "cpu", "cpuset", "hugetlb", "memory", "pids"},
		},
		OOMScoreFloor: -1000, Seccomp: true, Overlay: true, IDMap: true, RecursiveReadOnly: true, IPv6: true,
	}
}

// request returns the request for a container of a minimal pod, as the kubelet sends it.
func request() Request {
	return Request{
		SandboxID: strings.Repeat("ab", 32),
		Sandbox: &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "default", Uid: "1234"},
			Hostname:     "web",
			LogDirectory: "/var/log/pods/default_web_1234",
			Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
			}},
		},
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "server"},
			Envs:     []*runtimeapi.KeyValue{{Key: "PORT", Value: []byte("80")}},
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuShares: 2, OomScoreAdj: 1000},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					MaskedPaths:      DefaultMaskedPaths(nil),
					ReadonlyPaths:    DefaultReadonlyPaths(),
					Seccomp:          &runtimeapi.SecurityProfile{},
				},
			},
		},
		Image: ocispec.ImageConfig{
			Env:        []string{"PATH=/bin", "VERSION=1"},
			Entrypoint: []string{"/entry"},
			Cmd:        []string{"serve"},
			WorkingDir: "/srv",
		},
		ImageName:    "localhost/web:1",
		Host:         facts(),
		NodeName:     "node",
		Rootfs:       "/run/husk/rootfs",
		CgroupsPath:  "/husk/pod/server",
		User:         specs.User{AdditionalGids: []uint32{0}},
		Home:         "/root",
		Namespaces:   Namespaces{Net: "/run/netns/n", IPC: "/run/husk/ipc", UTS: "/run/husk/uts"},
		Capabilities: Capabilities{Default: podmans},
		Files:        Files{Hosts: "/s/hosts", ResolvConf: "/s/resolv.conf", Hostname: "/s/hostname", Shm: "/s/shm"},
	}
}

// with returns the minimal request, changed by f.
func with(f func(r *Request)) Request {
	r := request()
	f(&r)
	return r
}

func security(r *Request) *runtimeapi.LinuxContainerSecurityContext {
	return r.Config.Linux.SecurityContext
}

func must(t *testing.T, r Request) Result {
	t.Helper()
	out, err := Container(r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// fails checks for an invalid argument in one line that contains each of the words. The caller adds
// the container's name.
func fails(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one with %q", words)
	}
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("error is %v, want an invalid argument", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q has more than one line", err)
	}
	if strings.Contains(err.Error(), `container "server": `) {
		t.Errorf("%q names the container", err)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not contain %q", err, w)
		}
	}
}

func compare(t *testing.T, name string, r Result) {
	t.Helper()
	if s := r.Spec.Linux.Seccomp; s != nil {
		// The rules depend on the kernel and the CPU; security_test.go checks them.
		s.Architectures, s.Syscalls = nil, []specs.LinuxSyscall{{Names: []string{"…"}, Action: specs.ActAllow}}
	}
	golden.JSON(t, filepath.Join("testdata", name+".json"), r)
}

func TestGolden(t *testing.T) {
	t.Parallel()
	for name, r := range map[string]Request{
		"plain": request(),
		"v2-limits": with(func(r *Request) {
			r.Host.Cgroup.Mode = host.CgroupV2
			r.Config.Linux.Resources = &runtimeapi.LinuxContainerResources{
				CpuShares: 512, CpuQuota: 50000, CpuPeriod: 100000, CpusetCpus: "0-1", CpusetMems: "0",
				MemoryLimitInBytes: 64 << 20, OomScoreAdj: 900, Unified: map[string]string{"memory.high": "60000000"},
				HugepageLimits: []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 4 << 20}, {PageSize: "1GB"}, {PageSize: "64KB"}},
			}
			r.Limits = Limits{Pids: 1024, Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 1024, Hard: 4096}}}
		}),
		"privileged": with(func(r *Request) {
			r.Sandbox.Linux.SecurityContext.Privileged = true
			security(r).Privileged = true
			security(r).MaskedPaths, security(r).ReadonlyPaths = nil, nil
			r.HostDevices = []Device{{specs.LinuxDevice{Path: "/dev/sda", Type: "b", Major: 8}, "rwm"}}
			r.Capabilities.Daemon = slices.DeleteFunc(slices.Clone(knownCapabilities), func(c string) bool { return c == "CAP_SYS_RESOURCE" })
		}),
		"host-namespaces": with(func(r *Request) {
			all := &runtimeapi.NamespaceOption{
				Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE,
			}
			r.Sandbox.Linux.SecurityContext.NamespaceOptions, security(r).NamespaceOptions = all, all
			r.Sandbox.Hostname, r.Namespaces = "", Namespaces{}
		}),
		"confined": with(func(r *Request) {
			r.Config.Tty = true
			r.User = specs.User{UID: 1000, GID: 1000, AdditionalGids: []uint32{1000, 2000}}
			s := security(r)
			s.NoNewPrivs, s.ReadonlyRootfs = true, true
			s.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"NET_BIND_SERVICE"}}
			r.Config.Mounts = []*runtimeapi.Mount{
				{ContainerPath: "/data/deep/er", HostPath: "/h/deeper", MountOptions: []string{"noexec"}},
				{ContainerPath: "/data", HostPath: "/h/data", Readonly: true, RecursiveReadOnly: true},
				{ContainerPath: "/shared/", HostPath: "/h/shared", Propagation: runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL},
				{ContainerPath: "/etc/hosts", HostPath: "/h/hosts"},
			}
			r.Devices = []Device{{specs.LinuxDevice{Path: "/dev/fuse", Type: "c", Major: 10, Minor: 229}, "rw"}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			compare(t, name, must(t, r))
		})
	}
}

func TestInfraGolden(t *testing.T) {
	t.Parallel()
	r := request()
	r.Host.OOMScoreAdj, r.Host.OOMScoreFloor = 0, 0
	r.Sandbox.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	out, err := Infra(InfraRequest{
		SandboxID: r.SandboxID, Sandbox: r.Sandbox, Host: r.Host, Rootfs: "/s/rootfs", Args: []string{"/pause"},
		CgroupsPath: "/husk/pod/infra", Namespaces: r.Namespaces,
	})
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "infra", out)
}

// TestInfraGuest checks what a runtime with a virtual machine finds in the spec: the hostname,
// though the UTS namespace exists, and no CPU shares, which would be those of the machine.
func TestInfraGuest(t *testing.T) {
	t.Parallel()
	r := request()
	infra := InfraRequest{
		SandboxID: r.SandboxID, Sandbox: r.Sandbox, Host: r.Host, Rootfs: "/r", Args: []string{"/pause"},
		CgroupsPath: "/c", Namespaces: r.Namespaces, Guest: "web-0",
	}
	out, err := Infra(infra)
	if err != nil {
		t.Fatal(err)
	}
	if out.Spec.Hostname != "web-0" || out.Spec.Linux.Resources == nil || out.Spec.Linux.Resources.CPU != nil {
		t.Errorf("hostname %q, limits %+v", out.Spec.Hostname, out.Spec.Linux.Resources)
	}
	r.Sandbox.Linux.SecurityContext.NamespaceOptions.Network = runtimeapi.NamespaceMode_NODE
	if out, err = Infra(infra); err != nil || out.Spec.Hostname != "" {
		t.Errorf("in the host's network: hostname %q, %v", out.Spec.Hostname, err)
	}
}

func TestInfraFails(t *testing.T) {
	t.Parallel()
	r := request()
	for name, change := range map[string]func(*InfraRequest){
		"no args":      func(i *InfraRequest) { i.Args = nil },
		"no rootfs":    func(i *InfraRequest) { i.Rootfs = "" },
		"no namespace": func(i *InfraRequest) { i.Namespaces.Net = "" },
		"no cgroup":    func(i *InfraRequest) { i.CgroupsPath = "" },
	} {
		infra := InfraRequest{
			SandboxID: r.SandboxID, Sandbox: r.Sandbox, Host: r.Host, Rootfs: "/r", Args: []string{"/pause"},
			CgroupsPath: "/c", Namespaces: r.Namespaces,
		}
		change(&infra)
		if _, err := Infra(infra); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRequestIsNotChanged checks that Container doesn't modify its request, whose parts are shared
// with the records of the sandbox and the container.
func TestRequestIsNotChanged(t *testing.T) {
	t.Parallel()
	r := with(func(r *Request) {
		r.Config.Linux.Resources.Unified = map[string]string{"memory.high": "1"}
		r.Host.Cgroup.Mode = host.CgroupV2
		r.Config.Args = make([]string, 1, 10)
		r.Config.Args[0] = "a"
	})
	sandbox, config := proto.Clone(r.Sandbox), proto.Clone(r.Config)
	out := must(t, r)
	out.Spec.Process.Args[0] = "changed"
	out.Spec.Linux.Resources.Unified["memory.high"] = "changed"
	out.Spec.Process.Env[0] = "changed"
	if !proto.Equal(sandbox, r.Sandbox) || !proto.Equal(config, r.Config) {
		t.Error("the request was changed")
	}
	if r.Image.Env[0] != "PATH=/bin" || r.Image.Entrypoint[0] != "/entry" {
		t.Error("the image config was changed")
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	if got := must(t, request()).Spec.Version; got != "1.0.2" {
		t.Errorf("version of a plain spec is %s", got)
	}
	mapped := must(t, with(func(r *Request) {
		r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/d", HostPath: "/h", UidMappings: []*runtimeapi.IDMapping{{HostId: 1, Length: 1}}}}
	}))
	if got := mapped.Spec.Version; got != "1.1.0" {
		t.Errorf("version with mapped mounts is %s", got)
	}
	notify := must(t, with(func(r *Request) {
		security(r).Seccomp = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: "/p.json"}
		r.Seccomp = []byte(`{"defaultAction":"SCMP_ACT_ALLOW","listenerPath":"/run/agent"}`)
	}))
	if got := notify.Spec.Version; got != "1.1.0" {
		t.Errorf("version with a seccomp listener is %s", got)
	}
}

func TestBadText(t *testing.T) {
	t.Parallel()
	for field, change := range map[string]func(*Request){
		"command":          func(r *Request) { r.Config.Command = []string{"a\x00b"} },
		"args":             func(r *Request) { r.Config.Args = []string{"ok", "\xff"} },
		"working_dir":      func(r *Request) { r.Config.WorkingDir = "/a\x00" },
		"image cmd":        func(r *Request) { r.Image.Cmd = []string{"\x00"} },
		"image entrypoint": func(r *Request) { r.Image.Entrypoint = []string{"\xff"} },
		"envs[1]": func(r *Request) {
			r.Config.Envs = append(r.Config.Envs, &runtimeapi.KeyValue{Key: "A", Value: []byte{0xff}})
		},
		"mounts[0]":           func(r *Request) { r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/a\x00", HostPath: "/b"}} },
		"root file system":    func(r *Request) { r.Rootfs = "relative" },
		"cgroup path: empty":  func(r *Request) { r.CgroupsPath = "" },
		"masked_paths":        func(r *Request) { security(r).MaskedPaths = []string{"proc"} },
		"readonly_paths":      func(r *Request) { security(r).ReadonlyPaths = []string{"proc"} },
		"oom_score_adj: 1001": func(r *Request) { r.Config.Linux.Resources.OomScoreAdj = 1001 },
	} {
		_, err := Container(with(change))
		fails(t, err, field)
	}
}

// FuzzContainer checks that every request results in a spec or an invalid argument.
func FuzzContainer(f *testing.F) {
	r := with(func(r *Request) {
		security(r).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}, AddAmbientCapabilities: []string{"CHOWN"}}
		security(r).SelinuxOptions = &runtimeapi.SELinuxOption{Level: "s0"}
		r.Config.Mounts = []*runtimeapi.Mount{{ContainerPath: "/a/../b", HostPath: "/h", MountOptions: []string{"noexec"}}}
		r.Config.Devices = []*runtimeapi.Device{{ContainerPath: "/dev/x", HostPath: "/dev/x", Permissions: "r"}}
		r.Config.Linux.Resources.HugepageLimits = []*runtimeapi.HugepageLimit{{PageSize: "2MB", Limit: 1}}
	})
	sandbox, _ := proto.Marshal(r.Sandbox)
	config, _ := proto.Marshal(r.Config)
	f.Add(sandbox, config, "u:g", []byte("u:x:1:2::/home/u:/bin/sh\n"), []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`))
	f.Add([]byte{}, []byte{}, "", []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, sandbox, config []byte, user string, passwd, seccomp []byte) {
		r := request()
		r.Sandbox, r.Config = &runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{}
		if proto.Unmarshal(sandbox, r.Sandbox) != nil || proto.Unmarshal(config, r.Config) != nil {
			return
		}
		r.Seccomp, r.Host.SELinux, r.Host.AppArmor = seccomp, len(user)%2 == 0, len(user)%3 == 0
		var err error
		r.User, r.Home, err = ResolveUser(UserRequest{
			Image: "i", ImageUser: user, Security: r.Config.GetLinux().GetSecurityContext(),
		}, passwd, passwd)
		if err != nil {
			return
		}
		out, err := Container(r)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("error is %v, want an invalid argument", err)
			}
			return
		}
		if _, err := json.Marshal(out.Spec); err != nil {
			t.Error(err)
		}
		_, _ = Infra(InfraRequest{Sandbox: r.Sandbox, Host: r.Host, Rootfs: "/r", Args: []string{"/p"}, CgroupsPath: "/c", Namespaces: r.Namespaces})
	})
}

// TestNilMessages has nil for messages that a client leaves out.
func TestNilMessages(t *testing.T) {
	t.Parallel()
	_, err := Container(Request{})
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	r := request()
	r.Sandbox, r.Config, r.Namespaces.PID = nil, nil, "/run/husk/pid"
	throttle := "/sys/devices/system/cpu/cpu0/thermal_throttle"
	r.Host.Throttles = []string{throttle}
	out := must(t, r)
	if got := out.Spec.Linux.MaskedPaths; !slices.Equal(got, append(DefaultMaskedPaths(nil), throttle)) {
		t.Errorf("masked paths without a security context are %v", got)
	}
}

func BenchmarkContainer(b *testing.B) {
	r := request()
	for b.Loop() {
		out, err := Container(r)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := json.Marshal(out.Spec); err != nil {
			b.Fatal(err)
		}
	}
}
