package criconfig

import (
	"cmp"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

func sandboxSecurity(pod *corev1.Pod) *runtimeapi.LinuxSandboxSecurityContext {
	s := pod.Spec.SecurityContext
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions:         namespaces(pod),
		SelinuxOptions:           seLinux(s.SELinuxOptions),
		SupplementalGroups:       groups(s),
		SupplementalGroupsPolicy: groupsPolicy(s.SupplementalGroupsPolicy),
		Seccomp:                  &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		RunAsUser:                int64Value(s.RunAsUser),
	}
	if s.RunAsUser != nil { // CRI doesn't allow a group without a user
		out.RunAsGroup = int64Value(s.RunAsGroup)
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out.Privileged = out.Privileged || isTrue(securityContextOf(&list[i]).Privileged)
		}
	}
	return out
}

// groups returns the supplementary groups of all processes of the pod.
func groups(s *corev1.PodSecurityContext) []int64 {
	if s.FSGroup == nil {
		return s.SupplementalGroups
	}
	return append(slices.Clone(s.SupplementalGroups), *s.FSGroup)
}

func namespaces(pod *corev1.Pod) *runtimeapi.NamespaceOption {
	out := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	s := &pod.Spec
	if s.HostNetwork {
		out.Network = runtimeapi.NamespaceMode_NODE
	}
	if s.HostIPC {
		out.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case s.HostPID:
		out.Pid = runtimeapi.NamespaceMode_NODE
	case isTrue(s.ShareProcessNamespace):
		out.Pid = runtimeapi.NamespaceMode_POD
	}
	return out
}

// securityContextOf returns a container's security context. It is never nil.
func securityContextOf(c *corev1.Container) *corev1.SecurityContext {
	if c.SecurityContext == nil {
		return &corev1.SecurityContext{}
	}
	return c.SecurityContext
}

// containerSecurity converts the container's security context. Fields that it doesn't set are those
// of the pod.
func containerSecurity(pod *corev1.Pod, c *corev1.Container, imageUser string, n Node) (*runtimeapi.LinuxContainerSecurityContext, error) {
	s, p := securityContextOf(c), pod.Spec.SecurityContext
	out := &runtimeapi.LinuxContainerSecurityContext{
		Privileged:               isTrue(s.Privileged),
		NamespaceOptions:         namespaces(pod),
		SelinuxOptions:           seLinux(cmp.Or(s.SELinuxOptions, p.SELinuxOptions)),
		RunAsUser:                int64Value(cmp.Or(s.RunAsUser, p.RunAsUser)),
		RunAsGroup:               int64Value(cmp.Or(s.RunAsGroup, p.RunAsGroup)),
		ReadonlyRootfs:           isTrue(s.ReadOnlyRootFilesystem),
		SupplementalGroups:       groups(p),
		SupplementalGroupsPolicy: groupsPolicy(p.SupplementalGroupsPolicy),
		NoNewPrivs:               s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation,
		Seccomp:                  seccompProfile(cmp.Or(s.SeccompProfile, p.SeccompProfile), n),
		Apparmor:                 appArmorProfile(cmp.Or(s.AppArmorProfile, p.AppArmorProfile)),
	}
	if s.ProcMount == nil || *s.ProcMount != corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = spec.DefaultMaskedPaths(n.Throttles), spec.DefaultReadonlyPaths()
	}
	if caps := s.Capabilities; caps != nil {
		out.Capabilities = &runtimeapi.Capability{AddCapabilities: capabilityNames(caps.Add), DropCapabilities: capabilityNames(caps.Drop)}
	}
	if out.RunAsUser == nil && out.RunAsGroup != nil {
		setImageUser(out, imageUser)
	}
	if isTrue(cmp.Or(s.RunAsNonRoot, p.RunAsNonRoot)) {
		if err := checkNonRoot(c, out.RunAsUser, imageUser); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// setImageUser sets the image's user, because CRI requires a user where a group is set.
func setImageUser(out *runtimeapi.LinuxContainerSecurityContext, imageUser string) {
	if uid, ok := numericUser(imageUser); ok {
		out.RunAsUser = &runtimeapi.Int64Value{Value: uid}
		return
	}
	out.RunAsUsername, _, _ = strings.Cut(imageUser, ":")
}

// numericUser returns the user ID in an image's USER, which is 0 if USER is empty. ok is false for
// a user name.
func numericUser(imageUser string) (uid int64, ok bool) {
	user, _, _ := strings.Cut(imageUser, ":")
	if user == "" {
		return 0, true
	}
	uid, err := strconv.ParseInt(user, 10, 64)
	return uid, err == nil
}

func checkNonRoot(c *corev1.Container, asked *runtimeapi.Int64Value, imageUser string) error {
	const field = "securityContext.runAsNonRoot"
	if asked != nil {
		if asked.GetValue() == 0 {
			return invalidField(c, field, "true, but runAsUser is 0: set another user")
		}
		return nil
	}
	switch uid, ok := numericUser(imageUser); {
	case !ok:
		return invalidField(c, field, "true, but the user ID of the image's user %q is not known: set runAsUser", imageUser)
	case uid == 0:
		return invalidField(c, field, "true, but the image runs as root: set runAsUser")
	}
	return nil
}

func seccompProfile(p *corev1.SeccompProfile, n Node) *runtimeapi.SecurityProfile {
	if p == nil && n.SeccompUnconfined {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	if p == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	out := &runtimeapi.SecurityProfile{ProfileType: profileTypes[string(p.Type)]}
	if p.LocalhostProfile != nil && p.Type == corev1.SeccompProfileTypeLocalhost {
		out.LocalhostRef = path.Join(n.Seccomp, *p.LocalhostProfile)
	}
	return out
}

func appArmorProfile(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	out := &runtimeapi.SecurityProfile{ProfileType: profileTypes[string(p.Type)]}
	if p.LocalhostProfile != nil && p.Type == corev1.AppArmorProfileTypeLocalhost {
		out.LocalhostRef = *p.LocalhostProfile
	}
	return out
}

var profileTypes = map[string]runtimeapi.SecurityProfile_ProfileType{
	"RuntimeDefault": runtimeapi.SecurityProfile_RuntimeDefault,
	"Unconfined":     runtimeapi.SecurityProfile_Unconfined,
	"Localhost":      runtimeapi.SecurityProfile_Localhost,
}

func groupsPolicy(p *corev1.SupplementalGroupsPolicy) runtimeapi.SupplementalGroupsPolicy {
	if p != nil && *p == corev1.SupplementalGroupsPolicyStrict {
		return runtimeapi.SupplementalGroupsPolicy_Strict
	}
	return runtimeapi.SupplementalGroupsPolicy_Merge
}

func seLinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func isTrue(b *bool) bool { return b != nil && *b }

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

func capabilityNames(caps []corev1.Capability) []string {
	var out []string
	for _, c := range caps {
		out = append(out, string(c))
	}
	return out
}
