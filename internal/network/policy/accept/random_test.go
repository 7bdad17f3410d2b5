package accept

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
)

// TestRandomWorlds compares what the policies mean once accepted with the oracle, connection by
// connection, in thousands of small random clusters.
func TestRandomWorlds(t *testing.T) {
	worlds := 4000
	if testing.Short() {
		worlds = 1000
	}
	allowed, all := 0, 0
	for seed := range worlds {
		r := random{rand.New(rand.NewPCG(uint64(seed), 13))}
		o := r.objects()
		world, _ := o.world()
		for range 80 {
			c := connection{r.address(o), r.address(o), pick(r, "TCP", "TCP", "UDP", "SCTP", "ICMP"), pick(r, ports...)}
			for strings.Contains(c.from, ":") != strings.Contains(c.to, ":") {
				c.to = r.address(o)
			}
			if c.protocol == "ICMP" {
				c.port = 0
			}
			got, want := world.Decide(c.flow()), o.allows(c)
			if got.Allowed != want {
				text, _ := yaml.Marshal(struct {
					Policies []networkingv1.NetworkPolicy
					Cluster  []ClusterNetworkPolicy
				}{o.policies, o.cluster})
				t.Fatalf("seed %d: %v: got %v, want %v\n%s\n%+v", seed, c, got.Allowed, want, text, world.Pods)
			}
			all++
			if want {
				allowed++
			}
		}
	}
	if allowed < all/4 || allowed > all*3/4 {
		t.Errorf("%d of %d connections are allowed: the worlds don't tell much", allowed, all)
	}
}

var ports = []int{80, 81, 8080, 53}

// random makes small clusters in which labels, addresses and ports often meet.
type random struct{ *rand.Rand }

func pick[T any](r random, of ...T) T { return of[r.IntN(len(of))] }

// chance returns true once in n times.
func (r random) chance(n int) bool { return r.IntN(n) == 0 }

func (r random) address(o *objects) string {
	if p := pick(r, o.pods...); !r.chance(5) {
		return pick(r, p.Status.PodIPs...).IP
	}
	return pick(r, "10.0.1.1", "10.0.1.2", "fd00::1:1", "192.0.2.1", "2001:db8::1", fmt.Sprintf("10.0.0.%d", r.IntN(16)))
}

func (r random) labels() map[string]string {
	out := map[string]string{}
	for _, key := range []string{"a", "b"} {
		if !r.chance(3) {
			out[key] = pick(r, "1", "2", "")
		}
	}
	return out
}

func (r random) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	for range r.IntN(5) / 2 {
		key := pick(r, "a", "b", "c")
		if r.chance(2) {
			s.MatchLabels = map[string]string{key: pick(r, "1", "2", "")}
			continue
		}
		e := metav1.LabelSelectorRequirement{Key: key, Operator: pick(r, metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist)}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			e.Values = pick(r, []string{"1"}, []string{"1", "2"}, []string{""}, []string{"3"})
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (r random) network() string {
	return fmt.Sprintf(pick(r, "10.0.0.%d/%d", "10.0.0.%d/%d", "10.0.1.%d/%d"), r.IntN(16), 26+r.IntN(7))
}

func (r random) objects() *objects {
	o := &objects{}
	for i := range 1 + r.IntN(3) {
		o.namespaces = append(o.namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i), Labels: r.labels()}})
	}
	for i := range 2 + r.IntN(6) {
		o.pods = append(o.pods, r.pod(i, pick(r, o.namespaces...).Name))
	}
	for i := range 2 {
		o.nodes = append(o.nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i), Labels: r.labels()}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "node"}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.1.%d", i+1)}, {Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd00::1:%d", i+1)},
		}}})
	}
	for i := range r.IntN(8) {
		o.policies = append(o.policies, r.policy(i, pick(r, o.namespaces...).Name))
	}
	for i := range r.IntN(5) {
		o.cluster = append(o.cluster, r.cluster(i))
	}
	return o
}

func (r random) pod(i int, namespace string) corev1.Pod {
	at := r.IntN(16) // so some pods have the same address
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%d", i), Labels: r.labels()}}
	p.Status.PodIPs = []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", at)}}
	if r.chance(2) {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", at)})
	}
	p.Status.Phase = pick(r, corev1.PodRunning, corev1.PodRunning, corev1.PodRunning, corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed)
	p.Status.StartTime = &metav1.Time{Time: time.Unix(int64(1000+i), 0)}
	p.Spec.HostNetwork = r.chance(10)
	for range r.IntN(3) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Ports: []corev1.ContainerPort{
			{Name: pick(r, "web", "dns", ""), Protocol: pick(r, corev1.ProtocolTCP, corev1.ProtocolUDP, ""), ContainerPort: int32(pick(r, ports...))},
		}})
	}
	return p
}

