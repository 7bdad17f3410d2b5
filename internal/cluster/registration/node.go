// Package registration registers this node with an API server, and keeps its lease and status up to
// date while huskd runs.
package registration

import (
	"context"
	"encoding/json"
	"errors"
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

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/remedy"
)

// The times are the kubelet's: a cluster's controllers rely on them.
const (
	leaseSeconds = 40
	renewTime    = 10 * time.Second // between renewals of the lease, and checks of the node
	reportTime   = 5 * time.Minute  // between reports of an unchanged status
	retryTime    = time.Second
)

// huskLabel marks nodes of Husk, for pods that need what Husk doesn't support.
const huskLabel = remedy.NodeLabel

const (
	nodes          = "/api/v1/nodes"
	leases         = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"
	statusResource = "/status"
)

// Config configures a Node.
type Config struct {
	Client *cluster.Client
	// Machine holds the properties that don't change while huskd runs, such as name, labels, taints
	// and capacity.
	Machine *corev1.Node
	// IPs returns the node's current addresses, the primary one first.
	IPs func() []string
	// Images returns the node's images.
	Images func() []corev1.ContainerImage
	// Ready returns why no pod can be started, or nil.
	Ready func(context.Context) error
	// Pressure returns the pressures that the node is under.
	Pressure func() []corev1.NodeConditionType
	// Devices, if set, returns the resources that device plugins have added to the node, and those
	// that they no longer add.
	Devices func() (capacity, allocatable corev1.ResourceList, gone []corev1.ResourceName)
	// Events takes the events of the node.
	Events *event.Log
	// SetRanges sets the addresses that the cluster assigns to the node's pods.
	SetRanges func([]netip.Prefix) error
}

// Node is this node.
type Node struct {
	Config
	registered *cluster.Cache[*corev1.Node] // the server's list of this one node
	changed    chan struct{}
	now        atomic.Pointer[corev1.Node]

	// Invariant: only Run uses the fields below.
	reported time.Time                                           // when the status was last reported
	version  string                                              // of the server, and
	asked    time.Time                                           // when it was asked for
	told     map[corev1.NodeConditionType]corev1.ConditionStatus // the conditions that an event was about
	ranges   []string
	lease    *coordinationv1.Lease // as the server answered the last renewal, or nil
	deleted  bool                  // from the cluster, after it was registered
}

// Start starts watching the node on the server.
func Start(ctx context.Context, cfg Config) *Node {
	n := &Node{Config: cfg, changed: make(chan struct{}, 1), told: map[corev1.NodeConditionType]corev1.ConditionStatus{}}
	n.now.Store(cfg.Machine)
	n.registered = cluster.Watch[*corev1.Node](ctx, cfg.Client, cluster.List{
		Path: nodes, Fields: "metadata.name=" + cfg.Machine.Name, Item: &corev1.Node{}, List: &corev1.NodeList{},
	}, n.Nudge)
	return n
}

// Nudge reports the node's status soon, because it has changed.
func (n *Node) Nudge() {
	select {
	case n.changed <- struct{}{}:
	default:
	}
}

// Object returns the node as it is registered or, before that, as it will be.
func (n *Node) Object() *corev1.Node { return n.now.Load() }

func (n *Node) path() string { return nodes + "/" + n.Machine.Name }

// Run registers the node and keeps its lease and status, until ctx ends.
func (n *Node) Run(ctx context.Context) error {
	n.event(false, "Starting", "Starting kubelet.")
	ticker := time.NewTicker(renewTime)
	defer ticker.Stop()
	for {
		err := n.sync(ctx)
		n.Client.LogOnce("this node", err)
		var retry <-chan time.Time
		if err != nil || !n.isReady() {
			retry = time.After(retryTime)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			n.Client.LogOnce("this node's lease", n.renew(ctx))
		case <-n.changed:
		case <-retry:
		}
	}
}

