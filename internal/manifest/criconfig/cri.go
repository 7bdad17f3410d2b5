// Package criconfig converts a pod to the CRI messages that create its sandbox and containers.
// Labels, annotations and log paths are kubelet's, for tools that read them. It is pure.
//
// The pod must come from package manifest: it must be valid and have its defaults.
package criconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/identity"
	huskpod "github.com/huskd/husk/internal/pod"
)

// Node holds the properties of the node that the messages depend on.
type Node struct {
	Name string
	// IPs of the node, the primary one first.
	IPs []string
	// Memory of the node in bytes.
	Memory int64
	// Allocatable is what pods can request. Containers without a limit see it as their limit.
	Allocatable corev1.ResourceList
	// Unified tells that the node uses cgroup v2.
	Unified bool
	// Swap tells how containers may use swap.
	Swap Swap
	// HugePages are the page sizes that can be limited, such as "2MB".
	HugePages []string
	// RecursiveReadOnly tells that the kernel supports recursive read-only mounts.
	RecursiveReadOnly bool
	// Throttles are the node's host.Facts.Throttles.
	Throttles []string
	// ResolvConf is the content of the node's resolver configuration.
	ResolvConf []byte
	// ClusterDNS are the name servers of the cluster, if any. ClusterDomain is the domain of its
	// services.
	ClusterDNS    []string
	ClusterDomain string
	// Services are those of a node without a cluster. Pods have their addresses in variables.
	Services []*corev1.Service
	// InCluster says that it is a node of a cluster, which shows pods under their names there.
	InCluster bool
	// Logs is the directory of all pods' logs, Seccomp that of local seccomp profiles.
	Logs, Seccomp string
	// SeccompUnconfined gives containers that name no seccomp profile none, instead of the default
	// one.
	SeccompUnconfined bool
}

// Labels and annotations by which CRI clients identify pods and containers.
const (
	labelPodName      = "io.kubernetes.pod.name"
	labelPodNamespace = "io.kubernetes.pod.namespace"
	labelPodUID       = "io.kubernetes.pod.uid"
	labelContainer    = "io.kubernetes.container.name"

	annotationHash          = "io.kubernetes.container.hash"
	annotationRestarts      = "io.kubernetes.container.restartCount"
	annotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	annotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	annotationPorts         = "io.kubernetes.container.ports"
	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod"
)

// AnnotationMemoryRequest has the memory that a container requested when it started, in bytes. No
// other part of a container's config depends on it.
const AnnotationMemoryRequest = "huskd.github.io/memory-request"

// LogDirectory returns the directory of a pod's logs.
func LogDirectory(pod *corev1.Pod, n Node) string {
	return path.Join(n.Logs, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// LogPath returns the path of the log of a container's run, relative to LogDirectory.
func LogPath(container string, attempt uint32) string {
	return path.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// SandboxConfig returns the config of the pod's sandbox. attempt is the number of sandboxes that
// the pod had before.
func SandboxConfig(pod *corev1.Pod, attempt uint32, n Node) *runtimeapi.PodSandboxConfig {
	out := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt,
		},
		LogDirectory: LogDirectory(pod, n),
		DnsConfig:    dnsConfig(pod, n),
		PortMappings: portMappings(pod),
		Labels:       podLabels(pod),
		Annotations:  maps.Clone(pod.Annotations),
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			SecurityContext: sandboxSecurity(pod),
			Sysctls:         sysctls(pod),
			Resources:       PodResources(pod),
		},
	}
	if class := QOS(pod); class != corev1.PodQOSGuaranteed {
		out.Labels[huskpod.QOSClassLabel] = strings.ToLower(string(class))
	}
	if !pod.Spec.HostNetwork {
		out.Hostname = Hostname(pod)
		if as := pod.Spec.SetHostnameAsFQDN; as != nil && *as {
			out.Hostname = fqdn(pod, n)
		}
	}
	return out
}

// Handler returns the runtime handler of the pod, or "" if it sets none.
func Handler(pod *corev1.Pod) string {
	if pod.Spec.RuntimeClassName == nil {
		return ""
	}
	return *pod.Spec.RuntimeClassName
}

