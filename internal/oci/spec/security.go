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

// DefaultMaskedPaths are hidden from a container, DefaultReadonlyPaths can't
// be written by it: what of /proc and /sys is the host's. They are docker's.
func DefaultMaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list",
		"/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware",
	}
}

// DefaultReadonlyPaths: see DefaultMaskedPaths.
func DefaultReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// confiner is the builder of what keeps a container in its bounds.
type confiner struct{ *builder }

func (b confiner) paths() error {
	if b.privileged() {
		return nil
	}
	linux := b.spec.Linux
	if b.security == nil {
		linux.MaskedPaths, linux.ReadonlyPaths = DefaultMaskedPaths(), DefaultReadonlyPaths()
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
	return nil
}

// The forms of the deprecated seccomp_profile_path and apparmor_profile.
const (
	profileDefault    = "runtime/default"
	profileDocker     = "docker/default"
	profileUnconfined = "unconfined"
	profileLocal      = "localhost/"
)

// profile returns what is asked of seccomp or AppArmor, in the new words; nil
// if nothing is.
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

// defaultSeccomp leaves x32 out, for which a filter kills: the runtime compiles
// the filter anew for each architecture, at 5 ms each, and kernels run programs
// for x32 only if their command line says so, if at all.
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

// loadSeccomp reads docker's form of a profile, of which the runtime spec's is
// a part. A profile that confines nothing is no profile.
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

// selinux gives the sandbox's labels, with the parts that the config changes.
// A process and its files must have the same level to meet.
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

// relabeled replaces the parts of a label that o has. The level may have
// colons of its own.
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
