// Package spec turns what CRI asks of a container into an OCI runtime spec. It
// is pure: whatever it must know of the host, the image and the sandbox is in
// the Request, and the answer is a value.
//
// Where CRI leaves a choice, Husk's is:
//
//   - A container that names no seccomp profile gets none, as CRI's tests have
//     it. (The kubelet and huskd's agent always name one.)
//   - Without a security context the default paths of /proc and /sys are masked
//     or read-only. With one its lists are taken as they are, since empty ones
//     are how the kubelet says procMount: Unmasked.
//   - What the host can't do is an error where the container would be less
//     confined or would not get what it asked for, and otherwise left out with
//     a note for the log.
//
// ociVersion is the lowest that a runtime must know to honour the spec: crun
// 1.8 refuses everything above 1.0, though it knows most of what 1.1 added.
package spec

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

// Request is all that a container's spec is made of. Nothing in it is changed.
type Request struct {
	SandboxID string
	Sandbox   *runtimeapi.PodSandboxConfig
	Config    *runtimeapi.ContainerConfig
	// Image is the config of the container's image, ImageName what it is
	// called in messages and annotations.
	Image     ocispec.ImageConfig
	ImageName string

	Host host.Facts
	// NodeName is the host name of the node, which containers in its network
	// namespace see as theirs.
	NodeName string
	// Capabilities ("CAP_CHOWN", …) that the daemon has and so can give. Nil is
	// all that the package knows.
	Capabilities []string

	// Rootfs is the absolute path of the root file system.
	Rootfs string
	// CgroupsPath is where the container's cgroup is to be made, relative to
	// the hierarchies' roots.
	CgroupsPath string
	// User and Home are ResolveUser's answer.
	User       specs.User
	Home       string
	Namespaces Namespaces
	Files      Files
	// Devices are the host's nodes that Config.Devices stands for. HostDevices
	// are all of the host's, which a privileged container gets.
	Devices, HostDevices []Device
	// Seccomp is the content of the profile that the config's localhost_ref
	// names; nil if it names none.
	Seccomp []byte
	// Labels are the sandbox's SELinux labels, which the config's options may
	// change in part.
	Labels Labels
	Limits Limits
}

// Namespaces are paths of the sandbox's pinned namespaces. One that the mode
// of the sandbox doesn't need may be empty.
type Namespaces struct {
	Net, IPC, PID, User string
	// UTS has the sandbox's hostname already. If it is empty each container
	// gets a namespace of its own with that hostname.
	UTS string
	// Target is the PID namespace of the container that the mode TARGET names.
	Target string
}

// Files are the sandbox's files on the host, to be mounted into each of its
// containers. An empty path is not mounted.
type Files struct {
	Hosts, ResolvConf, Hostname string
	// Shm is a directory, the mount point of the sandbox's tmpfs.
	Shm string
}

// Device is a device node and what may be done with it.
type Device struct {
	specs.LinuxDevice
	// Access is any of r(ead), w(rite), m(knod).
	Access string
}

// Labels are SELinux contexts: user:role:type:level.
type Labels struct{ Process, Mount string }

// Limits are the daemon's own, which CRI has no words for.
type Limits struct {
	// Pids is the largest number of processes; 0 is no limit.
	Pids    int64
	Rlimits []specs.POSIXRlimit
	// BlockIO and RDT are what the classes of these names stand for.
	BlockIO *specs.LinuxBlockIO
	RDT     *specs.LinuxIntelRdt
}

// Result is a spec and what remains to be done or said.
type Result struct {
	Spec *specs.Spec
	// Notes are lines for the log: what was asked and is not to be had here.
	Notes []string
	// Relabel are the host's paths that must be given Spec.Linux.MountLabel
	// before the container starts.
	Relabel []string
}

// Container returns the spec of a container. Its errors are of the kind
// invalid argument; they name the container and the field of the CRI message.
func Container(r Request) (Result, error) {
	b := newBuilder(r)
	confine := confiner{b}
	for _, step := range []func() error{
		b.checkText,
		b.checkPrivilege,
		b.args,
		b.env,
		b.process,
		confine.capabilities,
		b.oomScore,
		b.root,
		joiner{b}.namespaces,
		mounter{b}.mounts,
		b.devices,
		b.resources,
		confine.paths,
		confine.seccomp,
		confine.appArmor,
		confine.selinux,
	} {
		if err := step(); err != nil {
			return Result{}, err
		}
	}
	b.annotations()
	b.spec.Version = version(b.spec)
	return Result{b.spec, b.notes, b.relabel}, nil
}

