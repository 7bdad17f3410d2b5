package spec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

// InfraRequest is the input of Infra. A sandbox's infra container is the process that holds and
// reaps a PID namespace that containers share.
type InfraRequest struct {
	SandboxID string
	Sandbox   *runtimeapi.PodSandboxConfig
	Host      host.Facts
	// Rootfs is a directory with the program that Args names.
	Rootfs      string
	Args        []string
	CgroupsPath string
	// Guest is the hostname in the virtual machine, for a runtime that runs the pod in one. Such a
	// runtime takes it from here only, and the machine may be in the infra container's cgroup.
	Guest string
	// Namespaces are joined, except PID and Target: the infra container creates the PID namespace.
	Namespaces Namespaces
	Labels     Labels
}

// The infra process gets hardly any CPU time, is never OOM-killed, and runs as an unprivileged user
// that no image has. The values are those of the kubelet and the pause image.
const (
	InfraShares   = 2
	InfraOOMScore = -998
	InfraUser     = 65535
)

// resources returns the infra container's limits.
func (r InfraRequest) resources() *runtimeapi.LinuxContainerResources {
	limits := &runtimeapi.LinuxContainerResources{CpuShares: InfraShares, OomScoreAdj: InfraOOMScore}
	if r.Guest != "" {
		limits.CpuShares = 0
	}
	return limits
}

// Infra returns the spec of a sandbox's infra container. It has no capabilities, can't gain any,
// and its root is read-only.
func Infra(r InfraRequest) (Result, error) {
	b := newBuilder(Request{
		SandboxID: r.SandboxID, Sandbox: r.Sandbox, Host: r.Host, Rootfs: r.Rootfs, CgroupsPath: r.CgroupsPath,
		Namespaces: r.Namespaces, Labels: r.Labels,
		User: specs.User{UID: InfraUser, GID: InfraUser},
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "infra"},
			Command:  r.Args,
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: r.resources(),
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					ReadonlyRootfs:   true,
					NoNewPrivs:       true,
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
					Capabilities:     &runtimeapi.Capability{DropCapabilities: []string{"ALL"}},
					MaskedPaths:      DefaultMaskedPaths(r.Host.Throttles),
					ReadonlyPaths:    DefaultReadonlyPaths(),
					NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
					SelinuxOptions:   r.Sandbox.GetLinux().GetSecurityContext().GetSelinuxOptions(),
				},
			},
		},
	})
	confine := confiner{b}
	for _, step := range []func() error{
		b.args, b.process, confine.capabilities, b.oomScore, b.root, joiner{b}.namespaces, mounter{b}.infraMounts,
		b.devices, b.resources, confine.paths, confine.seccomp, confine.selinux,
	} {
		if err := step(); err != nil {
			return Result{}, err
		}
	}
	b.annotateSandbox("sandbox")
	b.spec.Annotations[annotationLogs] = r.Sandbox.GetLogDirectory()
	if r.Guest != "" && !b.hostNetwork() {
		b.spec.Hostname = r.Guest
	}
	b.spec.Version = version(b.spec)
	return Result{b.spec, b.notes, b.relabel}, nil
}

// infraMounts adds the mounts without which a runtime can't start a process.
func (b mounter) infraMounts() error {
	for _, m := range b.systemMounts() {
		if m.Destination == "/proc" || m.Destination == "/dev" {
			b.spec.Mounts = append(b.spec.Mounts, m)
		}
	}
	return nil
}