func podLabels(pod *corev1.Pod) map[string]string {
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	labels[labelPodName], labels[labelPodNamespace], labels[labelPodUID] = pod.Name, pod.Namespace, string(pod.UID)
	return labels
}

// maxHostname is the maximum length of a DNS label. It is one less than the kernel's limit.
const maxHostname = 63

// Hostname returns the pod's host name. It doesn't apply to a pod in the node's network.
func Hostname(pod *corev1.Pod) string {
	if override := pod.Spec.HostnameOverride; override != nil {
		return *override
	}
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	name := pod.Name
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name
}

// defaultDomain is the domain of a cluster that doesn't configure one.
const defaultDomain = "cluster.local"

// hasDomain reports whether the pod has a fully qualified name. As in kubelet, hostnameOverride
// replaces that too.
func hasDomain(pod *corev1.Pod) bool {
	return pod.Spec.Subdomain != "" && pod.Spec.HostnameOverride == nil
}

// fqdn returns the pod's fully qualified name. Without a domain that is its host name.
func fqdn(pod *corev1.Pod, n Node) string {
	if !hasDomain(pod) {
		return Hostname(pod)
	}
	domain := n.ClusterDomain
	if domain == "" {
		domain = defaultDomain
	}
	return strings.Join([]string{Hostname(pod), pod.Spec.Subdomain, pod.Namespace, "svc", domain}, ".")
}

// portMappings returns the host ports of the pod. Valid pods have none on plain init containers.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil // the containers listen on the node's ports directly
	}
	var out []*runtimeapi.PortMapping
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range c.Ports {
			if p.HostPort == 0 {
				continue
			}
			out = append(out, &runtimeapi.PortMapping{
				Protocol:      runtimeapi.Protocol(runtimeapi.Protocol_value[string(p.Protocol)]),
				ContainerPort: p.ContainerPort,
				HostPort:      p.HostPort,
				HostIp:        p.HostIP,
			})
		}
	}
	return out
}

func sysctls(pod *corev1.Pod) map[string]string {
	out := map[string]string{}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		out[strings.ReplaceAll(s.Name, "/", ".")] = s.Value
	}
	return out
}

// Run holds what a container's config depends on besides the pod and the node.
type Run struct {
	// Attempt is the number of earlier runs of the container.
	Attempt uint32
	// PodIPs are the sandbox's addresses, the primary one first.
	PodIPs []string
	// ImageRef is the runtime's reference of the pulled image, ImageUser the USER in its config.
	ImageRef, ImageUser string
	// Volumes maps the pod's volumes to their paths on the node.
	Volumes map[string]string
	// Images maps the pod's image volumes to the IDs of their images.
	Images map[string]string
	// SubPaths has the mounts with a subPath, by their index in the container: the path on the node
	// or, for an image volume, the path in the image.
	SubPaths map[int]string
	// EnvFiles has the content of the container's EnvFiles. Missing ones don't exist.
	EnvFiles map[EnvFile][]byte
	// Objects are the config maps and secrets that the pod references.
	Objects manifest.Objects
	// Mounts are additional mounts, such as /etc/hosts. A mount of the container's own at the same
	// path takes precedence.
	Mounts []*runtimeapi.Mount
}

// ContainerConfig returns the config of a run of one of the pod's containers. It returns an error
// of the kind invalid argument if runAsNonRoot forbids the user, or if the container needs
// something that this node doesn't have.
func ContainerConfig(pod *corev1.Pod, c *corev1.Container, r Run, n Node) (*runtimeapi.ContainerConfig, error) {
	env, err := environment(pod, c, r, n)
	if err != nil {
		return nil, err
	}
	security, err := containerSecurity(pod, c, r.ImageUser, n)
	if err != nil {
		return nil, err
	}
	mounts, err := mounts(pod, c, r, n)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerConfig{
		Metadata:   &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: r.Attempt},
		Image:      &runtimeapi.ImageSpec{Image: r.ImageRef, UserSpecifiedImage: c.Image},
		Command:    expandAll(c.Command, env),
		Args:       expandAll(c.Args, env),
		WorkingDir: c.WorkingDir,
		Mounts:     mounts,
		Labels: map[string]string{
			labelPodName: pod.Name, labelPodNamespace: pod.Namespace, labelPodUID: string(pod.UID), labelContainer: c.Name,
		},
		Annotations: containerAnnotations(pod, c, r),
		LogPath:     LogPath(c.Name, r.Attempt),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources:       Resources(pod, c, n),
			SecurityContext: security,
		},
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		out.StopSignal, _ = manifest.StopSignal(*l.StopSignal) // it is valid in a valid pod
	}
	for _, v := range env {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: v.name, Value: []byte(v.value)})
	}
	return out, nil
}

