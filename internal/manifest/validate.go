package manifest

import (
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/sysctl"
)

// Limits that an API server enforces.
const (
	maxAnnotations = 256 << 10
	maxID          = math.MaxInt32
	maxNameservers = 3
	maxSearches    = 32
	maxSearchBytes = 2048
)

// validator checks a pod whose defaults are set.
type validator struct {
	*report
	pod *corev1.Pod
	// Names of the pod's containers and volumes.
	containerNames, volumeNames map[string]bool
}

func indexed(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// validate reports all problems of a pod that don't depend on the node.
func validate(pod *corev1.Pod, r *report) {
	v := &validator{report: r, pod: pod, containerNames: map[string]bool{}, volumeNames: map[string]bool{}}
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) { v.containerNames[c.Name] = true })
	for i := range pod.Spec.Volumes {
		v.volumeNames[pod.Spec.Volumes[i].Name] = true
	}
	checkMetadata(r, &pod.ObjectMeta)
	// It becomes part of file paths.
	if pod.UID != "" && !uidForm.MatchString(string(pod.UID)) {
		r.invalid("metadata.uid", "%q is not valid: use at most 63 letters, digits and -", pod.UID)
	}
	v.spec()
	v.podSecurity()
	v.dns()
	v.volumes()
	v.containers()
	v.hostPorts()
}

// choice reports a value that is not one of the choices.
func choice[T ~string](r *report, path string, value T, choices ...T) {
	if words, ok := oneOf(value, choices...); !ok {
		r.invalid(path, "%q is not one of %s", value, words)
	}
}

const (
	labelRule     = "use at most 63 lower-case letters, digits and -, with a letter or digit at both ends"
	subdomainRule = "use at most 253 lower-case letters, digits, - and ., with a letter or digit at both ends"
	keyRule       = "use at most 63 letters, digits, -, _ and ., optionally after a domain and /"
	valueRule     = "use at most 63 letters, digits, -, _ and ., with a letter or digit at both ends"
)

// checkLabel reports a value that is missing or not a DNS label.
func checkLabel(r *report, path, value string) {
	switch {
	case value == "":
		r.missing(path, "")
	case len(validation.IsDNS1123Label(value)) > 0:
		r.invalid(path, "%q is not valid: %s", value, labelRule)
	}
}

var uidForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)

// checkMetadata checks the name, the namespace, the labels and the annotations of an object.
func checkMetadata(r *report, m *metav1.ObjectMeta) {
	if m.Name == "" {
		r.missing("metadata.name", "")
	} else if len(validation.IsDNS1123Subdomain(m.Name)) > 0 {
		r.invalid("metadata.name", "%q is not valid: %s", m.Name, subdomainRule)
	}
	checkLabel(r, "metadata.namespace", m.Namespace)
	for key, value := range m.Labels {
		path := "metadata.labels." + key
		if len(validation.IsQualifiedName(key)) > 0 {
			r.invalid(path, "%q is not a valid key: %s", key, keyRule)
		}
		if len(validation.IsValidLabelValue(value)) > 0 {
			r.invalid(path, "%q is not a valid value: %s", value, valueRule)
		}
	}
	size := 0
	for key, value := range m.Annotations {
		size += len(key) + len(value)
		if len(validation.IsQualifiedName(strings.ToLower(key))) > 0 {
			r.invalid("metadata.annotations."+key, "%q is not a valid key: %s", key, keyRule)
		}
	}
	if size > maxAnnotations {
		r.invalid("metadata.annotations", "%d bytes in total: at most %d are allowed", size, maxAnnotations)
	}
}

