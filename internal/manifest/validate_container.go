package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/manifest/remedy"
)

func (v *validator) containers() {
	if len(v.pod.Spec.Containers) == 0 {
		v.missing("spec.containers", ": a pod needs at least one")
	}
	names := map[string]string{}
	forEachContainer(v.pod, func(c *corev1.Container, at string, init bool) {
		checkLabel(v.report, at+".name", c.Name)
		if other, ok := names[c.Name]; ok && c.Name != "" {
			v.invalid(at+".name", "%q is already the name of %s: use another", c.Name, other)
		}
		names[c.Name] = at
		v.container(c, at, init)
	})
}

func (v *validator) container(c *corev1.Container, at string, init bool) {
	switch {
	case c.Image == "":
		v.missing(at+".image", "")
	case strings.TrimSpace(c.Image) != c.Image:
		v.invalid(at+".image", "%q has leading or trailing white space", c.Image)
	}
	if c.ImagePullPolicy != "" {
		choice(v.report, at+".imagePullPolicy", c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	}
	checkRestarts(v.report, c, at)
	if p := c.TerminationMessagePath; !path.IsAbs(p) || hasDotDot(p) || path.Clean(p) == "/" {
		v.invalid(at+".terminationMessagePath", "%q is not the absolute path of a file", p)
	}
	choice(v.report, at+".terminationMessagePolicy", c.TerminationMessagePolicy, corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	v.ports(c, at, init)
	v.env(c, at)
	checkEnvFrom(v.report, c, at)
	checkResources(v.report, &c.Resources, at+".resources")
	v.volumeMounts(c, at)
	v.security(c.SecurityContext, at+".securityContext")
	checkProbes(v.report, c, at, init)
	checkLifecycle(v.report, c, at+".lifecycle", init, *v.pod.Spec.TerminationGracePeriodSeconds)
}

// maxRestartRules is how many rules an API server accepts.
const maxRestartRules = 20

// checkRestarts checks the container's own restartPolicy, and its rules by exit code.
func checkRestarts(r *report, c *corev1.Container, at string) {
	if p := c.RestartPolicy; p != nil {
		choice(r, at+".restartPolicy", *p, corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever)
	} else if len(c.RestartPolicyRules) > 0 {
		r.missing(at+".restartPolicy", ": it applies to the exit codes that no rule matches")
	}
	if n := len(c.RestartPolicyRules); n > maxRestartRules {
		r.invalid(at+".restartPolicyRules", "%d of them: at most %d are allowed", n, maxRestartRules)
	}
	for i, rule := range c.RestartPolicyRules {
		at := indexed(at+".restartPolicyRules", i)
		choice(r, at+".action", rule.Action, corev1.ContainerRestartRuleActionRestart, corev1.ContainerRestartRuleActionRestartAllContainers)
		if rule.ExitCodes == nil {
			r.missing(at+".exitCodes", "")
			continue
		}
		choice(r, at+".exitCodes.operator", rule.ExitCodes.Operator, corev1.ContainerRestartRuleOnExitCodesOpIn, corev1.ContainerRestartRuleOnExitCodesOpNotIn)
	}
}

func (v *validator) ports(c *corev1.Container, at string, init bool) {
	names := map[string]bool{}
	for i, p := range c.Ports {
		at := indexed(at+".ports", i)
		if p.ContainerPort == 0 {
			v.missing(at+".containerPort", "")
		} else if len(validation.IsValidPortNum(int(p.ContainerPort))) > 0 {
			v.invalid(at+".containerPort", "%d is not within 1…65535", p.ContainerPort)
		}
		choice(v.report, at+".protocol", p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		switch {
		case p.HostPort == 0:
		case len(validation.IsValidPortNum(int(p.HostPort))) > 0:
			v.invalid(at+".hostPort", "%d is not within 1…65535", p.HostPort)
		case v.pod.Spec.HostNetwork && p.HostPort != p.ContainerPort:
			v.invalid(at+".hostPort", "%d is not containerPort %d, which hostNetwork requires: remove it", p.HostPort, p.ContainerPort)
		case init && !podspec.IsSidecar(c):
			v.invalid(at+".hostPort", "an init container ends before the pod serves requests: remove it")
		}
		if p.HostIP != "" {
			checkAddress(v.report, at+".hostIP", p.HostIP)
		}
		if p.Name == "" {
			continue
		}
		if len(validation.IsValidPortName(p.Name)) > 0 {
			v.invalid(at+".name", "%q is not valid: use at most 15 lower-case letters, digits and -, at least one a letter", p.Name)
		}
		if names[p.Name] {
			v.invalid(at+".name", "%q is already the name of another port: use another", p.Name)
		}
		names[p.Name] = true
	}
}

func (v *validator) env(c *corev1.Container, at string) {
	for i, e := range c.Env {
		at := indexed(at+".env", i)
		if e.Name == "" {
			v.missing(at+".name", "")
		} else if len(validation.IsRelaxedEnvVarName(e.Name)) > 0 {
			v.invalid(at+".name", "%q is not valid: use printable ASCII characters except =", e.Name)
		}
		if strings.ContainsRune(e.Value, 0) {
			v.invalid(at+".value", "contains a NUL byte: remove it")
		}
		from := e.ValueFrom
		switch {
		case from == nil:
		case e.Value != "":
			v.invalid(at+".valueFrom", "value is also set: set only one of them")
		default:
			v.valueFrom(from, at+".valueFrom")
		}
	}
}

// FieldPaths are the fields of a pod that an environment variable can refer to, besides
// metadata.labels['key'] and metadata.annotations['key'].
var FieldPaths = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

var keyedPath = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)

// SplitFieldPath splits metadata.labels['key'] and metadata.annotations['key'] into the field's
// name and the key. ok is false for other paths.
func SplitFieldPath(path string) (field, key string, ok bool) {
	m := keyedPath.FindStringSubmatch(path)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func (v *validator) fieldRef(at string, ref *corev1.ObjectFieldSelector) {
	choice(v.report, at+".apiVersion", ref.APIVersion, "v1")
	_, _, keyed := SplitFieldPath(ref.FieldPath)
	switch {
	case ref.FieldPath == "":
		v.missing(at+".fieldPath", "")
	case !keyed && !slices.Contains(FieldPaths, ref.FieldPath):
		v.invalid(at+".fieldPath", "%q is not one of metadata.labels['key'], metadata.annotations['key'], %s", ref.FieldPath, strings.Join(FieldPaths, ", "))
	}
}

func (v *validator) resourceFieldRef(at string, ref *corev1.ResourceFieldSelector) {
	list, name, _ := strings.Cut(ref.Resource, ".")
	if list != "limits" && list != "requests" || !referable(corev1.ResourceName(name)) {
		v.invalid(at+".resource", "%q is not limits.NAME or requests.NAME with NAME cpu, memory, ephemeral-storage or hugepages-<size>", ref.Resource)
	}
	if ref.Divisor.Sign() < 0 {
		v.invalid(at+".divisor", "%s is negative", ref.Divisor.String())
	}
	if name := ref.ContainerName; name != "" && !v.containerNames[name] {
		v.invalid(at+".containerName", "the pod has no container %q", name)
	}
}

// referable reports whether resourceFieldRef can refer to a resource.
func referable(name corev1.ResourceName) bool {
	return knownResource(name) || name == corev1.ResourceEphemeralStorage
}

func knownResource(name corev1.ResourceName) bool {
	_, huge := HugePageSize(name)
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || huge
}

// IsExtended reports whether a resource is an extended one, such as example.com/gpu: its meaning is
// unknown, and it is only counted.
func IsExtended(name corev1.ResourceName) bool {
	const quota = "requests." // quotas use it as a prefix
	domain, _, qualified := strings.Cut(string(name), "/")
	native := domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io")
	return qualified && !native && !strings.HasPrefix(domain, quota) && len(validation.IsQualifiedName(quota+string(name))) == 0
}

// HugePageSize returns the page size that the name of a resource such as hugepages-2Mi contains. ok
// is false for other resources.
func HugePageSize(name corev1.ResourceName) (resource.Quantity, bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return resource.Quantity{}, false
	}
	size, ok := ParseQuantity(text)
	return size, ok && size.Value() > 0
}

// MediumPageSize returns the page size that a medium such as HugePages-2Mi has. ok is false for
// other media.
func MediumPageSize(m corev1.StorageMedium) (size resource.Quantity, ok bool) {
	text, ok := strings.CutPrefix(string(m), string(corev1.StorageMediumHugePagesPrefix))
	if !ok {
		return resource.Quantity{}, false
	}
	return HugePageSize(corev1.ResourceName(corev1.ResourceHugePagesPrefix + text))
}

func checkResources(r *report, of *corev1.ResourceRequirements, at string) {
	for _, list := range []struct {
		path   string
		values corev1.ResourceList
	}{{at + ".limits", of.Limits}, {at + ".requests", of.Requests}} {
		for name, q := range list.values {
			// A request equal to the limit would only repeat the limit's problem.
			if limit, ok := of.Limits[name]; !ok || list.path == at+".limits" || limit.Cmp(q) != 0 {
				checkQuantity(r, list.path, name, q)
			}
		}
	}
	for name, request := range of.Requests {
		path := at + ".requests." + string(name)
		limit, limited := of.Limits[name]
		_, huge := HugePageSize(name)
		switch {
		case limited && request.Cmp(limit) > 0:
			r.invalid(path, "%s is more than the limit of %s", request.String(), limit.String())
		case huge && (!limited || request.Cmp(limit) != 0):
			r.invalid(path, "huge pages can't be overcommitted: set the limit to the same value")
		case IsExtended(name) && (!limited || request.Cmp(limit) != 0):
			r.invalid(path, "extended resources can't be overcommitted: set the limit to the same value")
		}
	}
}

func checkQuantity(r *report, list string, name corev1.ResourceName, q resource.Quantity) {
	path := list + "." + string(name)
	size, huge := HugePageSize(name)
	switch {
	case name == corev1.ResourceEphemeralStorage && list != "spec.overhead":
		if q.Sign() < 0 {
			r.invalid(path, "%s is negative", q.String())
		}
	case IsExtended(name) && !strings.HasPrefix(list, "spec.resources") && list != "spec.overhead":
		if q.Sign() < 0 || q.MilliValue()%1000 != 0 {
			r.invalid(path, "%s is not a whole number", q.String())
		}
	case !knownResource(name):
		r.invalid(path, "not supported: only cpu, memory, hugepages-<size> and extended resources such as example.com/gpu are")
	case q.Sign() < 0:
		r.invalid(path, "%s is negative", q.String())
	case q.Cmp(resourceMaxima[name == corev1.ResourceCPU]) > 0:
		r.invalid(path, "%s is more than any node has", q.String())
	case name == corev1.ResourceCPU:
	case q.MilliValue()%1000 != 0 && (huge || r.from == remedy.Manifest): // a kubelet rounds up
		r.invalid(path, "%s is not a whole number of bytes: write M or Mi for mega, as m is a thousandth", q.String())
	case huge && q.Value()%size.Value() != 0:
		r.invalid(path, "%s is not a multiple of the page size %s", q.String(), size.String())
	}
}

// resourceMaxima are the maxima for processors (true) and bytes (false). They keep computations
// with a value from overflowing.
var resourceMaxima = map[bool]resource.Quantity{true: resource.MustParse("1M"), false: resource.MustParse("1Ei")}

func (v *validator) security(s *corev1.SecurityContext, at string) {
	if s == nil {
		return
	}
	// Whether runAsNonRoot forbids the user is only known for a container with its image.
	checkID(v.report, at+".runAsUser", s.RunAsUser)
	checkID(v.report, at+".runAsGroup", s.RunAsGroup)
	checkProfiles(v.report, at, s.SeccompProfile, s.AppArmorProfile)
	if p := s.ProcMount; p != nil {
		choice(v.report, at+".procMount", *p, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		return
	}
	switch {
	case s.Privileged != nil && *s.Privileged:
		v.invalid(at+".allowPrivilegeEscalation", "false conflicts with privileged: true: set only one of them")
	case s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, isSysAdmin):
		v.invalid(at+".allowPrivilegeEscalation", "false conflicts with the added capability SYS_ADMIN: set only one of them")
	}
}

func isSysAdmin(c corev1.Capability) bool {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_") == "SYS_ADMIN"
}

func (v *validator) volumes() {
	names := map[string]bool{}
	for i, vol := range v.pod.Spec.Volumes {
		at := indexed("spec.volumes", i)
		checkLabel(v.report, at+".name", vol.Name)
		if names[vol.Name] && vol.Name != "" {
			v.invalid(at+".name", "%q is already the name of another volume: use another", vol.Name)
		}
		names[vol.Name] = true
		switch kinds := volumeKinds(&vol); {
		case len(kinds) > 1:
			v.invalid(at, "%s are all set: set only one of them", strings.Join(kinds, " and "))
		case vol.Image != nil:
			checkImageVolume(v.report, vol.Image, at+".image")
		case vol.PersistentVolumeClaim != nil:
			checkObjectName(v.report, at+".persistentVolumeClaim.claimName", vol.PersistentVolumeClaim.ClaimName)
		case vol.Ephemeral != nil:
		case vol.HostPath != nil:
			checkHostPath(v.report, vol.HostPath, at+".hostPath")
		case vol.EmptyDir != nil:
			if _, huge := MediumPageSize(vol.EmptyDir.Medium); !huge {
				choice(v.report, at+".emptyDir.medium", vol.EmptyDir.Medium, corev1.StorageMediumDefault, corev1.StorageMediumMemory, corev1.StorageMediumHugePages)
			}
			if q := vol.EmptyDir.SizeLimit; q != nil && q.Sign() < 0 {
				v.invalid(at+".emptyDir.sizeLimit", "%s is negative", q.String())
			}
		default:
			v.projections(&vol, at)
		}
	}
}

func checkHostPath(r *report, h *corev1.HostPathVolumeSource, at string) {
	switch {
	case h.Path == "":
		r.missing(at+".path", "")
	case !path.IsAbs(h.Path):
		r.invalid(at+".path", "%q is not absolute: begin it with /", h.Path)
	case hasDotDot(h.Path):
		r.invalid(at+".path", "%q contains ..: write the path it leads to", h.Path)
	}
	choice(r, at+".type", *h.Type, corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
		corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)
}

func (v *validator) volumeMounts(c *corev1.Container, container string) {
	taken := map[string]bool{}
	for i, m := range c.VolumeMounts {
		at := indexed(container+".volumeMounts", i)
		checkMountPath(v.report, m.MountPath, at+".mountPath", taken)
		if m.Name == "" {
			v.missing(at+".name", "")
		} else if !v.volumeNames[m.Name] {
			v.invalid(at+".name", "there is no volume %q in spec.volumes", m.Name)
		}
		checkSubPath(v.report, &m, at)
		propagation := corev1.MountPropagationNone
		if p := m.MountPropagation; p != nil {
			propagation = *p
			choice(v.report, at+".mountPropagation", propagation, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)
		}
		if propagation == corev1.MountPropagationBidirectional && !privileged(c) {
			v.invalid(at+".mountPropagation", "Bidirectional requires securityContext.privileged")
		}
		if r := m.RecursiveReadOnly; r != nil {
			choice(v.report, at+".recursiveReadOnly", *r, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)
			if *r != corev1.RecursiveReadOnlyDisabled && (!m.ReadOnly || propagation != corev1.MountPropagationNone) {
				v.invalid(at+".recursiveReadOnly", "requires readOnly: true and no mountPropagation")
			}
		}
		for j, o := range m.BindMountOptions {
			choice(v.report, indexed(at+".bindMountOptions", j), o, "noexec", "nodev", "nosuid")
		}
	}
}

func checkMountPath(r *report, p, at string, taken map[string]bool) {
	switch {
	case p == "":
		r.missing(at, "")
	case !path.IsAbs(p):
		r.invalid(at, "%q is not absolute: begin it with /", p)
	case hasDotDot(p):
		r.invalid(at, "%q contains ..: write the path it leads to", p)
	case strings.ContainsAny(p, ":\x00"):
		r.invalid(at, "%q contains a colon or a NUL byte", p)
	case path.Clean(p) == "/":
		r.invalid(at, "can't mount over the root: use another image")
	case taken[path.Clean(p)]:
		r.invalid(at, "%s is mounted twice: remove one of the mounts", path.Clean(p))
	}
	taken[path.Clean(p)] = true
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
