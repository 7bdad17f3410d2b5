// Package sysctl knows which kernel parameters belong to a namespace, so that a pod can have its
// own value, and which of them pods may set. It is pure.
package sysctl

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Namespace is the kind of namespace that a kernel parameter belongs to. It is empty for a
// parameter of the node.
type Namespace string

// The namespaces that have parameters of their own.
const (
	Network Namespace = "network"
	IPC     Namespace = "IPC"
)

// ipc matches the parameters of an IPC namespace; see ipc_namespaces(7).
var ipc = regexp.MustCompile(`^(kernel\.(shm|msg)[a-z_]*|kernel\.sem|fs\.mqueue\..*)$`)

// NamespaceOf returns the namespace of a parameter, or of all parameters that begin with a prefix.
func NamespaceOf(name string) Namespace {
	switch name = Normalize(name); {
	case strings.HasPrefix(name, "net."):
		return Network
	case ipc.MatchString(name):
		return IPC
	}
	return ""
}

// Normalize returns the name of a parameter with dots between its parts. As in sysctl(8), the first
// separator is the one of the whole name: net/ipv4/conf/eth0.1/forwarding has eth0.1 as a part, and
// becomes net.ipv4.conf.eth0/1.forwarding.
func Normalize(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '.' {
		return name
	}
	return strings.NewReplacer("/", ".", ".", "/").Replace(name)
}

// safe are kubelet's safe sysctls: each pod has its own value, which doesn't affect other pods.
// Linux has all of them per namespace since 4.15.
var safe = []string{
	"kernel.shm_rmid_forced",
	"net.ipv4.ip_local_port_range",
	"net.ipv4.ip_local_reserved_ports",
	"net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ping_group_range",
	"net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes",
	"net.ipv4.tcp_keepalive_time",
	"net.ipv4.tcp_rmem",
	"net.ipv4.tcp_syncookies",
	"net.ipv4.tcp_wmem",
}

// Allowlist is the set of parameters that pods may set. The zero value has only the safe ones.
type Allowlist struct {
	names    map[string]bool
	prefixes []string
}

// pattern matches a parameter's name or its beginning with an asterisk.
var pattern = regexp.MustCompile(`^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[./])*([a-z0-9]([-_a-z0-9]*[a-z0-9])?|[a-z0-9][-_a-z0-9]*\*|\*)$`)

// maxName is the length of the longest name that the API server accepts, in bytes.
const maxName = 253

// Allow returns the list of the safe parameters and those that the patterns name:
// net.core.somaxconn, or kernel.msg* for all that begin so.
func Allow(patterns []string) (Allowlist, error) {
	list := Allowlist{names: map[string]bool{}}
	for _, p := range patterns {
		name, isPrefix := strings.CutSuffix(Normalize(p), "*")
		switch {
		case len(p) > maxName || !pattern.MatchString(p):
			return Allowlist{}, fmt.Errorf("%q is neither the name of a sysctl, such as net.core.somaxconn, nor a prefix with *", p)
		case NamespaceOf(name) == "":
			return Allowlist{}, fmt.Errorf("%q doesn't belong to the network or IPC namespace, so that it can't have a value per pod", p)
		case isPrefix:
			list.prefixes = append(list.prefixes, name)
		default:
			list.names[name] = true
		}
	}
	return list, nil
}

// Check returns why a pod that does or doesn't share the node's network and IPC namespaces may not
// set a parameter.
func (l Allowlist) Check(name string, hostNetwork, hostIPC bool) error {
	dotted := Normalize(name)
	switch namespace := NamespaceOf(dotted); {
	case !l.has(dotted):
		return fmt.Errorf("sysctl %s is not allowed on this node", name)
	case namespace == Network && hostNetwork:
		return fmt.Errorf("sysctl %s is not allowed with hostNetwork", name)
	case namespace == IPC && hostIPC:
		return fmt.Errorf("sysctl %s is not allowed with hostIPC", name)
	}
	return nil
}

func (l Allowlist) has(name string) bool {
	if slices.Contains(safe, name) || l.names[name] {
		return true
	}
	return slices.ContainsFunc(l.prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}
