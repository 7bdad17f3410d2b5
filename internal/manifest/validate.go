package manifest

import (
	"math"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Limits that an API server sets.
const (
	maxAnnotations = 256 << 10
	maxID          = math.MaxInt32
	maxNameservers = 3
	maxSearches    = 32
	maxSearchBytes = 2048
)

// validator checks a pod whose defaults are filled in.
type validator struct {
	*report
	pod *corev1.Pod
	// names of the pod's containers and volumes
	containerNames, volumeNames map[string]bool
}

func indexed(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// validate notes all that is wrong with a pod, as far as that doesn't depend on
// the node.
func validate(pod *corev1.Pod, r *report) {
	v := &validator{report: r, pod: pod, containerNames: map[string]bool{}, volumeNames: map[string]bool{}}
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) { v.containerNames[c.Name] = true })
	for i := range pod.Spec.Volumes {
		v.volumeNames[pod.Spec.Volumes[i].Name] = true
	}
	v.metadata()
	v.spec()
	v.podSecurity()
	v.dns()
	v.volumes()
	v.containers()
	v.hostPorts()
}

// choice notes a value that is not one of the choices.
func choice[T ~string](v *validator, path string, value T, choices ...T) {
	if words, ok := oneOf(value, choices...); !ok {
		v.invalid(path, "%q is not one of %s", value, words)
	}
}

const (
	labelRule     = "use at most 63 lower-case letters, digits and -, with a letter or digit at both ends"
	subdomainRule = "use at most 253 lower-case letters, digits, - and ., with a letter or digit at both ends"
	keyRule       = "use at most 63 letters, digits, -, _ and ., if need be after a domain and /"
	valueRule     = "use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
)

// label notes a value that is no DNS label, or missing.
func (v *validator) label(path, value string) {
	switch {
	case value == "":
		v.missing(path, "")
	case len(validation.IsDNS1123Label(value)) > 0:
		v.invalid(path, "%q can't be one: %s", value, labelRule)
	}
}

var uidForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

func (v *validator) metadata() {
	m := &v.pod.ObjectMeta
	if m.Name == "" {
		v.missing("metadata.name", "")
	} else if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		v.invalid("metadata.name", "%q can't be one: %s", m.Name, subdomainRule)
	}
	v.label("metadata.namespace", m.Namespace)
	// It becomes part of paths.
	if m.UID != "" && !uidForm.MatchString(string(m.UID)) {
		v.invalid("metadata.uid", "%q can't be one: use at most 63 letters, digits and -", m.UID)
	}
	for key, value := range m.Labels {
		path := "metadata.labels." + key
		if len(validation.IsQualifiedName(key)) > 0 {
			v.invalid(path, "%q can't be a key: %s", key, keyRule)
		}
		if len(validation.IsValidLabelValue(value)) > 0 {
			v.invalid(path, "%q can't be a value: %s", value, valueRule)
		}
	}
	size := 0
	for key, value := range m.Annotations {
		size += len(key) + len(value)
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			v.invalid("metadata.annotations."+key, "%q can't be a key: %s", key, keyRule)
		}
	}
	if size > maxAnnotations {
		v.invalid("metadata.annotations", "%d bytes in all: at most %d", size, maxAnnotations)
	}
}

