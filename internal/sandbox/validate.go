package sandbox

import (
	"fmt"
	"maps"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sysctl"
)

// validate returns an error that names the first part of a config that is invalid.
func validate(config *runtimeapi.PodSandboxConfig) error {
	for _, check := range []func(*runtimeapi.PodSandboxConfig) error{
		checkMetadata, checkPorts, checkPaths, checkNamespaces, checkSysctls,
	} {
		if err := check(config); err != nil {
			return err
		}
	}
	return nil
}

func bad(format string, args ...any) error {
	return errdefs.ErrInvalidArgument.WithMessage("sandbox config: " + fmt.Sprintf(format, args...))
}

// maxName is the length that Kubernetes allows for a name.
const maxName = 253

func checkMetadata(config *runtimeapi.PodSandboxConfig) error {
	m := config.GetMetadata()
	for _, f := range []struct{ field, value string }{{"name", m.GetName()}, {"namespace", m.GetNamespace()}, {"uid", m.GetUid()}} {
		if f.value == "" {
			return bad("metadata.%s is empty", f.field)
		}
		if len(f.value) > maxName {
			return bad("metadata.%s %.80q has %d characters: at most %d", f.field, f.value, len(f.value), maxName)
		}
	}
	return nil
}

const maxPort = 65535

func checkPorts(config *runtimeapi.PodSandboxConfig) error {
	for _, p := range config.GetPortMappings() {
		switch {
		case p.GetHostPort() > maxPort || p.GetContainerPort() < 0 || p.GetContainerPort() > maxPort:
			return bad("port mapping %d to %d: not a port", p.GetHostPort(), p.GetContainerPort())
		case protocols[p.GetProtocol()] == "":
			return bad("port mapping %d to %d: unknown protocol %d", p.GetHostPort(), p.GetContainerPort(), p.GetProtocol())
		}
		if _, err := netip.ParseAddr(p.GetHostIp()); p.GetHostIp() != "" && err != nil {
			return bad("port mapping %d to %d: host_ip %.80q is not an address", p.GetHostPort(), p.GetContainerPort(), p.GetHostIp())
		}
	}
	return nil
}

// maxHostname is the kernel's limit (__NEW_UTS_LEN).
const maxHostname = 64

func checkPaths(config *runtimeapi.PodSandboxConfig) error {
	hostname, logs, cgroup := config.GetHostname(), config.GetLogDirectory(), config.GetLinux().GetCgroupParent()
	dotted := func(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }
	switch {
	case len(hostname) > maxHostname:
		return bad("hostname %.80q has %d characters: at most %d", hostname, len(hostname), maxHostname)
	case strings.ContainsFunc(hostname, func(r rune) bool { return r <= ' ' || r == '/' }):
		return bad("hostname %.80q has a character that is not allowed in a name", hostname)
	case logs != "" && (!path.IsAbs(logs) || dotted(logs) || strings.ContainsRune(logs, 0)):
		return bad("log_directory %.80q is not an absolute path without ..", logs)
	case cgroup != "" && (path.Clean(cgroup) != cgroup || dotted(cgroup) || cgroup == "." || strings.ContainsRune(cgroup, 0)):
		return bad("linux.cgroup_parent %.80q is not a clean path, nor a slice of systemd", cgroup)
	}
	return nil
}

func checkNamespaces(config *runtimeapi.PodSandboxConfig) error {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	const pod, container, node = runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_NODE
	for _, ns := range []struct {
		kind  string
		mode  runtimeapi.NamespaceMode
		known []runtimeapi.NamespaceMode
	}{
		{"network", o.GetNetwork(), []runtimeapi.NamespaceMode{pod, node}},
		{"ipc", o.GetIpc(), []runtimeapi.NamespaceMode{pod, node}},
		{"pid", o.GetPid(), []runtimeapi.NamespaceMode{pod, container, node}},
	} {
		if !slices.Contains(ns.known, ns.mode) {
			return bad("%s namespace mode %s is not one of %v", ns.kind, ns.mode, ns.known)
		}
	}
	if user := o.GetUsernsOptions(); user != nil && !slices.Contains([]runtimeapi.NamespaceMode{pod, node}, user.GetMode()) {
		return bad("user namespace mode %s is neither POD nor NODE", user.GetMode())
	}
	return checkUserNamespace(config)
}

var sysctlName = regexp.MustCompile(`^[a-z0-9][-_a-z0-9]*([./][a-zA-Z0-9][-_a-zA-Z0-9]*)+$`)

// checkSysctls refuses sysctls that don't belong to a namespace of the sandbox. They would be set
// for the whole node.
func checkSysctls(config *runtimeapi.PodSandboxConfig) error {
	o := config.GetLinux().GetSecurityContext().GetNamespaceOptions()
	for _, name := range slices.Sorted(maps.Keys(config.GetLinux().GetSysctls())) {
		switch namespace := sysctl.NamespaceOf(name); {
		case !sysctlName.MatchString(name):
			return bad("sysctl %.80q: not a name", name)
		case namespace == "":
			return bad("sysctl %s applies to the whole node, not to a namespace: set it on the node", name)
		case namespace == sysctl.Network && o.GetNetwork() == runtimeapi.NamespaceMode_NODE,
			namespace == sysctl.IPC && o.GetIpc() == runtimeapi.NamespaceMode_NODE:
			return bad("sysctl %s: the pod uses the node's %s namespace, where it would be set for all", name, namespace)
		}
	}
	return nil
}
