// Package criconfig turns a pod into the CRI messages that ask a runtime for its
// sandbox and containers, as the kubelet does, so that tools which read their
// labels, annotations and log paths find what they expect. It is pure.
//
// The pod must come from the manifest package: with its defaults and valid.
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
	huskpod "github.com/huskd/husk/internal/pod"
)

// Node is what of the node the messages depend on.
type Node struct {
	Name string
	// IPs of the node, the primary one first.
	IPs []string
	// Memory in bytes and CPUs: what a container without a limit can have.
	Memory int64
	CPUs   int
	// Unified says that cgroups are v2.
	Unified bool
	// HugePages are the sizes that can be limited: "2MB".
	HugePages []string
	// RecursiveReadOnly says that mounts can be.
	RecursiveReadOnly bool
	// ResolvConf is the content of the node's resolver configuration.
	ResolvConf []byte
	// ClusterDNS are the cluster's name servers, if it has any, and ClusterDomain
	// the domain of its services.
	ClusterDNS    []string
	ClusterDomain string
	// Logs is the directory of all pods' logs, Seccomp that of local profiles.
	Logs, Seccomp string
}

// The labels and annotations by which a runtime's clients know pods and
// containers.
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

// LogDirectory is where the logs of a pod are.
func LogDirectory(pod *corev1.Pod, n Node) string {
	return path.Join(n.Logs, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// LogPath is where in it a run of a container has its log.
func LogPath(container string, attempt uint32) string {
	return path.Join(container, strconv.FormatUint(uint64(attempt), 10)+".log")
}

// SandboxConfig asks for the pod's sandbox. Attempt counts the sandboxes that
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
			Resources:       podResources(pod),
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

// Handler is the runtime handler that the pod names; empty if it names none.
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

// maxHostname is the kernel's limit of 64 less one that DNS allows in a label.
const maxHostname = 63

// Hostname is the pod's host name, in a network of its own.
func Hostname(pod *corev1.Pod) string {
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname
	}
	name := pod.Name
	if len(name) > maxHostname {
		name = strings.TrimRight(name[:maxHostname], "-.")
	}
	return name
}

// defaultDomain is that of a cluster that names no other.
const defaultDomain = "cluster.local"

// fqdn is the pod's whole host name, with the domain that its subdomain makes.
func fqdn(pod *corev1.Pod, n Node) string {
	if pod.Spec.Subdomain == "" {
		return Hostname(pod)
	}
	domain := n.ClusterDomain
	if domain == "" {
		domain = defaultDomain
	}
	return strings.Join([]string{Hostname(pod), pod.Spec.Subdomain, pod.Namespace, "svc", domain}, ".")
}

// portMappings are those of the containers that serve: a plain init container
// can have none.
func portMappings(pod *corev1.Pod) []*runtimeapi.PortMapping {
	if pod.Spec.HostNetwork {
		return nil // they are the node's ports already
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

// Run is what a container's message needs beyond the pod.
type Run struct {
	// Attempt counts the runs of the container before this one.
	Attempt uint32
	// PodIPs are the sandbox's addresses, the primary one first.
	PodIPs []string
	// ImageRef is what the runtime calls the pulled image, ImageUser the USER
	// of its config.
	ImageRef, ImageUser string
	// Volumes has the path on the node of each of the pod's volumes.
	Volumes map[string]string
	// Images has the ID of each of the pod's volumes that is an image.
	Images map[string]string
	// SubPaths has the path on the node of each of the container's mounts that
	// is of a part of a volume only, by its index; of an image, that in it.
	SubPaths map[int]string
	// Objects are those that the pod refers to.
	Objects manifest.Objects
	// Mounts are further ones, such as /etc/hosts, unless the container has
	// one of its own at the same place.
	Mounts []*runtimeapi.Mount
}

// ContainerConfig asks for a run of one of the pod's containers. It fails if
// the container must not run as the user that it would run as, or if it names
// what this node doesn't have; the error is of the kind invalid argument.
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
			Resources:       containerResources(pod, c, n),
			SecurityContext: security,
		},
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		out.StopSignal, _ = manifest.StopSignal(*l.StopSignal) // which has validated it
	}
	for _, v := range env {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: v.name, Value: []byte(v.value)})
	}
	return out, nil
}

// containerAnnotations let a pod be stopped rightly by who has lost its spec.
func containerAnnotations(pod *corev1.Pod, c *corev1.Container, r Run) map[string]string {
	out := map[string]string{
		annotationHash:          ContainerHash(c),
		annotationRestarts:      strconv.FormatUint(uint64(r.Attempt), 10),
		annotationMessagePath:   c.TerminationMessagePath,
		annotationMessagePolicy: string(c.TerminationMessagePolicy),
		annotationGrace:         strconv.FormatInt(*pod.Spec.TerminationGracePeriodSeconds, 10),
	}
	if len(c.Ports) > 0 {
		ports, _ := json.Marshal(c.Ports) // plain fields can be written always
		out[annotationPorts] = string(ports)
	}
	return out
}

// hashLength is that of the kubelet's hashes: 32 bits.
const hashLength = 8

// ContainerHash tells one definition of a container from another.
func ContainerHash(c *corev1.Container) string {
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{*c}}}
	return manifest.Hash(pod)[:hashLength]
}

// mounts puts the volumes where the container has them.
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
			Readonly:       m.ReadOnly || fromManifest(pod, m.Name),
			SelinuxRelabel: ownVolume(pod, m.Name),
			MountOptions:   m.BindMountOptions,
		}
		if m.MountPropagation != nil {
			mount.Propagation = propagations[*m.MountPropagation]
		}
		if mode := m.RecursiveReadOnly; mode != nil && *mode != corev1.RecursiveReadOnlyDisabled {
			mount.RecursiveReadOnly = n.RecursiveReadOnly
			if *mode == corev1.RecursiveReadOnlyEnabled && !n.RecursiveReadOnly {
				return nil, invalidField(c, fmt.Sprintf("volumeMounts[%d].recursiveReadOnly", i), "this node's kernel can't (Linux 5.12 can): set IfPossible")
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

// ownVolume says whether a volume is the pod's own, which alone may be
// relabelled: what is behind a hostPath others use too.
func ownVolume(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name && v.HostPath == nil })
}

// fromManifest says whether the files of a volume come from the manifest. No
// container may write to them.
func fromManifest(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == name && len(manifest.Projections(&v)) > 0 })
}

var propagations = map[corev1.MountPropagationMode]runtimeapi.MountPropagation{
	corev1.MountPropagationNone:            runtimeapi.MountPropagation_PROPAGATION_PRIVATE,
	corev1.MountPropagationHostToContainer: runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
	corev1.MountPropagationBidirectional:   runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL,
}