func (v *validator) spec() {
	s := &v.pod.Spec
	choice(v, "spec.restartPolicy", s.RestartPolicy, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if grace := *s.TerminationGracePeriodSeconds; grace < 0 || grace > math.MaxInt32 {
		v.invalid("spec.terminationGracePeriodSeconds", "%d is not within 0…%d", grace, math.MaxInt32)
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		v.invalid("spec.activeDeadlineSeconds", "%d is not within 1…%d", *d, math.MaxInt32)
	}
	if s.HostPID && s.ShareProcessNamespace != nil && *s.ShareProcessNamespace {
		v.invalid("spec.shareProcessNamespace", "the node's processes are shared already by hostPID: set one of them")
	}
	if s.HostUsers != nil && !*s.HostUsers && (s.HostNetwork || s.HostPID || s.HostIPC) {
		v.invalid("spec.hostUsers", "false can't be had together with hostNetwork, hostPID or hostIPC: remove it or those")
	}
	if s.RuntimeClassName != nil {
		v.label("spec.runtimeClassName", *s.RuntimeClassName)
	}
	if s.OS != nil {
		choice(v, "spec.os.name", s.OS.Name, corev1.Linux)
	}
	if s.Hostname != "" {
		v.label("spec.hostname", s.Hostname)
	}
	if s.Subdomain != "" {
		v.label("spec.subdomain", s.Subdomain)
	}
	v.whole()
	for i, login := range s.ImagePullSecrets {
		contents{v}.objectName(indexed("spec.imagePullSecrets", i)+".name", login.Name)
	}
	for i, alias := range s.HostAliases {
		path := indexed("spec.hostAliases", i)
		v.address(path+".ip", alias.IP)
		if len(alias.Hostnames) == 0 {
			v.missing(path+".hostnames", "")
		}
		for j, name := range alias.Hostnames {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				v.invalid(indexed(path+".hostnames", j), "%q can't be one: %s", name, subdomainRule)
			}
		}
	}
}

func (v *validator) address(path, value string) {
	switch addr, err := netip.ParseAddr(value); {
	case value == "":
		v.missing(path, "")
	case err != nil || addr.Zone() != "":
		v.invalid(path, "%q is not an IP address", value)
	}
}

func (v *validator) dns() {
	s := &v.pod.Spec
	choice(v, "spec.dnsPolicy", s.DNSPolicy, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)
	config := s.DNSConfig
	if s.DNSPolicy == corev1.DNSNone && (config == nil || len(config.Nameservers) == 0) {
		v.missing("spec.dnsConfig.nameservers", ": dnsPolicy None has no others")
	}
	if config == nil {
		return
	}
	if n := len(config.Nameservers); n > maxNameservers {
		v.invalid("spec.dnsConfig.nameservers", "%d of them: resolvers read at most %d", n, maxNameservers)
	}
	for i, server := range config.Nameservers {
		v.address(indexed("spec.dnsConfig.nameservers", i), server)
	}
	if n := len(config.Searches); n > maxSearches || len(strings.Join(config.Searches, " ")) > maxSearchBytes {
		v.invalid("spec.dnsConfig.searches", "too many: at most %d, of %d bytes in all", maxSearches, maxSearchBytes)
	}
	for i, domain := range config.Searches {
		// A search domain may end in a dot, be the root, or have underscores.
		if d := strings.TrimSuffix(domain, "."); domain != "." && len(validation.IsDNS1123SubdomainWithUnderscore(d)) > 0 {
			v.invalid(indexed("spec.dnsConfig.searches", i), "%q can't be a domain: %s", domain, subdomainRule)
		}
	}
	for i, option := range config.Options {
		path := indexed("spec.dnsConfig.options", i)
		value := ""
		if option.Value != nil {
			value = *option.Value
		}
		if option.Name == "" {
			v.missing(path+".name", "")
		} else if strings.ContainsAny(option.Name+value, " \t\r\n") {
			v.invalid(path, "%q has white space", option.Name+value)
		}
	}
}

