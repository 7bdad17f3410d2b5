package spec

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// knownCapabilities are the capabilities of Linux 5.9 and later, by number.
var knownCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_DAC_READ_SEARCH", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_LINUX_IMMUTABLE",
	"CAP_NET_BIND_SERVICE", "CAP_NET_BROADCAST", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_IPC_LOCK",
	"CAP_IPC_OWNER", "CAP_SYS_MODULE", "CAP_SYS_RAWIO", "CAP_SYS_CHROOT", "CAP_SYS_PTRACE",
	"CAP_SYS_PACCT", "CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_NICE", "CAP_SYS_RESOURCE",
	"CAP_SYS_TIME", "CAP_SYS_TTY_CONFIG", "CAP_MKNOD", "CAP_LEASE", "CAP_AUDIT_WRITE",
	"CAP_AUDIT_CONTROL", "CAP_SETFCAP", "CAP_MAC_OVERRIDE", "CAP_MAC_ADMIN", "CAP_SYSLOG",
	"CAP_WAKE_ALARM", "CAP_BLOCK_SUSPEND", "CAP_AUDIT_READ", "CAP_PERFMON", "CAP_BPF",
	"CAP_CHECKPOINT_RESTORE",
}

// DefaultCapabilities returns the names of the capabilities of a container that requests no others,
// as CRI writes them. They are podman's: docker's without NET_RAW, MKNOD and AUDIT_WRITE. See
// docs/decisions/0054.
func DefaultCapabilities() []string {
	return []string{
		"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP",
		"NET_BIND_SERVICE", "SYS_CHROOT", "SETFCAP",
	}
}

const (
	allCapabilities  = "CAP_ALL"
	capabilityPrefix = "CAP_"
)

// Capability returns the runtime spec's name of a capability. Its prefix CAP_ may be left out, as
// CRI does, and it may be in lower case.
func Capability(name string) (string, error) {
	full := capabilityPrefix + strings.TrimPrefix(strings.ToUpper(name), capabilityPrefix)
	if !slices.Contains(knownCapabilities, full) {
		return "", fmt.Errorf("no capability is called %q: see capabilities(7)", name)
	}
	return full, nil
}

// capabilities starts with the default ones, adds or drops ALL, and then adds and drops single
// ones. A runtime can't grant a capability that the daemon lacks. That is an error for one that is
// requested by name; others are left out.
func (b confiner) capabilities() error {
	const field = "linux.security_context.capabilities."
	asked := b.security.GetCapabilities()
	add, err := b.capabilityNames(field+"add_capabilities", asked.GetAddCapabilities())
	if err != nil {
		return err
	}
	drop, err := b.capabilityNames(field+"drop_capabilities", asked.GetDropCapabilities())
	if err != nil {
		return err
	}
	ambient, err := b.capabilityNames(field+"add_ambient_capabilities", asked.GetAddAmbientCapabilities())
	if err != nil {
		return err
	}
	set := map[string]bool{}
	for _, c := range b.baseCapabilities(slices.Contains(add, allCapabilities), slices.Contains(drop, allCapabilities)) {
		set[c] = b.grantable(c)
	}
	for _, c := range slices.Concat(add, ambient) {
		if c == allCapabilities {
			continue
		}
		if !b.grantable(c) && !b.privileged() {
			return b.bad(field+"add_capabilities", "%s can't be given, as the daemon itself lacks it: remove it or start huskd with it", c)
		}
		set[c] = b.grantable(c)
	}
	if !b.privileged() {
		for _, c := range drop {
			delete(set, c)
		}
	}
	caps := &specs.LinuxCapabilities{}
	for _, c := range knownCapabilities {
		if set[c] {
			caps.Bounding = append(caps.Bounding, c)
			if slices.Contains(ambient, c) {
				caps.Ambient = append(caps.Ambient, c)
			}
		}
	}
	// Inheritable capabilities could be regained through file capabilities (CVE-2022-24769), so
	// only those that ambient ones need are set.
	caps.Effective, caps.Permitted, caps.Inheritable = caps.Bounding, caps.Bounding, caps.Ambient
	b.spec.Process.Capabilities = caps
	return nil
}

func (b confiner) baseCapabilities(addAll, dropAll bool) []string {
	switch {
	case b.privileged():
		return knownCapabilities
	case dropAll:
		return nil
	case addAll:
		return knownCapabilities
	}
	return b.Capabilities.Default
}

// CapabilityNames returns the names of the capabilities in a bit set.
func CapabilityNames(bits uint64) []string {
	names := []string{}
	for i, name := range knownCapabilities {
		if bits&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// grantable reports whether the daemon has a capability that containers can get.
func (b confiner) grantable(capability string) bool {
	return b.Capabilities.Daemon == nil || slices.Contains(b.Capabilities.Daemon, capability)
}

// capabilityNames converts names, one of which may be ALL, to those of the runtime spec.
func (b confiner) capabilityNames(field string, names []string) ([]string, error) {
	var out []string
	for _, name := range names {
		if upper := strings.ToUpper(name); upper == allCapabilities || capabilityPrefix+upper == allCapabilities {
			out = append(out, allCapabilities)
			continue
		}
		full, err := Capability(name)
		if err != nil {
			return nil, b.bad(field, "%v", err)
		}
		out = append(out, full)
	}
	return out, nil
}
