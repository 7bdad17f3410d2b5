package spec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

// InfraRequest is all that the spec of a sandbox's infra container is made of:
// the process that holds and reaps a PID namespace which containers share.
type InfraRequest struct {
	SandboxID string
	Sandbox   *runtimeapi.PodSandboxConfig
	Host      host.Facts
	// Rootfs is a directory with the program that Args names.
	Rootfs      string
	Args        []string
	CgroupsPath string
	// Namespaces to join. PID and Target are not used: the PID namespace is
	// the one that the infra container makes.
	Namespaces Namespaces
	Labels     Labels
}

// The infra container's own: as good as no processor time, never killed for
// memory, an unprivileged user that no image has. They are the kubelet's and
// the pause image's.
const (
	infraShares   = 2
	infraOOMScore = -998
	infraUser     = 65535
)

// Infra returns the spec of a sandbox's infra container. It may do nothing but
// wait: it has no capability, can't gain one, and its root is read-only.
func Infra(r InfraRequest) (Result, error) {
	b := newBuilder(Request{
		SandboxID: r.SandboxID, Sandbox: r.Sandbox, Host: r.Host, Rootfs: r.Rootfs, CgroupsPath: r.CgroupsPath,
		Namespaces: r.Namespaces, Labels: r.Labels,
		User: specs.User{UID: infraUser, GID: infraUser},
		Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "infra"},
			Command:  r.Args,
			Linux: &runtimeapi.LinuxContainerConfig{
				Resources: &runtimeapi.LinuxContainerResources{CpuShares: infraShares, OomScoreAdj: infraOOMScore},
				SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
					ReadonlyRootfs:   true,
					NoNewPrivs:       true,
					Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
					Capabilities:     &runtimeapi.Capability{DropCapabilities: []string{"ALL"}},
					MaskedPaths:      DefaultMaskedPaths(),
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
	b.spec.Version = version(b.spec)
	return Result{b.spec, b.notes, b.relabel}, nil
}

// infraMounts are what a runtime can't start a process without.
func (b mounter) infraMounts() error {
	for _, m := range b.systemMounts() {
		if m.Destination == "/proc" || m.Destination == "/dev" {
			b.spec.Mounts = append(b.spec.Mounts, m)
		}
	}
	return nil
}
