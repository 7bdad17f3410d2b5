// Package registration registers this node with an API server and says, as long as
// huskd runs, that it is there and how it is.
package registration

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/cluster"
)

// The times are the kubelet's: a cluster's controllers count on them.
const (
	leaseSeconds = 40
	renewal      = 10 * time.Second // of the lease, and of looking how the node is
	report       = 5 * time.Minute  // of a status that hasn't changed
	retry        = time.Second
)

const (
	nodes          = "/api/v1/nodes"
	leases         = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
	statusResource = "/status"
)

// Config is what a node says of itself.
type Config struct {
	Client *cluster.Client
	// Machine is what doesn't change while huskd runs: name, labels, taints,
	// capacity, what runs on it.
	Machine *corev1.Node
	// IPs are the node's addresses now, the primary one first, and Images those
	// that it has.
	IPs    func() []string
	Images func() []corev1.ContainerImage
	// Ready says why no pod can be started, or nothing.
	Ready func(context.Context) error
	// SetRanges is told the addresses that the cluster has for the node's pods.
	SetRanges func([]netip.Prefix) error
}

// Node is this node.
type Node struct {
	Config
	mirror  *cluster.Cache[*corev1.Node]
	changed chan struct{}
	now     atomic.Pointer[corev1.Node]

	reported time.Time // when the server was last told the status
	ranges   []string
}

// Start begins to follow what the server has of the node.
func Start(ctx context.Context, cfg Config) *Node {
	n := &Node{Config: cfg, changed: make(chan struct{}, 1)}
	n.now.Store(cfg.Machine)
	n.mirror = cluster.Watch[*corev1.Node](ctx, cfg.Client, cluster.List{
		Path: nodes, Fields: "metadata.name=" + cfg.Machine.Name, Item: &corev1.Node{}, List: &corev1.NodeList{},
	}, func() {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	})
	return n
}

// Object is the node as it is registered or, before it is, as it will be.
func (n *Node) Object() *corev1.Node { return n.now.Load() }

func (n *Node) path() string { return nodes + "/" + n.Machine.Name }

// Run registers the node and keeps its lease and status, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	beat := time.NewTicker(renewal)
	defer beat.Stop()
	for {
		err := n.look(ctx)
		n.Client.LogOnce("this node", err)
		var soon <-chan time.Time
		if err != nil || !n.isReady() {
			soon = time.After(retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			n.Client.LogOnce("this node's lease", n.renew(ctx))
		case <-n.changed:
		case <-soon:
		}
	}
}