func (v *validator) podSecurity() {
	const path = "spec.securityContext"
	s := v.pod.Spec.SecurityContext
	v.ids(path, s.RunAsUser, s.RunAsGroup, s.RunAsNonRoot)
	for i, g := range s.SupplementalGroups {
		v.id(indexed(path+".supplementalGroups", i), &g)
	}
	v.id(path+".fsGroup", s.FSGroup)
	if p := s.SupplementalGroupsPolicy; p != nil {
		choice(v, path+".supplementalGroupsPolicy", *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	v.profiles(path, s.SeccompProfile, s.AppArmorProfile)
	v.sysctls()
}

func (v *validator) id(path string, id *int64) {
	if id != nil && (*id < 0 || *id > maxID) {
		v.invalid(path, "%d is not within 0…%d", *id, maxID)
	}
}

func (v *validator) ids(path string, user, group *int64, nonRoot *bool) {
	v.id(path+".runAsUser", user)
	v.id(path+".runAsGroup", group)
	if nonRoot != nil && *nonRoot && user != nil && *user == 0 {
		v.invalid(path+".runAsUser", "0, though runAsNonRoot is true: set another user")
	}
}

// profiles checks both kinds, which have the same form.
func (v *validator) profiles(path string, seccomp *corev1.SeccompProfile, appArmor *corev1.AppArmorProfile) {
	check := func(path, kind string, local *string) {
		choice(v, path+".type", kind, "RuntimeDefault", "Unconfined", "Localhost")
		switch named := local != nil && *local != ""; {
		case kind == "Localhost" && !named:
			v.missing(path+".localhostProfile", ": name the profile")
		case kind != "Localhost" && named:
			v.invalid(path+".localhostProfile", "only type Localhost has one: remove it")
		}
	}
	if seccomp != nil {
		check(path+".seccompProfile", string(seccomp.Type), seccomp.LocalhostProfile)
		if p := seccomp.LocalhostProfile; p != nil && hasDotDot(*p) {
			v.invalid(path+".seccompProfile.localhostProfile", "%q has a ..: write where it leads", *p)
		}
	}
	if appArmor != nil {
		check(path+".appArmorProfile", string(appArmor.Type), appArmor.LocalhostProfile)
	}
}

// ipcSysctls are those, beside kernel.shm*, kernel.msg* and fs.mqueue.*, of an
// IPC namespace; see ipc_namespaces(7).
var (
	sysctlForm = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)
	ipcSysctls = regexp.MustCompile(`^(kernel\.(shm|msg)[a-z_]*|kernel\.sem|fs\.mqueue\..*)$`)
)

// sysctls may only be those of namespaces that the pod has to itself.
func (v *validator) sysctls() {
	s := &v.pod.Spec
	seen := map[string]bool{}
	for i, sysctl := range s.SecurityContext.Sysctls {
		path := indexed("spec.securityContext.sysctls", i) + ".name"
		name := strings.ReplaceAll(sysctl.Name, "/", ".")
		switch {
		case name == "":
			v.missing(path, "")
		case !sysctlForm.MatchString(sysctl.Name):
			v.invalid(path, "%q can't be one", sysctl.Name)
		case seen[name]:
			v.invalid(path, "%s is set twice", name)
		case strings.HasPrefix(name, "net."):
			if s.HostNetwork {
				v.invalid(path, "%s is the node's, as hostNetwork is true: remove it", name)
			}
		case ipcSysctls.MatchString(name):
			if s.HostIPC {
				v.invalid(path, "%s is the node's, as hostIPC is true: remove it", name)
			}
		default:
			v.invalid(path, "%s is the node's, no pod has its own: remove it", name)
		}
		seen[name] = true
	}
}

// unsafePath says whether a path leads up.
func hasDotDot(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// Places that a hostPort can be on beside one address.
const (
	allAddresses = ""          // an address that is not named
	anyAddress   = "somewhere" // any of them
)

// hostPorts can be taken once on each address.
func (v *validator) hostPorts() {
	type place struct {
		port     int32
		protocol corev1.Protocol
		on       string
	}
	taken := map[place]string{}
	forEachContainer(v.pod, func(c *corev1.Container, container string, _ bool) {
		for i, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			path := indexed(container+".ports", i) + ".hostPort"
			on, clashes := allAddresses, []string{anyAddress}
			if addr, err := netip.ParseAddr(p.HostIP); err == nil && !addr.IsUnspecified() {
				on = addr.String()
				clashes = []string{allAddresses, on}
			}
			for _, other := range clashes {
				if by, ok := taken[place{p.HostPort, p.Protocol, other}]; ok {
					v.invalid(path, "%d/%s is taken by %s: use another", p.HostPort, p.Protocol, by)
					break
				}
			}
			for _, at := range []string{on, anyAddress} {
				if place := (place{p.HostPort, p.Protocol, at}); taken[place] == "" {
					taken[place] = path
				}
			}
		}
	})
}