func (v *validator) spec() {
	s := &v.pod.Spec
	choice(v.report, "spec.restartPolicy", s.RestartPolicy, corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever)
	if grace := *s.TerminationGracePeriodSeconds; grace < 0 || grace > math.MaxInt32 {
		v.invalid("spec.terminationGracePeriodSeconds", "%d is not within 0…%d", grace, math.MaxInt32)
	}
	if d := s.ActiveDeadlineSeconds; d != nil && (*d < 1 || *d > math.MaxInt32) {
		v.invalid("spec.activeDeadlineSeconds", "%d is not within 1…%d", *d, math.MaxInt32)
	}
	if s.HostPID && s.ShareProcessNamespace != nil && *s.ShareProcessNamespace {
		v.invalid("spec.shareProcessNamespace", "hostPID already shares the node's processes: set only one of them")
	}
	if s.HostUsers != nil && !*s.HostUsers && (s.HostNetwork || s.HostPID || s.HostIPC) {
		v.invalid("spec.hostUsers", "false can't be combined with hostNetwork, hostPID or hostIPC: remove it or them")
	}
	if s.RuntimeClassName != nil {
		checkLabel(v.report, "spec.runtimeClassName", *s.RuntimeClassName)
	}
	if s.OS != nil {
		choice(v.report, "spec.os.name", s.OS.Name, corev1.Linux)
	}
	if s.Hostname != "" {
		checkLabel(v.report, "spec.hostname", s.Hostname)
	}
	if s.Subdomain != "" {
		checkLabel(v.report, "spec.subdomain", s.Subdomain)
	}
	v.podLevel()
	for i, login := range s.ImagePullSecrets {
		checkObjectName(v.report, indexed("spec.imagePullSecrets", i)+".name", login.Name)
	}
	for i, alias := range s.HostAliases {
		path := indexed("spec.hostAliases", i)
		checkAddress(v.report, path+".ip", alias.IP)
		if len(alias.Hostnames) == 0 {
			v.missing(path+".hostnames", "")
		}
		for j, name := range alias.Hostnames {
			if len(validation.IsDNS1123Subdomain(name)) > 0 {
				v.invalid(indexed(path+".hostnames", j), "%q is not valid: %s", name, subdomainRule)
			}
		}
	}
}

func checkAddress(r *report, path, value string) {
	switch addr, err := netip.ParseAddr(value); {
	case value == "":
		r.missing(path, "")
	case err != nil || addr.Zone() != "":
		r.invalid(path, "%q is not an IP address", value)
	}
}

func (v *validator) dns() {
	s := &v.pod.Spec
	choice(v.report, "spec.dnsPolicy", s.DNSPolicy, corev1.DNSClusterFirst, corev1.DNSClusterFirstWithHostNet, corev1.DNSDefault, corev1.DNSNone)
	config := s.DNSConfig
	if s.DNSPolicy == corev1.DNSNone && (config == nil || len(config.Nameservers) == 0) {
		v.missing("spec.dnsConfig.nameservers", ": dnsPolicy None provides no others")
	}
	if config == nil {
		return
	}
	if n := len(config.Nameservers); n > maxNameservers {
		v.invalid("spec.dnsConfig.nameservers", "%d of them: resolvers read at most %d", n, maxNameservers)
	}
	for i, server := range config.Nameservers {
		checkAddress(v.report, indexed("spec.dnsConfig.nameservers", i), server)
	}
	if n := len(config.Searches); n > maxSearches || len(strings.Join(config.Searches, " ")) > maxSearchBytes {
		v.invalid("spec.dnsConfig.searches", "too many: at most %d, with %d bytes in total", maxSearches, maxSearchBytes)
	}
	for i, domain := range config.Searches {
		// A search domain may end in a dot, be the root, or have underscores.
		if d := strings.TrimSuffix(domain, "."); domain != "." && len(validation.IsDNS1123SubdomainWithUnderscore(d)) > 0 {
			v.invalid(indexed("spec.dnsConfig.searches", i), "%q is not a valid domain: %s", domain, subdomainRule)
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
			v.invalid(path, "%q contains white space", option.Name+value)
		}
	}
}

