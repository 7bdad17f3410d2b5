package registration

import (
	"os"
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

	// kubeletVersion is the version of Kubernetes whose API is used here. Controllers check whether a
	// node is too old for a feature.
	kubeletVersion = "v1.37.2"
)

// declaredFeatures are those of Husk that the API server lets pods use only on nodes that declare
// them, sorted. See k8s.io/component-helpers/nodedeclaredfeatures.
var declaredFeatures = []string{"InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"}

// Machine describes the properties of a node that don't change while huskd runs.
type Machine struct {
	Name, Hostname string
	Labels         map[string]string
	Taints         []corev1.Taint
	Facts          host.Facts
	Handlers       []oci.Handler
	// Capacity are the node's resources, and Allocatable those that pods can request.
	Capacity, Allocatable corev1.ResourceList
	// Port is the port of the kubelet API.
	Port int32
}

// Object returns the node to be registered.
func (m Machine) Object() *corev1.Node {
	out := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: m.Name, Labels: labels(m.Hostname, m.Labels)},
		Spec:       corev1.NodeSpec{Taints: slices.Clone(m.Taints)},
		Status: corev1.NodeStatus{
			Capacity: m.Capacity, Allocatable: m.Allocatable,
			DeclaredFeatures: declaredFeatures, Features: &corev1.NodeFeatures{SupplementalGroupsPolicy: new(true)},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: m.Port}},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: line("/etc/machine-id"), SystemUUID: line("/sys/class/dmi/id/product_uuid"), BootID: m.Facts.BootID,
				KernelVersion: m.Facts.Kernel, OSImage: osImage(), OperatingSystem: operatingSystem, Architecture: architecture,
				ContainerRuntimeVersion: "husk://" + version.Version, KubeletVersion: kubeletVersion,
			},
		},
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

// line returns the content of a file of one line, or "" if it can't be read.
func line(path string) string {
	content, _ := os.ReadFile(path)
	return strings.TrimSpace(string(content))
}

// osImage returns the name of the distribution: see os-release(5).
func osImage() string {
	content, _ := os.ReadFile("/etc/os-release")
	for l := range strings.Lines(string(content)) {
		if name, ok := strings.CutPrefix(l, "PRETTY_NAME="); ok {
			return strings.Trim(strings.TrimSpace(name), `"'`)
		}
	}
	return operatingSystem
}
