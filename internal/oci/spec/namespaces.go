package spec

import (
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (b *builder) hostNetwork() bool {
	return b.sandboxSecurity().GetNamespaceOptions().GetNetwork() == runtimeapi.NamespaceMode_NODE
}

func (b *builder) hostIPC() bool {
	return b.sandboxSecurity().GetNamespaceOptions().GetIpc() == runtimeapi.NamespaceMode_NODE
}

// joiner builds namespaces.
type joiner struct{ *builder }

// namespaces makes the container join its sandbox. It ignores the container's own options for
// network, IPC and UTS, which CRI doesn't allow to differ.
func (b joiner) namespaces() error {
	b.join(specs.MountNamespace, "")
	if !b.hostNetwork() {
		if b.Namespaces.Net == "" {
			return b.bad("sandbox", "it has no network namespace: recreate it")
		}
		b.join(specs.NetworkNamespace, b.Namespaces.Net)
		b.join(specs.UTSNamespace, b.Namespaces.UTS)
		if b.Namespaces.UTS == "" {
			b.spec.Hostname = b.Sandbox.GetHostname()
		}
	}
	if !b.hostIPC() {
		if b.Namespaces.IPC == "" {
			return b.bad("sandbox", "it has no IPC namespace: recreate it")
		}
		b.join(specs.IPCNamespace, b.Namespaces.IPC)
	}
	if err := b.pidNamespace(); err != nil {
		return err
	}
	if err := b.userNamespace(); err != nil {
		return err
	}
	// On v1 containers see the host's cgroups, as with other runtimes: tools rely on it. Privileged
	// containers see them on v2 too.
	if b.Host.Cgroup.Mode.Unified() && !b.privileged() {
		b.join(specs.CgroupNamespace, "")
	}
	return nil
}

// join adds the namespace at path, or a new one if path is empty.
func (b joiner) join(kind specs.LinuxNamespaceType, path string) {
	b.spec.Linux.Namespaces = append(b.spec.Linux.Namespaces, specs.LinuxNamespace{Type: kind, Path: path})
}

func (b joiner) pidNamespace() error {
	const field = "linux.security_context.namespace_options.pid"
	sandbox := b.sandboxSecurity().GetNamespaceOptions().GetPid()
	mode := sandbox
	if options := b.security.GetNamespaceOptions(); options != nil {
		mode = options.GetPid()
	}
	switch mode {
	case runtimeapi.NamespaceMode_POD:
		// POD is the zero value, so also the mode of a container that sets none. It gets a
		// namespace of its own if the sandbox's mode is CONTAINER.
		if sandbox == runtimeapi.NamespaceMode_POD && b.Namespaces.PID == "" {
			return b.bad(field, "the sandbox has no PID namespace to share: recreate it")
		}
		if sandbox == runtimeapi.NamespaceMode_NODE {
			return nil
		}
		b.join(specs.PIDNamespace, b.Namespaces.PID)
	case runtimeapi.NamespaceMode_CONTAINER:
		b.join(specs.PIDNamespace, "")
	case runtimeapi.NamespaceMode_NODE:
		if sandbox != runtimeapi.NamespaceMode_NODE {
			return b.bad(field, "NODE, but the sandbox has %s: ask for the same in both", sandbox)
		}
	case runtimeapi.NamespaceMode_TARGET:
		if b.Namespaces.Target == "" {
			return b.bad(field, "TARGET, but no container %q runs in this sandbox", b.security.GetNamespaceOptions().GetTargetId())
		}
		b.join(specs.PIDNamespace, b.Namespaces.Target)
	default:
		return b.bad(field, "unknown mode %d", mode)
	}
	return nil
}

// userOptions returns the sandbox's user namespace options; nil if it has no user namespace of its
// own.
func (b *builder) userOptions() *runtimeapi.UserNamespace {
	options := b.sandboxSecurity().GetNamespaceOptions().GetUsernsOptions()
	if options.GetMode() == runtimeapi.NamespaceMode_NODE || options == nil {
		return nil
	}
	return options
}

func (b joiner) userNamespace() error {
	const field = "linux.security_context.namespace_options.userns_options"
	sandbox := b.userOptions()
	if own := b.security.GetNamespaceOptions().GetUsernsOptions(); own != nil {
		if wants := own.GetMode() != runtimeapi.NamespaceMode_NODE; wants != (sandbox != nil) {
			return b.bad(field, "differs from the sandbox's: ask for the same in both")
		}
	}
	if sandbox == nil {
		return nil
	}
	if mode := sandbox.GetMode(); mode != runtimeapi.NamespaceMode_POD {
		return b.bad(field, "mode %s: a user namespace is POD or NODE", mode)
	}
	if len(sandbox.GetUids()) == 0 || len(sandbox.GetGids()) == 0 {
		return b.bad(field, "POD needs uids and gids to map")
	}
	if b.Namespaces.User == "" {
		return b.bad(field, "the sandbox has no user namespace: recreate it")
	}
	b.join(specs.UserNamespace, b.Namespaces.User)
	b.spec.Linux.UIDMappings = mappings(sandbox.GetUids())
	b.spec.Linux.GIDMappings = mappings(sandbox.GetGids())
	return nil
}

func mappings(cri []*runtimeapi.IDMapping) []specs.LinuxIDMapping {
	var out []specs.LinuxIDMapping
	for _, m := range cri {
		out = append(out, specs.LinuxIDMapping{ContainerID: m.GetContainerId(), HostID: m.GetHostId(), Size: m.GetLength()})
	}
	return out
}
