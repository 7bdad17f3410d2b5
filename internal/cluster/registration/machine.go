package registration

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/version"
)

const (
	operatingSystem = runtime.GOOS
	architecture    = runtime.GOARCH
)

// declaredFeatures are those of Husk that pods or the API server use only on nodes that declare
// them, sorted. See k8s.io/component-helpers/nodedeclaredfeatures. Husk lacks
// UserNamespacesHostNetworkSupport, which is off in a kubelet, too.
var declaredFeatures = []string{
	"ExtendWebSocketsToKubelet", "InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers",
	"RestartAllContainersOnContainerExits",
}

// Machine describes the properties of a node that don't change while huskd runs.
type Machine struct {
	Name, Hostname string
	ProviderID     string
	Labels         map[string]string
	Taints         []corev1.Taint
	Facts          host.Facts
	Handlers       []oci.Handler
	// Capacity are the node's resources, and Allocatable those that pods can request.
	Capacity, Allocatable corev1.ResourceList
	// Swap is the size of the swap space in bytes.
	Swap int64
	// Port is the port of the kubelet API.
	Port int32
}

// Object returns the node to be registered.
func (m Machine) Object() *corev1.Node {
	out := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: labels(m.Hostname, m.Labels)},
		Spec:       corev1.NodeSpec{Taints: slices.Clone(m.Taints), ProviderID: m.ProviderID},
		Status: corev1.NodeStatus{
			Capacity: m.Capacity, Allocatable: m.Allocatable,
			DeclaredFeatures: declaredFeatures, Features: &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: m.Port}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: machineID(), SystemUUID: systemUUID("/"), BootID: m.Facts.BootID,
				KernelVersion: m.Facts.Kernel, OSImage: OSImage(), OperatingSystem: operatingSystem, Architecture: architecture,
				ContainerRuntimeVersion: "husk://" + version.Version, KubeletVersion: fitVersion(""),
			},
		},
	}
	if m.Swap > 0 {
		out.Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &m.Swap}
	}
	for _, h := range m.Handlers {
		if h.Missing != nil {
			continue
		}
		out.Status.RuntimeHandlers = append(out.Status.RuntimeHandlers, corev1.NodeRuntimeHandler{Name: h.Name, Features: &corev1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: new(m.Facts.RecursiveReadOnly), UserNamespaces: new(h.UserNamespaces),
		}})
	}
	return out
}

// firstLine returns the content of the first of the files that isn't empty. Each has one line.
func firstLine(paths ...string) string {
	for _, path := range paths {
		content, _ := os.ReadFile(path)
		if text := strings.TrimSpace(strings.TrimRight(string(content), "\x00")); text != "" {
			return text
		}
	}
	return ""
}

func machineID() string { return firstLine("/etc/machine-id", "/var/lib/dbus/machine-id") }

// systemUUID returns the UUID of the machine below root. Where firmware has no DMI tables, a device
// tree may have it. Otherwise it is the ID of the operating system's installation, so that nodes
// differ.
func systemUUID(root string) string {
	var paths []string
	for _, path := range []string{
		"sys/class/dmi/id/product_uuid", "proc/device-tree/system-id", "proc/device-tree/vm,uuid", "etc/machine-id", "var/lib/dbus/machine-id",
	} {
		paths = append(paths, filepath.Join(root, path))
	}
	return firstLine(paths...)
}

// OSImage returns the name of the distribution: see os-release(5).
func OSImage() string {
	content, _ := os.ReadFile("/etc/os-release")
	for l := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"'`)
		}
	}
	return operatingSystem
}