// containerAnnotations returns kubelet's annotations, from which a client that has lost the pod's
// spec knows how to stop the container.
func containerAnnotations(pod *corev1.Pod, c *corev1.Container, r Run) map[string]string {
	out := map[string]string{
		annotationHash:          ContainerHash(c),
		annotationRestarts:      strconv.FormatUint(uint64(r.Attempt), 10),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
		annotationGrace:         strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10),
		AnnotationMemoryRequest: MemoryRequest(c),
	}
	if len(c.Ports) > 0 {
		ports, _ := json.Marshal(c.Ports) // never fails for plain fields
		out[annotationPorts] = string(ports)
	}
	return out
}

// MemoryRequest returns the value of AnnotationMemoryRequest for a container.
func MemoryRequest(c *corev1.Container) string {
	return strconv.FormatInt(c.Resources.Requests.Memory().Value(), 10)
}

// hashLength is the number of hex digits of kubelet's container hashes, which have 32 bits.
const hashLength = 8

// ContainerHash returns a hash of a container's definition.
func ContainerHash(c *corev1.Container) string {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*c}}}
	return identity.Hash(pod)[:hashLength]
}

// mounts returns the container's volume mounts and the additional mounts of r.
func mounts(pod *corev1.Pod, c *corev1.Container, r Run, n Node) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	taken := map[string]bool{}
	for i, m := range c.VolumeMounts {
		source, ok := r.Volumes[m.Name]
		if image, is := r.Images[m.Name]; is {
			taken[path.Clean(m.MountPath)] = true
			out = append(out, &runtimeapi.Mount{
				ContainerPath: path.Clean(m.MountPath), Image: &runtimeapi.ImageSpec{Image: image}, ImageSubPath: r.SubPaths[i], Readonly: true,
			})
			continue
		}
		if !ok {
			return nil, invalidField(c, fmt.Sprintf("volumeMounts[%d].name", i), "volume %q is not on this node", m.Name)
		}
		if part, ok := r.SubPaths[i]; ok {
			source = part
		}
		mount := &runtimeapi.Mount{
			ContainerPath:  path.Clean(m.MountPath),
			HostPath:       source,
			Readonly:       m.ReadOnly || isReadOnly(pod, m.Name),
			SelinuxRelabel: ownVolume(pod, m.Name),
			MountOptions:   m.BindMountOptions,
		}
		if m.MountPropagation != nil {
			mount.Propagation = propagations[*m.MountPropagation]
		}
		if mode := m.RecursiveReadOnly; mode != nil && *mode != corev1.RecursiveReadOnlyDisabled {
			mount.RecursiveReadOnly = n.RecursiveReadOnly
			if *mode == corev1.RecursiveReadOnlyEnabled && !n.RecursiveReadOnly {
				return nil, invalidField(c, fmt.Sprintf("volumeMounts[%d].recursiveReadOnly", i), "requires Linux 5.12 or later: set IfPossible")
			}
		}
		taken[mount.ContainerPath] = true
		out = append(out, mount)
	}
	for _, m := range r.Mounts {
		if !taken[path.Clean(m.GetContainerPath())] {
			out = append(out, m)
		}
	}
	return out, nil
}

// ownVolume reports whether a volume belongs to the pod alone, so that it may be relabelled for
// SELinux. Others may use the files behind a hostPath.
func ownVolume(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name && v.HostPath == nil })
}

// isReadOnly reports whether containers must not write to a volume: its files come from the
// manifest, or its claim is used read-only.
func isReadOnly(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Name == name && (len(manifest.Projections(&v)) > 0 || v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly)
	})
}

var propagations = map[corev1.MountPropagationMode]runtimeapi.MountPropagation{
	corev1.MountPropagationNone:            runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
	corev1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	corev1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}
