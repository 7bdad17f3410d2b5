// Package spec converts a CRI container config into an OCI runtime spec. It is pure: everything
// that it needs to know about the host, the image and the sandbox is in the Request, and the result
// is a value.
//
// Where CRI leaves a choice, Husk decides:
//
//   - A container that names no seccomp profile gets none, as CRI's tests expect. (The kubelet and
//     huskd's agent always name one.)
//   - Without a security context the default paths of /proc and /sys are masked or read-only. With
//     one, its lists are used as they are: the kubelet requests procMount: Unmasked by empty lists.
//   - What the host doesn't support is an error if the container would be less confined or not get
//     what it requested. Otherwise it is left out with a note for the log.
//
// ociVersion is the lowest version that supports the spec: crun 1.8 refuses everything above 1.0,
// although it supports most of what 1.1 added.
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

// Request is the input of Container, which doesn't change anything in it.
type Request struct {
	SandboxID string
	Sandbox   *runtimeapi.PodSandboxConfig
	Config    *runtimeapi.ContainerConfig
	// Image is the config of the container's image. ImageName is its name for messages and
	// annotations.
	Image     ocispec.ImageConfig
	ImageName string

	Host host.Facts
	// NodeName is the host name of the node, and of containers in its network namespace.
	NodeName     string
	Capabilities Capabilities

	// Rootfs is the absolute path of the root file system.
	Rootfs string
	// ImageVolumes are the directories below Rootfs that the image declares as volumes, by their paths
	// in the container.
	ImageVolumes map[string]string
	// CgroupsPath is the path of the container's cgroup in the hierarchies.
	CgroupsPath string
	// User and Home are the results of ResolveUser.
	User       specs.User
	Home       string
	Namespaces Namespaces
	Files      Files
	// Devices are the host's device nodes that Config.Devices names. HostDevices are all of the
	// host's, which a privileged container gets.
	Devices, HostDevices []Device
	// Seccomp is the content of the profile in the config's localhost_ref; nil without one.
	Seccomp []byte
	// Labels are the sandbox's SELinux labels. The config's options may replace parts of them.
	Labels Labels
	Limits Limits
}

// Capabilities are the node's sets of capabilities ("CAP_CHOWN", …).
type Capabilities struct {
	// Daemon are those that the daemon has, so that containers can get them. Nil means all known
	// ones.
	Daemon []string
	// Default are those of a container that isn't privileged, before its own are added and dropped.
	Default []string
}

// Namespaces are the paths of the sandbox's pinned namespaces. Those that the sandbox doesn't need
// may be empty.
type Namespaces struct {
	Net, IPC, PID, User string
	// UTS is a namespace with the sandbox's hostname. If it is empty, each container gets a
	// namespace of its own with that hostname.
	UTS string
	// Target is the PID namespace of the container for the mode TARGET.
	Target string
}

// Files are the sandbox's files on the host that each container mounts. An empty path is not
// mounted.
type Files struct {
	Hosts, ResolvConf, Hostname string
	// Shm is a directory, the mount point of the sandbox's tmpfs.
	Shm string
}

// Device is a device node with the permitted access.
type Device struct {
	specs.LinuxDevice
	// Access is any of r(ead), w(rite), m(knod).
	Access string
}

// Labels are SELinux contexts: user:role:type:level.
type Labels struct{ Process, Mount string }

// Limits are those that don't come from CRI.
type Limits struct {
	// Pids is the maximum number of processes; 0 is no limit.
	Pids    int64
	Rlimits []specs.POSIXRlimit
	// BlockIO and RDT are the limits of the container's classes.
	BlockIO *specs.LinuxBlockIO
	RDT     *specs.LinuxIntelRdt
}

// Result is a spec, with what is left for the caller to do.
type Result struct {
	Spec *specs.Spec
	// Notes are lines for the log about requests that this host doesn't support.
	Notes []string
	// Relabel are the host's paths that must get the label Spec.Linux.MountLabel before the start.
	Relabel []string
}

// Container returns the spec of a container. Its errors are invalid arguments, and name the
// container and the field of the CRI message.
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

// builder is the state of the steps. Each step fills in a part of the spec and may rely on those
// before it.
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
	return invalid(field, format, args...)
}

func (b *builder) note(format string, args ...any) {
	b.notes = append(b.notes, fmt.Sprintf(format, args...))
}

// invalid returns an error about a field. The caller adds the container's name.
func invalid(field, format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage(field + ": " + fmt.Sprintf(format, args...))
}

// checkText refuses text that can't be in an exec or a JSON file.
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

// checkPrivilege refuses a privileged container in a sandbox that isn't. CRI announces privileged
// containers in the sandbox's config.
func (b *builder) checkPrivilege() error {
	if b.privileged() && !b.sandboxSecurity().GetPrivileged() {
		return b.bad("linux.security_context.privileged", "the sandbox is not: make it privileged too")
	}
	return nil
}

func (b *builder) root() error {
	if !strings.HasPrefix(b.Rootfs, "/") {
		return invalid("root file system", "%q is not an absolute path", b.Rootfs)
	}
	b.spec.Root.Path = b.Rootfs
	b.spec.Root.Readonly = b.security.GetReadonlyRootfs()
	return nil
}

// Versions of the runtime spec. Runtimes of 1.0 support errnoRet, unified and rro, which were
// specified only in 1.1.
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