func (v *validator) podSecurity() {
	const path = "spec.securityContext"
	s := v.pod.Spec.SecurityContext
	checkID(v.report, path+".runAsUser", s.RunAsUser)
	checkID(v.report, path+".runAsGroup", s.RunAsGroup)
	for i, g := range s.SupplementalGroups {
		checkID(v.report, indexed(path+".supplementalGroups", i), &g)
	}
	checkID(v.report, path+".fsGroup", s.FSGroup)
	if p := s.SupplementalGroupsPolicy; p != nil {
		choice(v.report, path+".supplementalGroupsPolicy", *p, corev1.SupplementalGroupsPolicyMerge, corev1.SupplementalGroupsPolicyStrict)
	}
	checkProfiles(v.report, path, s.SeccompProfile, s.AppArmorProfile)
	v.sysctls()
}

func checkID(r *report, path string, id *int64) {
	if id != nil && (*id < 0 || *id > maxID) {
		r.invalid(path, "%d is not within 0…%d", *id, maxID)
	}
}

// checkProfiles checks seccomp and AppArmor profiles, which have the same form.
func checkProfiles(r *report, path string, seccomp *corev1.SeccompProfile, appArmor *corev1.AppArmorProfile) {
	check := func(path, kind string, local *string) {
		choice(r, path+".type", kind, "RuntimeDefault", "Unconfined", "Localhost")
		switch named := local != nil && *local != ""; {
		case kind == "Localhost" && !named:
			r.missing(path+".localhostProfile", ": name the profile")
		case kind != "Localhost" && named:
			r.invalid(path+".localhostProfile", "only type Localhost takes a profile: remove it")
		}
	}
	if seccomp != nil {
		check(path+".seccompProfile", string(seccomp.Type), seccomp.LocalhostProfile)
		if p := seccomp.LocalhostProfile; p != nil && hasDotDot(*p) {
			r.invalid(path+".seccompProfile.localhostProfile", "%q contains ..: write the path it leads to", *p)
		}
	}
	if appArmor != nil {
		check(path+".appArmorProfile", string(appArmor.Type), appArmor.LocalhostProfile)
	}
}

var sysctlForm = regexp.MustCompile(`^[a-z0-9]([-_a-z0-9]*[a-z0-9])?([./][a-z0-9]([-_a-z0-9]*[a-z0-9])?)*$`)

// sysctls accepts only sysctls of namespaces that the pod doesn't share with the node.
func (v *validator) sysctls() {
	s := &v.pod.Spec
	seen := map[string]bool{}
	for i, setting := range s.SecurityContext.Sysctls {
		path := indexed("spec.securityContext.sysctls", i) + ".name"
		name := sysctl.Normalize(setting.Name)
		switch namespace := sysctl.NamespaceOf(name); {
		case name == "":
			v.missing(path, "")
		case !sysctlForm.MatchString(setting.Name):
			v.invalid(path, "%q is not the name of a sysctl", setting.Name)
		case seen[name]:
			v.invalid(path, "%s is set twice", name)
		case namespace == "":
			v.invalid(path, "%s belongs to the node and has no value per pod: remove it", name)
		case namespace == sysctl.Network && s.HostNetwork:
			v.invalid(path, "%s belongs to the node with hostNetwork: remove it", name)
		case namespace == sysctl.IPC && s.HostIPC:
			v.invalid(path, "%s belongs to the node with hostIPC: remove it", name)
		}
		seen[name] = true
	}
}

// hasDotDot reports whether a path has .. as one of its elements.
func hasDotDot(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}

// hostPorts reports host ports that are used twice on the same address.
func (v *validator) hostPorts() {
	type place struct {
		path string
		port corev1.ContainerPort
	}
	taken := map[int32][]place{}
	forEachContainer(v.pod, func(c *corev1.Container, container string, _ bool) {
		for i, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			path := indexed(container+".ports", i) + ".hostPort"
			others := taken[p.HostPort]
			if at := slices.IndexFunc(others, func(o place) bool { return podspec.SameHostPort(o.port, p) }); at >= 0 {
				v.invalid(path, "%d/%s is taken by %s: use another", p.HostPort, p.Protocol, others[at].path)
				continue
			}
			taken[p.HostPort] = append(others, place{path, p})
		}
	})
}