// builder carries a request through the steps, each of which fills in its part
// of the spec and may rely on those before it.
type builder struct {
	Request
	name     string
	security *runtimeapi.LinuxContainerSecurityContext
	spec     *specs.Spec
	notes    []string
	relabel  []string
}

func newBuilder(r Request) *builder {
	return &builder{
		Request:  r,
		name:     r.Config.GetMetadata().GetName(),
		security: r.Config.GetLinux().GetSecurityContext(),
		spec: &specs.Spec{
			Process: &specs.Process{},
			Root:    &specs.Root{},
			Linux:   &specs.Linux{Resources: &specs.LinuxResources{}},
		},
	}
}

func (b *builder) sandboxSecurity() *runtimeapi.LinuxSandboxSecurityContext {
	return b.Sandbox.GetLinux().GetSecurityContext()
}

func (b *builder) privileged() bool { return b.security.GetPrivileged() }

// bad returns an error about a field of the container's config.
func (b *builder) bad(field, format string, args ...any) error {
	return invalid(b.name, field+": "+fmt.Sprintf(format, args...))
}

func (b *builder) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

func invalid(container, message string) error {
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container %q: %s", container, message))
}

// checkText refuses what no exec or JSON file can carry.
func (b *builder) checkText() error {
	check := func(field string, texts ...string) error {
		for _, text := range texts {
			if strings.ContainsRune(text, 0) {
				return b.bad(field, "%q has a zero byte: remove it", text)
			}
			if !utf8.ValidString(text) {
				return b.bad(field, "%q is not UTF-8", text)
			}
		}
		return nil
	}
	for _, f := range []struct {
		field string
		texts []string
	}{
		{"command", b.Config.GetCommand()},
		{"args", b.Config.GetArgs()},
		{"working_dir", []string{b.Config.GetWorkingDir()}},
		{"image entrypoint", b.Image.Entrypoint},
		{"image cmd", b.Image.Cmd},
		{"image working dir", []string{b.Image.WorkingDir}},
		{"linux.security_context.masked_paths", b.security.GetMaskedPaths()},
		{"linux.security_context.readonly_paths", b.security.GetReadonlyPaths()},
	} {
		if err := check(f.field, f.texts...); err != nil {
			return err
		}
	}
	for i, e := range b.Config.GetEnvs() {
		if err := check(fmt.Sprintf("envs[%d]", i), e.GetKey(), string(e.GetValue())); err != nil {
			return err
		}
	}
	for i, m := range b.Config.GetMounts() {
		if err := check(fmt.Sprintf("mounts[%d]", i), m.GetContainerPath(), m.GetHostPath()); err != nil {
			return err
		}
	}
	return nil
}

// checkPrivilege: a sandbox is told beforehand if one of its containers will be
// privileged, so that it may confine itself otherwise.
func (b *builder) checkPrivilege() error {
	if b.privileged() && !b.sandboxSecurity().GetPrivileged() {
		return b.bad("linux.security_context.privileged", "the sandbox is not: make it privileged too")
	}
	return nil
}

func (b *builder) root() error {
	if !strings.HasPrefix(b.Rootfs, "/") {
		return invalid(b.name, fmt.Sprintf("root file system %q is not an absolute path", b.Rootfs))
	}
	b.spec.Root.Path = b.Rootfs
	b.spec.Root.Readonly = b.security.GetReadonlyRootfs()
	return nil
}

// Versions of the runtime spec. What 1.0 runtimes do though only 1.1 wrote it
// down (errnoRet, unified, rro) needs no more than the first.
const (
	version10 = "1.0.2"
	version11 = "1.1.0"
)

func version(s *specs.Spec) string {
	for _, m := range s.Mounts {
		if len(m.UIDMappings) > 0 || len(m.GIDMappings) > 0 {
			return version11
		}
	}
	if sec := s.Linux.Seccomp; sec != nil && sec.ListenerPath != "" {
		return version11
	}
	return version10
}
