package registration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

// fixture is a running Node with its server.
type fixture struct {
	*clustertest.Server
	*Node
	t *testing.T

	mu     sync.Mutex
	ready  error
	ranges []netip.Prefix
}

func start(t *testing.T) *fixture {
	t.Parallel()
	f := &fixture{Server: clustertest.New(t), t: t, ready: errors.New("no network\nyet")}
	client, err := cluster.New(f.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	machine := Machine{
		Name: "here", Hostname: "host", ProviderID: "cloud://1", Labels: map[string]string{"zone": "a"}, Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}},
		Facts: host.Facts{Kernel: "6.1", BootID: "boot"}, Port: 10250,
		Capacity:    corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")},
		Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1900m")},
		Handlers:    []oci.Handler{{}, {Name: "gone", Missing: errors.New("x")}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	f.Node = Start(ctx, Config{
		Client: client, Machine: machine.Object(), Images: func() []corev1.ContainerImage { return nil },
		IPs:    func() []string { return []string{"198.51.100.1", "2001:db8::1"} },
		Events: event.NewLog(),
		Devices: func() (capacity, allocatable corev1.ResourceList, gone []corev1.ResourceName) {
			return corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}, corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}, []corev1.ResourceName{"example.com/unplugged"}
		},
		Ready: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.ready
		},
		Pressure: func() []corev1.NodeConditionType { return []corev1.NodeConditionType{corev1.NodeDiskPressure} },
		SetRanges: func(ranges []netip.Prefix) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.ranges = ranges
			return nil
		},
	})
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		client.Close()
	})
	return f
}

// sent waits for a request that matches, and decodes its body.
func (f *fixture) sent(method, path string, into any, matches func() bool) {
	f.t.Helper()
	clustertest.Eventually(f.t, func() string {
		for _, r := range slices.Backward(f.Requests()) {
			if r.Method == method && r.Path == path && json.Unmarshal(r.Body, into) == nil && (matches == nil || matches()) {
				return ""
			}
		}
		return fmt.Sprintf("no %s %s among %s", method, path, f.Requests())
	})
}

func TestRegisters(t *testing.T) {
	f := start(t)
	var created corev1.Node
	f.sent(http.MethodPost, nodes, &created, nil)
	if created.Labels["zone"] != "a" || created.Labels[corev1.LabelHostname] != "host" || len(created.Spec.Taints) != 1 || created.Status.Capacity.Cpu().Value() != 2 || created.Status.Allocatable.Cpu().MilliValue() != 1900 || created.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 {
		t.Errorf("the node is %+v", created)
	}
	if len(created.Status.RuntimeHandlers) != 1 || len(created.Status.Addresses) != 3 ||
		!slices.IsSorted(created.Status.DeclaredFeatures) || !slices.Contains(created.Status.DeclaredFeatures, "RestartAllContainersOnContainerExits") || !*created.Status.Features.SupplementalGroupsPolicy {
		t.Errorf("its status is %+v", created.Status)
	}
	for kind, reason := range map[corev1.NodeConditionType]string{
		corev1.NodeMemoryPressure: "False KubeletHasSufficientMemory", corev1.NodeDiskPressure: "True KubeletHasDiskPressure", corev1.NodePIDPressure: "False KubeletHasSufficientPID",
	} {
		if !slices.ContainsFunc(created.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == kind && string(c.Status)+" "+c.Reason == reason }) {
			t.Errorf("condition %s isn't %s", kind, reason)
		}
	}
	// The server has the node, without its label and status.
	f.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.2.0/24"}},
	})
	var patch struct {
		Metadata metav1.ObjectMeta
		Status   struct{ Conditions []corev1.NodeCondition }
	}
	f.sent(http.MethodPatch, nodes+"/here", &patch, func() bool { return patch.Metadata.Labels["zone"] == "a" })
	ready := func(status corev1.ConditionStatus) func() bool {
		return func() bool {
			return slices.ContainsFunc(patch.Status.Conditions, func(c corev1.NodeCondition) bool {
				return c.Type == corev1.NodeReady && c.Status == status && (status == corev1.ConditionTrue || c.Message == "no network yet")
			})
		}
	}
	f.sent(http.MethodPatch, nodes+"/here/status", &patch, ready(corev1.ConditionFalse))
	var lease metav1.PartialObjectMetadata
	f.sent(http.MethodPost, leases, &lease, nil)
	if lease.Name != "here" || len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != "u" {
		t.Errorf("the lease is %+v", lease)
	}
	f.mu.Lock()
	f.ready = nil
	if len(f.ranges) != 1 || f.ranges[0].String() != "10.1.2.0/24" {
		t.Errorf("the ranges are %v", f.ranges)
	}
	f.mu.Unlock()
	f.sent(http.MethodPatch, nodes+"/here/status", &patch, ready(corev1.ConditionTrue))
	f.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.2.0/24"}, Unschedulable: true},
	})
	for _, reason := range []string{
		"Starting", "NodeHasSufficientMemory", "NodeHasDiskPressure", "NodeHasSufficientPID", "NodeNotReady", "NodeReady", "NodeNotSchedulable",
	} {
		clustertest.Eventually(t, func() string {
			events, _, _ := f.Events.After(0)
			if !slices.ContainsFunc(events, func(e event.Event) bool { return e.Reason == reason && e.Count == 1 }) {
				return fmt.Sprintf("not one event %s: %+v", reason, events)
			}
			return ""
		})
	}
	// A node that is deleted doesn't register again by itself.
	before := len(f.Requests())
	since := func(method, path string) bool {
		return slices.ContainsFunc(f.Requests()[before:], func(r clustertest.Request) bool { return r.Method == method && r.Path == path })
	}
	asked := make(chan struct{}, 1000)
	f.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet && r.URL.Path == nodes+"/here" {
			asked <- struct{}{}
		}
		return false
	})
	f.Remove(nodes, "", "here")
	for range 2 { // it asks again as long as it isn't there
		<-asked
	}
	// Somebody else registers it.
	f.Put(nodes, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "v"}})
	clustertest.Eventually(t, func() string {
		if since(http.MethodPatch, nodes+"/here/status") {
			return ""
		}
		return "the node doesn't report its status after it was registered by somebody else"
	})
	if since(http.MethodPost, nodes) {
		t.Error("the deleted node registers again")
	}
}

