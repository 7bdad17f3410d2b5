package spec

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// DefaultMaskedPaths returns the paths of /proc and /sys that are hidden from containers because
// they are the host's. They are docker's.
//
// throttles are those of host.Facts.
func DefaultMaskedPaths(throttles []string) []string {
	return append([]string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
		"/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}, throttles...)
}

// DefaultReadonlyPaths returns the paths of /proc that are read-only in containers. They are
// docker's.
func DefaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// confiner builds what confines a container.
type confiner struct{ *builder }

func (b confiner) paths() error {
	if b.privileged() {
		return nil
	}
	linux := b.spec.Linux
	if b.security == nil {
		linux.MaskedPaths, linux.ReadonlyPaths = DefaultMaskedPaths(b.Host.Throttles), DefaultReadonlyPaths()
		return nil
	}
	linux.MaskedPaths, linux.ReadonlyPaths = b.security.GetMaskedPaths(), b.security.GetReadonlyPaths()
	for _, l := range []struct {
		field string
		paths []string
	}{{"masked_paths", linux.MaskedPaths}, {"readonly_paths", linux.ReadonlyPaths}} {
		for _, p := range l.paths {
			if !strings.HasPrefix(p, "/") {
				return b.bad("linux.security_context."+l.field, "%q is not absolute: begin it with /", p)
			}
		}
	}
	if !b.Host.Cgroup.Mode.Unified() && slices.ContainsFunc(b.spec.Mounts, isCgroups) {
		linux.ReadonlyPaths = append(slices.Clone(linux.ReadonlyPaths), pathCgroup)
	}
	return nil
}

// isCgroups reports whether a mount is that of the cgroups, which runc leaves writable with cgroup
// v1 although it should be read-only: it is a tmpfs for the mounts of the hierarchies, of the
// kernel's default size, half the memory (libcontainer/rootfs_linux.go, mountCgroupV1).
func isCgroups(m specs.Mount) bool { return m.Destination == pathCgroup && m.Type == "cgroup" }

// Values of the deprecated fields seccomp_profile_path and apparmor_profile.
const (
	profileDefault    = "runtime/default"
	profileDocker     = "docker/default"
	profileUnconfined = "unconfined"
	profileLocal      = "localhost/"
)

// profile returns the requested profile of seccomp or AppArmor, also if it is in the deprecated
// field; nil if none is requested.
func (b confiner) profile(field string, asked *runtimeapi.SecurityProfile, old string) (*runtimeapi.SecurityProfile, error) {
	if asked == nil {
		switch name, local := strings.CutPrefix(old, profileLocal); {
		case old == "":
			return nil, nil
		case old == profileDefault || old == profileDocker:
			asked = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
		case old == profileUnconfined:
			asked = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
		case local:
			asked = &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: name}
		default:
			return nil, b.bad(field, "%q is not %s, %s or %s…", old, profileDefault, profileUnconfined, profileLocal)
		}
	}
	switch local := asked.GetProfileType() == runtimeapi.SecurityProfile_Localhost; {
	case local && asked.GetLocalhostRef() == "":
		return nil, b.bad(field, "Localhost needs a localhost_ref")
	case !local && asked.GetLocalhostRef() != "":
		return nil, b.bad(field, "localhost_ref %q is for Localhost only, not for %s", asked.GetLocalhostRef(), asked.GetProfileType())
	}
	return asked, nil
}

func (b confiner) seccomp() error {
	const field = "linux.security_context.seccomp"
	asked, err := b.profile(field, b.security.GetSeccomp(), b.security.GetSeccompProfilePath())
	if err != nil {
		return err
	}
	if b.privileged() {
		return nil
	}
	kind := runtimeapi.SecurityProfile_Unconfined
	if asked != nil {
		kind = asked.GetProfileType()
	}
	switch kind {
	case runtimeapi.SecurityProfile_Unconfined:
		return nil
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if !b.Host.Seccomp {
			b.note("container %q: it runs without a seccomp filter: this host's kernel has none", b.name)
			return nil
		}
		b.spec.Linux.Seccomp, err = defaultSeccomp(b.spec)
		if err != nil {
			return b.bad(field, "the default profile: %v", err)
		}
		return nil
	case runtimeapi.SecurityProfile_Localhost:
		return b.localSeccomp(field, asked.GetLocalhostRef())
	}
	return b.bad(field, "unknown profile type %d", kind)
}

