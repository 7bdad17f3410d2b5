package manifest

import (
	"path"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

func (v *validator) containers() {
	if len(v.pod.Spec.Containers) == 0 {
		v.missing("spec.containers", ": a pod has at least one")
	}
	names := map[string]string{}
	forEachContainer(v.pod, func(c *corev1.Container, at string, init bool) {
		v.label(at+".name", c.Name)
		if other, ok := names[c.Name]; ok && c.Name != "" {
			v.invalid(at+".name", "%q is that of %s too: use another", c.Name, other)
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
		v.invalid(at+".image", "%q has white space around it", c.Image)
	}
	choice(v, at+".imagePullPolicy", c.ImagePullPolicy, corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever)
	if p := c.RestartPolicy; p != nil {
		choice(v, at+".restartPolicy", *p, corev1.ContainerRestartPolicyAlways)
	}
	if p := c.TerminationMessagePath; !path.IsAbs(p) || hasDotDot(p) || path.Clean(p) == "/" {
		v.invalid(at+".terminationMessagePath", "%q is not the absolute path of a file", p)
	}
	choice(v, at+".terminationMessagePolicy", c.TerminationMessagePolicy, corev1.TerminationMessageReadFile, corev1.TerminationMessageFallbackToLogsOnError)
	v.ports(c, at, init)
	v.env(c, at)
	contents{v}.envFrom(c, at)
	v.resources(&c.Resources, at+".resources")
	v.volumeMounts(c, at)
	v.security(c.SecurityContext, at+".securityContext")
	care{v}.probes(c, at, init)
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
		choice(v, at+".protocol", p.Protocol, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
		switch {
		case p.HostPort == 0:
		case len(validation.IsValidPortNum(int(p.HostPort))) > 0:
			v.invalid(at+".hostPort", "%d is not within 1…65535", p.HostPort)
		case v.pod.Spec.HostNetwork && p.HostPort != p.ContainerPort:
			v.invalid(at+".hostPort", "%d is not the containerPort %d, and with hostNetwork they are one: remove it", p.HostPort, p.ContainerPort)
		case init && !IsSidecar(c):
			v.invalid(at+".hostPort", "an init container ends before the pod serves: remove it")
		}
		if p.HostIP != "" {
			v.address(at+".hostIP", p.HostIP)
		}
		if p.Name == "" {
			continue
		}
		if len(validation.IsValidPortName(p.Name)) > 0 {
			v.invalid(at+".name", "%q can't be one: use at most 15 lower-case letters, digits and -, at least one a letter", p.Name)
		}
		if names[p.Name] {
			v.invalid(at+".name", "%q is another port's too: use another", p.Name)
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
			v.invalid(at+".name", "%q can't be one: use printable ASCII letters but =", e.Name)
		}
		if strings.ContainsRune(e.Value, 0) {
			v.invalid(at+".value", "has a zero byte: remove it")
		}
		from := e.ValueFrom
		switch {
		case from == nil:
		case e.Value != "":
			v.invalid(at+".valueFrom", "value is set too: set one of them")
		default:
			contents{v}.valueFrom(from, at+".valueFrom")
		}
	}
}

// FieldPaths are the fields of a pod that a variable can take its value from,
// beside metadata.labels['key'] and metadata.annotations['key'].
var FieldPaths = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName",
	"status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
}

var keyedPath = regexp.MustCompile(`^metadata\.(labels|annotations)\['([^']+)'\]$`)

// SplitFieldPath returns the map and the key of metadata.labels['key'] and
// metadata.annotations['key'].
func SplitFieldPath(path string) (field, key string, ok bool) {
	m := keyedPath.FindStringSubmatch(path)
	if m == nil {
		return "", "", false
	}
	return m[1], m[2], true
}

func (v *validator) fieldRef(at string, ref *corev1.ObjectFieldSelector) {
	choice(v, at+".apiVersion", ref.APIVersion, "v1")
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
	if list != "limits" && list != "requests" || !knownResource(corev1.ResourceName(name)) {
		v.invalid(at+".resource", "%q is not limits or requests, . and cpu, memory or hugepages-<size>", ref.Resource)
	}
	if ref.Divisor.Sign() < 0 {
		v.invalid(at+".divisor", "%s is negative", ref.Divisor.String())
	}
	if name := ref.ContainerName; name != "" && !v.containerNames[name] {
		v.invalid(at+".containerName", "the pod has no container %q", name)
	}
}

func knownResource(name corev1.ResourceName) bool {
	_, huge := HugePageSize(name)
	return name == corev1.ResourceCPU || name == corev1.ResourceMemory || huge
}

// HugePageSize returns the size of the pages that a resource of a container
// is, such as hugepages-2Mi.
func HugePageSize(name corev1.ResourceName) (resource.Quantity, bool) {
	text, ok := strings.CutPrefix(string(name), corev1.ResourceHugePagesPrefix)
	if !ok {
		return resource.Quantity{}, false
	}
	size, ok := parseQuantity(text)
	return size, ok && size.Value() > 0
}

func (v *validator) resources(r *corev1.ResourceRequirements, at string) {
	for _, list := range []struct {
		path   string
		values corev1.ResourceList
	}{{at + ".limits", r.Limits}, {at + ".requests", r.Requests}} {
		for name, q := range list.values {
			// A request that a limit has made says nothing of its own.
			if limit, ok := r.Limits[name]; !ok || list.path == at+".limits" || limit.Cmp(q) != 0 {
				v.quantity(list.path, name, q)
			}
		}
	}
	for name, request := range r.Requests {
		path := at + ".requests." + string(name)
		limit, limited := r.Limits[name]
		_, huge := HugePageSize(name)
		switch {
		case limited && request.Cmp(limit) > 0:
			v.invalid(path, "%s is more than the limit of %s", request.String(), limit.String())
		case huge && (!limited || request.Cmp(limit) != 0):
			v.invalid(path, "huge pages can't be shared: set the same limit")
		}
	}
}

func (v *validator) quantity(list string, name corev1.ResourceName, q resource.Quantity) {
	path := list + "." + string(name)
	size, huge := HugePageSize(name)
	switch {
	case name == corev1.ResourceEphemeralStorage && list != "spec.overhead":
		if q.Sign() < 0 {
			v.invalid(path, "%s is negative", q.String())
		}
	case !knownResource(name):
		v.invalid(path, "not supported, cpu, memory and hugepages-<size> are: remove it")
	case q.Sign() < 0:
		v.invalid(path, "%s is negative", q.String())
	case q.Cmp(resourceMaxima[name == corev1.ResourceCPU]) > 0:
		v.invalid(path, "%s is more than any node has", q.String())
	case name == corev1.ResourceCPU:
	case q.MilliValue()%1000 != 0:
		v.invalid(path, "%s is not a whole number of bytes: the unit of mega is M or Mi, m is a thousandth", q.String())
	case huge && q.Value()%size.Value() != 0:
		v.invalid(path, "%s is not a multiple of the page size %s", q.String(), size.String())
	}
}

// resourceMaxima of processors and of bytes. They keep what is computed of a
// value far from overflowing.
var resourceMaxima = map[bool]resource.Quantity{true: resource.MustParse("1M"), false: resource.MustParse("1Ei")}

func (v *validator) security(s *corev1.SecurityContext, at string) {
	if s == nil {
		return
	}
	pod := v.pod.Spec.SecurityContext
	user, nonRoot := s.RunAsUser, s.RunAsNonRoot
	v.ids(at, user, s.RunAsGroup, nonRoot)
	if user == nil && nonRoot != nil && *nonRoot && pod.RunAsUser != nil && *pod.RunAsUser == 0 {
		v.invalid(at+".runAsNonRoot", "true, though the pod's runAsUser is 0: set another user")
	}
	v.profiles(at, s.SeccompProfile, s.AppArmorProfile)
	if p := s.ProcMount; p != nil {
		choice(v, at+".procMount", *p, corev1.DefaultProcMount, corev1.UnmaskedProcMount)
	}
	if s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation {
		return
	}
	switch {
	case s.Privileged != nil && *s.Privileged:
		v.invalid(at+".allowPrivilegeEscalation", "false, though privileged is true: set one of them")
	case s.Capabilities != nil && slices.ContainsFunc(s.Capabilities.Add, isSysAdmin):
		v.invalid(at+".allowPrivilegeEscalation", "false, though capability SYS_ADMIN is added: set one of them")
	}
}

func isSysAdmin(c corev1.Capability) bool {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_") == "SYS_ADMIN"
}

func (v *validator) volumes() {
	names := map[string]bool{}
	for i, vol := range v.pod.Spec.Volumes {
		at := indexed("spec.volumes", i)
		v.label(at+".name", vol.Name)
		if names[vol.Name] && vol.Name != "" {
			v.invalid(at+".name", "%q is another volume's too: use another", vol.Name)
		}
		names[vol.Name] = true
		switch kinds := volumeKinds(&vol); {
		case len(kinds) > 1:
			v.invalid(at, "%s are all set: set one of them", strings.Join(kinds, " and "))
		case vol.Image != nil:
			v.image(vol.Image, at+".image")
		case vol.HostPath != nil:
			v.hostPath(vol.HostPath, at+".hostPath")
		case vol.EmptyDir != nil:
			choice(v, at+".emptyDir.medium", vol.EmptyDir.Medium, corev1.StorageMediumDefault, corev1.StorageMediumMemory)
			if q := vol.EmptyDir.SizeLimit; q != nil && q.Sign() < 0 {
				v.invalid(at+".emptyDir.sizeLimit", "%s is negative", q.String())
			}
		default:
			contents{v}.payload(&vol, at)
		}
	}
}

func (v *validator) hostPath(h *corev1.HostPathVolumeSource, at string) {
	switch {
	case h.Path == "":
		v.missing(at+".path", "")
	case !path.IsAbs(h.Path):
		v.invalid(at+".path", "%q is not absolute: begin it with /", h.Path)
	case hasDotDot(h.Path):
		v.invalid(at+".path", "%q has a ..: write where it leads", h.Path)
	}
	choice(v, at+".type", *h.Type, corev1.HostPathUnset, corev1.HostPathDirectoryOrCreate, corev1.HostPathDirectory,
		corev1.HostPathFileOrCreate, corev1.HostPathFile, corev1.HostPathSocket, corev1.HostPathCharDev, corev1.HostPathBlockDev)
}

func (v *validator) volumeMounts(c *corev1.Container, container string) {
	taken := map[string]bool{}
	for i, m := range c.VolumeMounts {
		at := indexed(container+".volumeMounts", i)
		v.mountPath(m.MountPath, at+".mountPath", taken)
		if m.Name == "" {
			v.missing(at+".name", "")
		} else if !v.volumeNames[m.Name] {
			v.invalid(at+".name", "spec.volumes has no %q", m.Name)
		}
		contents{v}.subPath(&m, at)
		propagation := corev1.MountPropagationNone
		if p := m.MountPropagation; p != nil {
			propagation = *p
			choice(v, at+".mountPropagation", propagation, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)
		}
		if propagation == corev1.MountPropagationBidirectional && !privileged(c) {
			v.invalid(at+".mountPropagation", "Bidirectional needs securityContext.privileged")
		}
		if r := m.RecursiveReadOnly; r != nil {
			choice(v, at+".recursiveReadOnly", *r, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)
			if *r != corev1.RecursiveReadOnlyDisabled && (!m.ReadOnly || propagation != corev1.MountPropagationNone) {
				v.invalid(at+".recursiveReadOnly", "needs readOnly: true and no mountPropagation")
			}
		}
		for j, o := range m.BindMountOptions {
			choice(v, indexed(at+".bindMountOptions", j), o, "noexec", "nodev", "nosuid")
		}
	}
}

func (v *validator) mountPath(p, at string, taken map[string]bool) {
	switch {
	case p == "":
		v.missing(at, "")
	case !path.IsAbs(p):
		v.invalid(at, "%q is not absolute: begin it with /", p)
	case hasDotDot(p):
		v.invalid(at, "%q has a ..: write where it leads", p)
	case strings.ContainsAny(p, ":\x00"):
		v.invalid(at, "%q has a colon or a zero byte", p)
	case path.Clean(p) == "/":
		v.invalid(at, "the root can't be mounted over: use another image")
	case taken[path.Clean(p)]:
		v.invalid(at, "%s is mounted twice: remove one", path.Clean(p))
	}
	taken[path.Clean(p)] = true
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