// TestExtendedResources has a resource that an administrator has added to the node's capacity, one
// of a device plugin, and one whose plugin has gone.
func TestExtendedResources(t *testing.T) {
	f := start(t)
	f.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"},
		Status: corev1.NodeStatus{
			Capacity:    corev1.ResourceList{"example.com/dongle": resource.MustParse("4"), corev1.ResourceCPU: resource.MustParse("64"), "nonsense": resource.MustParse("1"), "example.com/unplugged": resource.MustParse("3")},
			Allocatable: corev1.ResourceList{"example.com/former": resource.MustParse("1")},
		},
	})
	var patch struct{ Status corev1.NodeStatus }
	f.sent(http.MethodPatch, nodes+"/here/status", &patch, func() bool { return len(patch.Status.Capacity) > 0 })
	var raw struct {
		Status struct{ Allocatable map[string]any }
	}
	f.sent(http.MethodPatch, nodes+"/here/status", &raw, func() bool { return len(raw.Status.Allocatable) > 0 })
	if q, removed := raw.Status.Allocatable["example.com/former"]; !removed || q != nil {
		t.Errorf("what is no longer in the capacity stays allocatable: %v", raw.Status.Allocatable)
	}
	for what, list := range map[string]corev1.ResourceList{"capacity": patch.Status.Capacity, "allocatable": patch.Status.Allocatable} {
		dongles := list["example.com/dongle"]
		former, nonsense := list["example.com/former"], list["nonsense"]
		if dongles.Value() != 4 || !former.IsZero() || !nonsense.IsZero() || list.Cpu().Value() > 2 {
			t.Errorf("%s is %v", what, list)
		}
		gpus, unplugged := list["example.com/gpu"], list["example.com/unplugged"]
		if want := map[string]int64{"capacity": 2, "allocatable": 1}[what]; gpus.Value() != want || !unplugged.IsZero() {
			t.Errorf("%s of device plugins is %v", what, list)
		}
	}
}

// TestBadRange: a pod CIDR that can't be parsed doesn't stop the status reports.
func TestBadRange(t *testing.T) {
	f := start(t)
	f.Put(nodes, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"rubbish"}}})
	var patch map[string]any
	f.sent(http.MethodPatch, nodes+"/here/status", &patch, nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ranges != nil {
		t.Errorf("the ranges are %v", f.ranges)
	}
}

// TestRebooted: a node that is registered with another boot ID reports that it has rebooted.
func TestRebooted(t *testing.T) {
	f := start(t)
	f.Put(nodes, &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "u"},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "former"}},
	})
	clustertest.Eventually(t, func() string {
		events, _, _ := f.Events.After(0)
		if !slices.ContainsFunc(events, func(e event.Event) bool { return e.Warning && e.Reason == "Rebooted" }) {
			return fmt.Sprintf("no event: %+v", events)
		}
		return ""
	})
}