func (n *Node) isReady() bool {
	return slices.ContainsFunc(n.Object().Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// look has the server know the node as it is.
func (n *Node) look(ctx context.Context) error {
	if !n.mirror.Synced() {
		return nil
	}
	registered, ok := n.mirror.Get("", n.Machine.Name)
	if !ok {
		return n.register(ctx)
	}
	first := n.Object().UID != registered.UID
	n.now.Store(registered)
	if err := n.label(ctx, registered); err != nil {
		return err
	}
	if err := n.tell(ctx, registered); err != nil {
		return err
	}
	if err := n.takeRanges(registered); err != nil {
		return err
	}
	if first {
		return n.renew(ctx)
	}
	return nil
}

// register creates the node on the server.
func (n *Node) register(ctx context.Context) error {
	object := n.Machine.DeepCopy()
	object.Status = n.status(ctx, object)
	if err := n.Client.Create(ctx, nodes, object); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// label has the registered node have the labels of this one, beside those that
// others gave it.
func (n *Node) label(ctx context.Context, registered *corev1.Node) error {
	missing := map[string]string{}
	for key, value := range n.Machine.Labels {
		if has, ok := registered.Labels[key]; !ok || has != value {
			missing[key] = value
		}
	}
	if len(missing) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": missing}})
	if err != nil {
		return err
	}
	return n.Client.Patch(ctx, n.path(), patch, &corev1.Node{})
}

// tell has the server know the node's status, if it is another or it was told
// long ago.
func (n *Node) tell(ctx context.Context, registered *corev1.Node) error {
	status := n.status(ctx, registered)
	if same(&registered.Status, &status) && time.Since(n.reported) < report {
		return nil
	}
	patch, err := statusPatch(status)
	if err != nil {
		return err
	}
	if err := n.Client.Patch(ctx, n.path()+statusResource, patch, &corev1.Node{}); err != nil {
		return err
	}
	n.reported = time.Now()
	return nil
}

// same says whether two statuses are alike but for when they were told.
func same(has, want *corev1.NodeStatus) bool {
	for _, w := range want.Conditions {
		if !slices.ContainsFunc(has.Conditions, func(h corev1.NodeCondition) bool {
			h.LastHeartbeatTime = w.LastHeartbeatTime
			return equality.Semantic.DeepEqual(h, w)
		}) {
			return false
		}
	}
	return equality.Semantic.DeepEqual(has.Capacity, want.Capacity) && equality.Semantic.DeepEqual(has.Allocatable, want.Allocatable) &&
		equality.Semantic.DeepEqual(has.Addresses, want.Addresses) && has.DaemonEndpoints == want.DaemonEndpoints &&
		equality.Semantic.DeepEqual(has.NodeInfo, want.NodeInfo) && equality.Semantic.DeepEqual(has.Images, want.Images) &&
		equality.Semantic.DeepEqual(has.RuntimeHandlers, want.RuntimeHandlers)
}

// statusPatch replaces what is the node's to say. Conditions of others stay:
// they are merged by their types. Addresses would be too, and there are two of
// one type.
func statusPatch(s corev1.NodeStatus) ([]byte, error) {
	addresses := []any{map[string]string{"$patch": "replace"}}
	for _, a := range s.Addresses {
		addresses = append(addresses, a)
	}
	return json.Marshal(map[string]any{"status": map[string]any{
		"capacity": s.Capacity, "allocatable": s.Allocatable, "conditions": s.Conditions, "addresses": addresses,
		"daemonEndpoints": s.DaemonEndpoints, "nodeInfo": s.NodeInfo, "images": s.Images, "runtimeHandlers": s.RuntimeHandlers,
	}})
}

// status is how the node is now.
func (n *Node) status(ctx context.Context, registered *corev1.Node) corev1.NodeStatus {
	s := *n.Machine.Status.DeepCopy()
	for _, ip := range n.IPs() {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Machine.Labels[corev1.LabelHostname]})
	s.Images = n.Images()
	now := metav1.Now().Rfc3339Copy()
	set := func(of corev1.NodeConditionType, is bool, reason, message string) {
		c := corev1.NodeCondition{Type: of, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if is {
			c.Status = corev1.ConditionTrue
		}
		for _, last := range registered.Status.Conditions {
			if last.Type == of && last.Status == c.Status {
				c.LastTransitionTime = last.LastTransitionTime
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	set(corev1.NodeMemoryPressure, false, "KubeletHasSufficientMemory", "no pod is evicted for want of memory")
	set(corev1.NodeDiskPressure, false, "KubeletHasNoDiskPressure", "no pod is evicted for want of disk")
	set(corev1.NodePIDPressure, false, "KubeletHasSufficientPID", "no pod is evicted for want of process IDs")
	if err := n.Ready(ctx); err != nil {
		set(corev1.NodeReady, false, "KubeletNotReady", cluster.OneLine(err))
	} else {
		set(corev1.NodeReady, true, "KubeletReady", "huskd takes pods")
	}
	return s
}

// takeRanges takes the addresses that the cluster has for the node's pods.
func (n *Node) takeRanges(registered *corev1.Node) error {
	cidrs := registered.Spec.PodCIDRs
	if len(cidrs) == 0 || slices.Equal(cidrs, n.ranges) {
		return nil
	}
	var ranges []netip.Prefix
	for _, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("its pod CIDR %q is not a prefix such as 10.201.0.0/24", cidr)
		}
		ranges = append(ranges, p.Masked())
	}
	if err := n.SetRanges(ranges); err != nil {
		return err
	}
	n.ranges = slices.Clone(cidrs)
	return nil
}

// renew renews the lease by which the cluster knows that the node is there.
func (n *Node) renew(ctx context.Context) error {
	node := n.Object()
	if node.UID == "" {
		return nil // not registered yet
	}
	path := leases + "/" + node.Name
	var lease coordinationv1.Lease
	err := n.Client.Get(ctx, path, &lease)
	fresh := apierrors.IsNotFound(err)
	if err != nil && !fresh {
		return err
	}
	lease.Name, lease.Namespace = node.Name, corev1.NamespaceNodeLease
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	now := metav1.NowMicro()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &node.Name, new(int32(leaseSeconds)), &now
	if fresh {
		return n.Client.Create(ctx, leases, &lease)
	}
	if err := n.Client.Update(ctx, path, &lease); !apierrors.IsConflict(err) {
		return err
	}
	return nil // somebody was quicker; the next renewal comes in time
}

// labels are those that every node of a cluster has, and the given ones.
func labels(hostname string, more map[string]string) map[string]string {
	out := map[string]string{
		corev1.LabelHostname: hostname, corev1.LabelOSStable: operatingSystem, corev1.LabelArchStable: architecture,
		"beta.kubernetes.io/os": operatingSystem, "beta.kubernetes.io/arch": architecture,
	}
	maps.Copy(out, more)
	return out
}