func (n *Node) isReady() bool {
	return slices.ContainsFunc(n.Object().Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// sync updates the node on the server, and takes over the cluster's addresses for pods.
func (n *Node) sync(ctx context.Context) error {
	if !n.registered.Synced() {
		return nil
	}
	registered, ok := n.registered.Get("", n.Machine.Name)
	if !ok {
		if n.Object().UID != "" {
			return n.checkDeleted(ctx)
		}
		return n.register(ctx)
	}
	n.deleted = false
	last := n.Object()
	first := last.UID != registered.UID
	n.now.Store(registered)
	switch boot := n.Machine.Status.NodeInfo.BootID; {
	case !first && last.Spec.Unschedulable != registered.Spec.Unschedulable:
		n.event(false, map[bool]string{true: "NodeNotSchedulable", false: "NodeSchedulable"}[registered.Spec.Unschedulable], "")
	case first && registered.Status.NodeInfo.BootID != "" && registered.Status.NodeInfo.BootID != boot:
		n.event(true, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", n.Machine.Name, boot))
	}
	if err := n.label(ctx, registered); err != nil {
		return err
	}
	if err := n.reportStatus(ctx, registered); err != nil {
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

// errDeleted is why a node isn't registered.
var errDeleted = errors.New("the node was deleted from the cluster: restart huskd to register it again")

// checkDeleted asks the server whether a node that was registered is gone: a list may be older than
// the registration. As with a kubelet, a node that was deleted comes back only when huskd starts
// again. Otherwise it would take pods again while it is being removed, even if it was cordoned.
func (n *Node) checkDeleted(ctx context.Context) error {
	err := n.Client.Get(ctx, n.path(), &corev1.Node{})
	if apierrors.IsNotFound(err) {
		n.deleted = true
		return errDeleted
	}
	return err
}

// register creates the node on the server.
func (n *Node) register(ctx context.Context) error {
	object := n.Machine.DeepCopy()
	object.Status = n.status(ctx, object)
	if err := n.Client.Create(ctx, nodes, object); err != nil {
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	}
	n.tell(&corev1.Node{}, object.Status)
	return nil
}

// label adds this node's labels to the registered node. It keeps those that others have set.
func (n *Node) label(ctx context.Context, registered *corev1.Node) error {
	missing := map[string]string{}
	for key, value := range n.Machine.Labels {
		if registered, ok := registered.Labels[key]; !ok || registered != value {
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

// reportStatus reports the node's status if it has changed, or if the last report is old.
func (n *Node) reportStatus(ctx context.Context, registered *corev1.Node) error {
	status := n.status(ctx, registered)
	if same(&registered.Status, &status) && time.Since(n.reported) < reportTime {
		return nil
	}
	patch, err := statusPatch(status, &registered.Status)
	if err != nil {
		return err
	}
	if err := n.Client.Patch(ctx, n.path()+statusResource, patch, &corev1.Node{}); err != nil {
		return err
	}
	n.reported = time.Now()
	n.tell(registered, status)
	return nil
}

// conditionEvents are the reasons of the events for the conditions that are met and for those that
// aren't, as the kubelet has them.
var conditionEvents = map[corev1.NodeConditionType]map[corev1.ConditionStatus]string{
	corev1.NodeReady:          {corev1.ConditionTrue: "NodeReady", corev1.ConditionFalse: "NodeNotReady"},
	corev1.NodeMemoryPressure: {corev1.ConditionTrue: "NodeHasInsufficientMemory", corev1.ConditionFalse: "NodeHasSufficientMemory"},
	corev1.NodeDiskPressure:   {corev1.ConditionTrue: "NodeHasDiskPressure", corev1.ConditionFalse: "NodeHasNoDiskPressure"},
	corev1.NodePIDPressure:    {corev1.ConditionTrue: "NodeHasInsufficientPID", corev1.ConditionFalse: "NodeHasSufficientPID"},
}

// tell adds an event for each condition that differs from the registered one.
func (n *Node) tell(registered *corev1.Node, status corev1.NodeStatus) {
	for _, c := range status.Conditions {
		known := slices.ContainsFunc(registered.Status.Conditions, func(r corev1.NodeCondition) bool { return r.Type == c.Type && r.Status == c.Status })
		if !known && n.told[c.Type] != c.Status {
			n.event(false, conditionEvents[c.Type][c.Status], "")
		}
		n.told[c.Type] = c.Status
	}
}

// event adds an event of the node. Without a message, it has the kubelet's for a new condition.
func (n *Node) event(warning bool, reason, message string) {
	if message == "" {
		message = fmt.Sprintf("Node %s status is now: %s", n.Machine.Name, reason)
	}
	n.Events.Add(event.Event{Warning: warning, Reason: reason, Message: message})
}

// same reports whether two statuses are equal apart from their heartbeat times, and from features,
// which don't change and which an older server drops.
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

// statusPatch returns a patch that replaces the parts of the status for which the node is
// responsible. The server merges conditions by type, so those of others stay. It would merge
// addresses by type too, but there may be two of one type, so they are replaced.
func statusPatch(s corev1.NodeStatus, registered *corev1.NodeStatus) ([]byte, error) {
	addresses := []any{map[string]string{"$patch": "replace"}}
	for _, a := range s.Addresses {
		addresses = append(addresses, a)
	}
	return json.Marshal(map[string]any{"status": map[string]any{
		"capacity": replacing(registered.Capacity, s.Capacity), "allocatable": replacing(registered.Allocatable, s.Allocatable), "conditions": s.Conditions, "addresses": addresses,
		"daemonEndpoints": s.DaemonEndpoints, "nodeInfo": s.NodeInfo, "images": s.Images, "runtimeHandlers": s.RuntimeHandlers,
		"features": s.Features, "declaredFeatures": s.DeclaredFeatures,
	}})
}

// pressures are the conditions of a node that runs short of something, with the kubelet's reasons.
var pressures = []struct {
	condition              corev1.NodeConditionType
	reason, noReason, lack string
}{
	{corev1.NodeMemoryPressure, "KubeletHasInsufficientMemory", "KubeletHasSufficientMemory", "memory"},
	{corev1.NodeDiskPressure, "KubeletHasDiskPressure", "KubeletHasNoDiskPressure", "disk space"},
	{corev1.NodePIDPressure, "KubeletHasInsufficientPID", "KubeletHasSufficientPID", "process IDs"},
}

// status returns the node's current status.
func (n *Node) status(ctx context.Context, registered *corev1.Node) corev1.NodeStatus {
	s := *n.Machine.Status.DeepCopy()
	keepExtended(&s, registered.Status.Capacity)
	if n.Devices != nil {
		capacity, allocatable, gone := n.Devices()
		for _, name := range gone {
			delete(s.Capacity, name)
			delete(s.Allocatable, name)
		}
		maps.Copy(s.Capacity, capacity)
		maps.Copy(s.Allocatable, allocatable)
	}
	s.NodeInfo.KubeletVersion = fitVersion(n.serverVersion(ctx))
	for _, ip := range n.IPs() {
		s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	s.Addresses = append(s.Addresses, corev1.NodeAddress{Type: corev1.NodeHostName, Address: n.Machine.Labels[corev1.LabelHostname]})
	s.Images = n.Images()
	now := metav1.Now().Rfc3339Copy()
	set := func(kind corev1.NodeConditionType, value bool, reason, message string) {
		c := corev1.NodeCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
		if value {
			c.Status = corev1.ConditionTrue
		}
		for _, last := range registered.Status.Conditions {
			if last.Type == kind && last.Status == c.Status {
				c.LastTransitionTime = last.LastTransitionTime
			}
		}
		s.Conditions = append(s.Conditions, c)
	}
	under := n.Pressure()
	for _, p := range pressures {
		if slices.Contains(under, p.condition) {
			set(p.condition, true, p.reason, "the node is short of "+p.lack)
		} else {
			set(p.condition, false, p.noReason, "the node has enough "+p.lack)
		}
	}
	if err := n.Ready(ctx); err != nil {
		set(corev1.NodeReady, false, "KubeletNotReady", cluster.OneLine(err))
	} else {
		set(corev1.NodeReady, true, "KubeletReady", "huskd accepts pods")
	}
	return s
}

// replacing returns a patch that makes the resources exactly those of now: the server would keep
// others.
func replacing(before, now corev1.ResourceList) map[corev1.ResourceName]any {
	out := map[corev1.ResourceName]any{}
	for name := range before {
		out[name] = nil
	}
	for name, q := range now {
		out[name] = q
	}
	return out
}

// keepExtended adds the extended resources that others have added to the node's capacity. As with
// a kubelet, pods can request all of them.
func keepExtended(s *corev1.NodeStatus, registered corev1.ResourceList) {
	for name, q := range registered {
		if _, own := s.Capacity[name]; !own && manifest.IsExtended(name) {
			s.Capacity[name], s.Allocatable[name] = q.DeepCopy(), q.DeepCopy()
		}
	}
}

// takeRanges passes on the addresses that the cluster assigns to the node's pods.
func (n *Node) takeRanges(registered *corev1.Node) error {
	cidrs := registered.Spec.PodCIDRs
	if len(cidrs) == 0 || slices.Equal(cidrs, n.ranges) {
		return nil
	}
	var ranges []netip.Prefix
	for _, cidr := range cidrs {
		p, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("pod CIDR %q is not a prefix such as 10.201.0.0/24", cidr)
		}
		ranges = append(ranges, p.Masked())
	}
	if err := n.SetRanges(ranges); err != nil {
		return err
	}
	n.ranges = slices.Clone(cidrs)
	return nil
}

// renew renews the lease by which the cluster knows that the node is alive. It updates the lease
// that the server answered last, and reads it only if there is none or it isn't the server's any
// more: every node renews all the time.
func (n *Node) renew(ctx context.Context) error {
	node := n.Object()
	if node.UID == "" || n.deleted {
		return nil // not registered
	}
	path := leases + "/" + node.Name
	if n.lease != nil {
		err := n.Client.Update(ctx, path, hold(n.lease, node))
		if err == nil {
			return nil
		}
		if n.lease = nil; !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return err
		}
	}
	var lease coordinationv1.Lease
	err := n.Client.Get(ctx, path, &lease)
	switch {
	case apierrors.IsNotFound(err):
		err = n.Client.Create(ctx, leases, hold(&lease, node))
	case err == nil:
		err = n.Client.Update(ctx, path, hold(&lease, node))
	}
	if err == nil {
		n.lease = &lease
	}
	if apierrors.IsConflict(err) {
		return nil // another write came first; the next renewal is in time
	}
	return err
}

// hold makes a lease the node's from now on.
func hold(lease *coordinationv1.Lease, node *corev1.Node) *coordinationv1.Lease {
	lease.Name, lease.Namespace = node.Name, corev1.NamespaceNodeLease
	lease.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	now := metav1.NowMicro()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds, lease.Spec.RenewTime = &node.Name, new(int32(leaseSeconds)), &now
	return lease
}

// labels returns the labels that every node has, and the given ones.
func labels(hostname string, more map[string]string) map[string]string {
	out := map[string]string{
		corev1.LabelHostname: hostname, corev1.LabelOSStable: operatingSystem, corev1.LabelArchStable: architecture,
		"beta.kubernetes.io/os": operatingSystem, "beta.kubernetes.io/arch": architecture,
		huskLabel: "true",
	}
	maps.Copy(out, more)
	return out
}