// defaultSeccomp returns the default profile without the x32 architecture, whose programs the
// filter then kills. The runtime compiles the filter for each architecture, which takes 5 ms each,
// and kernels run x32 programs only if their command line enables it: see docs/decisions/0025.
func defaultSeccomp(s *specs.Spec) (*specs.LinuxSeccomp, error) {
	profile, err := seccomp.GetDefaultProfile(s)
	if profile != nil {
		profile.Architectures = slices.DeleteFunc(profile.Architectures, func(a specs.Arch) bool { return a == specs.ArchX32 })
	}
	return profile, err
}

func (b confiner) localSeccomp(field, ref string) error {
	switch {
	case !strings.HasPrefix(ref, "/"):
		return b.bad(field, "localhost_ref %q is not an absolute path", ref)
	case !b.Host.Seccomp:
		return b.bad(field, "this host's kernel has no seccomp filters: remove the profile")
	case b.Seccomp == nil:
		return b.bad(field, "profile %s was not found", ref)
	}
	profile, err := loadSeccomp(b.Seccomp, b.spec)
	if err != nil {
		return b.bad(field, "profile %s: %v", ref, err)
	}
	b.spec.Linux.Seccomp = profile
	return nil
}

// loadSeccomp decodes a profile in docker's format, a superset of the runtime spec's. A profile
// without a default action is an error.
func loadSeccomp(content []byte, s *specs.Spec) (*specs.LinuxSeccomp, error) {
	if !json.Valid(content) {
		return nil, fmt.Errorf("it is not JSON")
	}
	profile, err := seccomp.LoadProfile(string(content), s)
	if err != nil {
		return nil, err
	}
	if profile == nil || profile.DefaultAction == "" {
		return nil, fmt.Errorf("it has no defaultAction")
	}
	return profile, nil
}

func (b confiner) appArmor() error {
	const field = "linux.security_context.apparmor"
	asked, err := b.profile(field, b.security.GetApparmor(), b.security.GetApparmorProfile())
	if err != nil {
		return err
	}
	if asked == nil || b.privileged() {
		return nil
	}
	switch asked.GetProfileType() {
	case runtimeapi.SecurityProfile_Unconfined:
		return nil
	case runtimeapi.SecurityProfile_RuntimeDefault:
		b.note("container %q: it runs without an AppArmor profile: there is no default one", b.name)
		return nil
	}
	if !b.Host.AppArmor {
		return b.bad(field, "this host has no AppArmor: remove the profile %q", asked.GetLocalhostRef())
	}
	b.spec.Process.ApparmorProfile = strings.TrimPrefix(asked.GetLocalhostRef(), profileLocal)
	return nil
}

// selinux sets the sandbox's labels, with the parts that the config replaces. The process can use
// its files only if both have the same level.
func (b confiner) selinux() error {
	const field = "linux.security_context.selinux_options"
	options := b.security.GetSelinuxOptions()
	if !b.Host.SELinux || b.privileged() {
		return nil
	}
	process, mount := b.Labels.Process, b.Labels.Mount
	if options != nil {
		var ok bool
		if process, ok = relabeled(process, options); !ok {
			return b.bad(field, "needs all of user, role, type and level, as the sandbox has no label to take the others from")
		}
		if mount, ok = relabeled(mount, &runtimeapi.SELinuxOption{Level: options.GetLevel()}); !ok && b.Labels.Mount != "" {
			return b.bad(field, "the sandbox's mount label %q is malformed", b.Labels.Mount)
		}
	}
	b.spec.Process.SelinuxLabel, b.spec.Linux.MountLabel = process, mount
	return nil
}

// relabeled replaces the parts of a label that o sets. The level may contain colons.
func relabeled(label string, o *runtimeapi.SELinuxOption) (string, bool) {
	parts := strings.SplitN(label, ":", 4)
	if len(parts) != 4 {
		parts = make([]string, 4)
	}
	for i, part := range []string{o.GetUser(), o.GetRole(), o.GetType(), o.GetLevel()} {
		if part != "" {
			parts[i] = part
		}
	}
	return strings.Join(parts, ":"), !slices.Contains(parts, "")
}