func (r random) policy(i int, namespace string) networkingv1.NetworkPolicy {
	p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("p%d", i)}}
	p.Spec.PodSelector = *r.selector()
	p.Spec.PolicyTypes = pick(r, nil, nil, []networkingv1.PolicyType{"Ingress"}, []networkingv1.PolicyType{"Egress"}, []networkingv1.PolicyType{"Egress", "Ingress"})
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: r.peers(), Ports: r.ports()})
	}
	for range r.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: r.peers(), Ports: r.ports()})
	}
	return p
}

func (r random) peers() []networkingv1.NetworkPolicyPeer {
	out := []networkingv1.NetworkPolicyPeer{}
	for range r.IntN(3) {
		out = append(out, pick(r,
			networkingv1.NetworkPolicyPeer{PodSelector: r.selector()},
			networkingv1.NetworkPolicyPeer{NamespaceSelector: r.selector()},
			networkingv1.NetworkPolicyPeer{PodSelector: r.selector(), NamespaceSelector: r.selector()},
			networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: r.network()}},
			networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/24", Except: []string{fmt.Sprintf("10.0.0.%d/%d", r.IntN(16), 26+r.IntN(7)), fmt.Sprintf("10.0.0.%d/31", r.IntN(16))}}},
			networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: pick(r, "0.0.0.0/0", "::/0", "fd00::/125")}},
		))
	}
	return out
}

func (r random) ports() []networkingv1.NetworkPolicyPort {
	var out []networkingv1.NetworkPolicyPort
	for range r.IntN(4) {
		p := networkingv1.NetworkPolicyPort{Protocol: pick(r, nil, new(corev1.ProtocolTCP), new(corev1.ProtocolUDP), new(corev1.ProtocolSCTP))}
		p.Port = pick(r, nil, new(intstr.FromInt(pick(r, ports...))), new(intstr.FromInt(pick(r, ports...))), new(intstr.FromString(pick(r, "web", "dns"))))
		if p.Port != nil && p.Port.Type == intstr.Int && r.chance(3) {
			p.EndPort = new(p.Port.IntVal + int32(r.IntN(8000)))
		}
		out = append(out, p)
	}
	return out
}

func (r random) cluster(i int) ClusterNetworkPolicy {
	p := ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", i)}}
	p.Spec = ClusterNetworkPolicySpec{Tier: pick(r, "Admin", "Baseline"), Priority: int32(r.IntN(3)), Subject: ClusterSubject{Namespaces: r.selector()}}
	if r.chance(2) {
		p.Spec.Subject = ClusterSubject{Pods: r.pods()}
	}
	for range r.IntN(3) {
		p.Spec.Ingress = append(p.Spec.Ingress, r.rule(false))
	}
	for range r.IntN(3) {
		p.Spec.Egress = append(p.Spec.Egress, r.rule(true))
	}
	return p
}

func (r random) pods() *NamespacedPods {
	return &NamespacedPods{NamespaceSelector: *r.selector(), PodSelector: *r.selector()}
}

func (r random) rule(egress bool) ClusterRule {
	out := ClusterRule{Action: pick(r, "Accept", "Deny", "Pass")}
	var peers []ClusterPeer
	named := true
	for range 1 + r.IntN(2) {
		switch {
		case r.chance(20):
			peers = append(peers, ClusterPeer{}) // of a newer API
		case egress && r.chance(20):
			peers = append(peers, ClusterPeer{DomainNames: []string{"example.com"}})
			named = false
		case egress && r.chance(4):
			peers = append(peers, ClusterPeer{Nodes: r.selector()})
			named = false
		case egress && r.chance(3):
			peers = append(peers, ClusterPeer{Networks: []string{r.network(), pick(r, r.network(), "::/0", "fd00::/125")}})
			named = false
		case r.chance(2):
			peers = append(peers, ClusterPeer{Namespaces: r.selector()})
		default:
			peers = append(peers, ClusterPeer{Pods: r.pods()})
		}
	}
	if egress {
		out.To = peers
	} else {
		out.From = peers
	}
	for range r.IntN(3) {
		port := &ClusterPorts{DestinationPort: &ClusterPort{Number: int32(pick(r, ports...))}}
		if r.chance(2) {
			start := int32(pick(r, ports...))
			port = &ClusterPorts{DestinationPort: &ClusterPort{Range: &ClusterPortRange{Start: start, End: start + 1 + int32(r.IntN(8000))}}}
		}
		protocol := pick(r, ClusterProtocol{TCP: port}, ClusterProtocol{UDP: port}, ClusterProtocol{SCTP: port})
		if named && r.chance(3) {
			protocol = ClusterProtocol{DestinationNamedPort: pick(r, "web", "dns")}
		}
		if r.chance(20) {
			protocol = ClusterProtocol{} // of a newer API
		}
		out.Protocols = append(out.Protocols, protocol)
	}
	return out
}
