package accept

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// nine returns a cluster of the namespaces x, y and z, whose label ns is their name, with a pod a,
// b and c each, whose label pod is its name. They serve 80 and 81 by TCP, UDP and SCTP, under names
// such as serve-80-tcp. There is a node, a pod with its network, and a pod that has finished.
func nine() *objects {
	o := &objects{}
	for i, namespace := range []string{"x", "y", "z"} {
		o.namespaces = append(o.namespaces, corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"ns": namespace, corev1.LabelMetadataName: namespace}}})
		for j, name := range []string{"a", "b", "c"} {
			p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"pod": name}}}
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Unix(1, 0)}, PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.%d.%d", i+1, j+1)}, {IP: fmt.Sprintf("fd00::%d:%d", i+1, j+1)}}}
			c := corev1.Container{}
			for _, port := range []int32{80, 81} {
				for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP} {
					c.Ports = append(c.Ports, corev1.ContainerPort{Name: fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(protocol))), Protocol: protocol, ContainerPort: port})
				}
			}
			p.Spec.Containers = []corev1.Container{c}
			o.pods = append(o.pods, p)
		}
	}
	node := o.pods[0].DeepCopy()
	node.Name, node.Spec.HostNetwork, node.Status.PodIPs = "node", true, []corev1.PodIP{{IP: "192.0.2.10"}}
	over := o.pods[0].DeepCopy()
	over.Name, over.Status.Phase, over.Status.PodIPs = "over", corev1.PodSucceeded, []corev1.PodIP{{IP: "10.0.1.9"}}
	o.pods = append(o.pods, *node, *over)
	o.nodes = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "1"}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}}}}
	return o
}

// TestDocumented has a row for each behaviour that the documentation of the API describes, and for
// each case of Kubernetes' end-to-end tests. Both the oracle and the accepted policies must say the
// same. Policies without a namespace are in x.
func TestDocumented(t *testing.T) {
	const np, cnp = "kind: NetworkPolicy\nspec: ", "kind: ClusterNetworkPolicy\nspec: "
	const all = "subject: {namespaces: {}}"
	for name, c := range map[string]struct{ policies, yes, no string }{
		"no policy": {``, `x/a > y/b TCP/80, 192.0.2.1 > x/a UDP/1, x/a > 192.0.2.1 ICMP/0`, ``},

		// Isolation.
		"default deny of ingress":             {np + `{podSelector: {}, policyTypes: [Ingress]}`, `x/a > y/a TCP/80, y/a > y/b TCP/80, x/a > x/a TCP/80`, `y/a > x/a TCP/80, x/a > x/b TCP/80, 192.0.2.1 > x/a TCP/80, y/a > x/a ICMP/0, y/a6 > x/a6 TCP/80`},
		"default deny of egress":              {np + `{podSelector: {}, policyTypes: [Egress]}`, `y/a > x/a TCP/80, x/a > x/a TCP/80`, `x/a > y/a TCP/80, x/a > x/b TCP/80, x/a > 192.0.2.1 UDP/53`},
		"default deny of all":                 {np + `{podSelector: {}, policyTypes: [Ingress, Egress]}`, `y/a > z/a TCP/80`, `x/a > y/a TCP/80, y/a > x/a TCP/80`},
		"allow all ingress":                   {np + `{podSelector: {}, ingress: [{}]}`, `y/a > x/a TCP/80, 192.0.2.1 > x/a SCTP/7, y/a > x/a ICMP/0`, ``},
		"allow all egress":                    {np + `{podSelector: {}, egress: [{}], policyTypes: [Egress]}`, `x/a > y/a TCP/80, x/a > 192.0.2.1 SCTP/7`, ``},
		"without a type, ingress is isolated": {np + `{podSelector: {}, egress: [{}]}`, `x/a > y/a TCP/80`, `y/a > x/a TCP/80`},
		"egress rules need the type":          {np + `{podSelector: {}, policyTypes: [Ingress], egress: [{to: [{podSelector: {}}]}]}`, `x/a > y/a TCP/80`, `y/a > x/a TCP/80`},
		"only the selected pods":              {np + `{podSelector: {matchLabels: {pod: a}}}`, `y/a > x/b TCP/80`, `y/a > x/a TCP/80`},
		"policies add up":                     {np + `{}` + "\n---\n" + np + `{podSelector: {matchLabels: {pod: a}}, ingress: [{}]}`, `y/a > x/a TCP/80`, `y/a > x/b TCP/80`},
		"both ends decide":                    {np + `{policyTypes: [Egress]}` + "\n---\nmetadata: {namespace: 'y'}\n" + np + `{ingress: [{}]}`, `z/a > y/a TCP/80`, `x/a > y/a TCP/80`},
		"directions are independent":          {np + `{policyTypes: [Ingress, Egress], ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}], egress: [{to: [{namespaceSelector: {matchLabels: {ns: z}}}]}]}`, `y/a > x/a TCP/80, x/a > z/a TCP/80`, `x/a > y/a TCP/80, z/a > x/a TCP/80`},

		// Peers.
		"podSelector is of the namespace": {np + `{ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}]}]}`, `x/b > x/a TCP/80`, `y/b > x/a TCP/80, x/c > x/a TCP/80`},
		"an empty podSelector as well":    {np + `{ingress: [{from: [{podSelector: {}}]}]}`, `x/b > x/a TCP/80`, `y/b > x/a TCP/80`},
		"an empty namespaceSelector":      {np + `{ingress: [{from: [{namespaceSelector: {}}]}]}`, `y/b > x/a TCP/80`, `192.0.2.1 > x/a TCP/80`},
		"namespaceSelector":               {np + `{ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`, `y/b > x/a TCP/80`, `x/b > x/a TCP/80, z/b > x/a TCP/80`},
		"its expressions":                 {np + `{ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x, z]}]}}]}]}`, `y/b > x/a TCP/80`, `x/b > x/a TCP/80, z/b > x/a TCP/80`},
		"podSelector's expressions":       {np + `{ingress: [{from: [{podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, d]}]}}]}]}`, `x/b > x/a TCP/80`, `x/c > x/a TCP/80`},
		"the label of the name":           {np + `{ingress: [{from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: "y"}}}]}]}`, `y/b > x/a TCP/80`, `z/b > x/a TCP/80`},
		"not the label of the name":       {np + `{policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchExpressions: [{key: kubernetes.io/metadata.name, operator: NotIn, values: ["y"]}]}}]}]}`, `x/a > z/b TCP/80`, `x/a > y/b TCP/80`},
		"one item with both":              {np + `{ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: b}}}]}]}`, `y/b > x/a TCP/80`, `y/a > x/a TCP/80, z/b > x/a TCP/80, x/b > x/a TCP/80`},
		"two items":                       {np + `{ingress: [{from: [{namespaceSelector: {matchLabels: {ns: "y"}}}, {podSelector: {matchLabels: {pod: b}}}]}]}`, `y/a > x/a TCP/80, x/b > x/a TCP/80`, `z/b > x/a TCP/80, x/c > x/a TCP/80`},
		"both with expressions":           {np + `{ingress: [{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x]}]}, podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, c]}]}}]}]}`, `y/b > x/a TCP/80, z/c > x/a TCP/80`, `y/a > x/a TCP/80, x/b > x/a TCP/80`},
		"egress to both":                  {np + `{policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: "y"}}, podSelector: {matchLabels: {pod: a}}}]}]}`, `x/a > y/a TCP/80`, `x/a > y/b TCP/80, x/a > z/a TCP/80`},
		"a network":                       {np + `{policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.2.1/32}}]}]}`, `x/a > y/a TCP/80`, `x/a > y/b TCP/80, x/a6 > y/a6 TCP/80`},
		"except":                          {np + `{policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.2.0/24, except: [10.0.2.1/32]}}]}]}`, `x/a > y/b TCP/80`, `x/a > y/a TCP/80`},
		"except of one, in another":       {np + `{policyTypes: [Egress], egress: [{to: [{ipBlock: {cidr: 10.0.2.0/24, except: [10.0.2.1/32]}}, {ipBlock: {cidr: 10.0.2.1/32}}]}]}`, `x/a > y/b TCP/80, x/a > y/a TCP/80`, `x/a > z/a TCP/80`},
		"a network of IPv6":               {np + `{ingress: [{from: [{ipBlock: {cidr: "fd00::2:0/112", except: ["fd00::2:2/128"]}}]}]}`, `y/a6 > x/a6 TCP/80`, `y/b6 > x/a6 TCP/80, z/a6 > x/a6 TCP/80, y/a > x/a TCP/80`},
		"everything of IPv4":              {np + `{ingress: [{from: [{ipBlock: {cidr: 0.0.0.0/0}}]}]}`, `y/a > x/a TCP/80, 192.0.2.1 > x/a TCP/80`, `y/a6 > x/a6 TCP/80`},
		"the node's address":              {np + `{ingress: [{from: [{ipBlock: {cidr: 192.0.2.10/32}}]}]}`, `192.0.2.10 > x/a TCP/80`, `192.0.2.1 > x/a TCP/80`},
		"pods on the node's network":      {np + `{ingress: [{from: [{namespaceSelector: {}}]}]}`, `y/a > x/a TCP/80, x/a > 192.0.2.10 TCP/80`, `192.0.2.10 > x/a TCP/80`},
		"they aren't isolated":            {np + `{policyTypes: [Ingress, Egress]}`, `192.0.2.10 > y/a TCP/80, y/a > 192.0.2.10 TCP/80`, ``},
		"the address of a finished pod":   {np + `{ingress: [{from: [{podSelector: {}}]}]}`, `y/a > 10.0.1.9 TCP/80`, `10.0.1.9 > x/a TCP/80`},

		// Ports.
		"a port":                        {np + `{ingress: [{ports: [{port: 80}]}]}`, `y/a > x/a TCP/80`, `y/a > x/a TCP/81, y/a > x/a UDP/80, y/a > x/a SCTP/80, y/a > x/a ICMP/0`},
		"a port from a namespace":       {np + `{ingress: [{ports: [{port: 81}], from: [{namespaceSelector: {matchLabels: {ns: "y"}}}]}]}`, `y/a > x/a TCP/81`, `y/a > x/a TCP/80, z/a > x/a TCP/81`},
		"two ports":                     {np + `{ingress: [{ports: [{port: 80}, {port: 80, protocol: UDP}]}]}`, `y/a > x/a TCP/80, y/a > x/a UDP/80`, `y/a > x/a SCTP/80`},
		"a protocol":                    {np + `{ingress: [{ports: [{protocol: UDP}]}]}`, `y/a > x/a UDP/80, y/a > x/a UDP/65535`, `y/a > x/a TCP/80`},
		"nothing but an item":           {np + `{ingress: [{ports: [{}]}]}`, `y/a > x/a TCP/80`, `y/a > x/a UDP/80`},
		"SCTP opens no TCP":             {np + `{ingress: [{ports: [{port: 80, protocol: SCTP}]}]}`, `y/a > x/a SCTP/80`, `y/a > x/a TCP/80`},
		"a range":                       {np + `{policyTypes: [Egress], egress: [{ports: [{port: 79, endPort: 80}]}]}`, `x/a > y/a TCP/79, x/a > y/a TCP/80`, `x/a > y/a TCP/81, x/a > y/a TCP/78, x/a > y/a UDP/80`},
		"a range of one":                {np + `{ingress: [{ports: [{port: 80, endPort: 80}]}]}`, `y/a > x/a TCP/80`, `y/a > x/a TCP/81`},
		"a named port":                  {np + `{ingress: [{ports: [{port: serve-80-tcp}]}]}`, `y/a > x/a TCP/80`, `y/a > x/a TCP/81`},
		"a named port of UDP":           {np + `{ingress: [{ports: [{port: serve-80-udp, protocol: UDP}]}]}`, `y/a > x/a UDP/80`, `y/a > x/a TCP/80`},
		"a named port, wrong protocol":  {np + `{ingress: [{ports: [{port: serve-80-udp}]}]}`, ``, `y/a > x/a UDP/80, y/a > x/a TCP/80`},
		"a named port that nobody has":  {np + `{ingress: [{ports: [{port: other}]}]}`, ``, `y/a > x/a TCP/80`},
		"egress to a named port":        {np + `{policyTypes: [Egress], egress: [{ports: [{port: serve-81-tcp}]}]}`, `x/a > y/a TCP/81`, `x/a > y/a TCP/80, x/a > 192.0.2.1 TCP/81`},
		"two policies with a port each": {np + `{ingress: [{ports: [{port: 80}]}]}` + "\n---\n" + np + `{ingress: [{ports: [{port: 81}]}]}`, `y/a > x/a TCP/80, y/a > x/a TCP/81`, `y/a > x/a TCP/82`},
		"peers and ports of two rules":  {np + `{ingress: [{from: [{podSelector: {matchLabels: {pod: b}}}], ports: [{port: 80}]}, {from: [{podSelector: {matchLabels: {pod: c}}}], ports: [{port: 81}]}]}`, `x/b > x/a TCP/80, x/c > x/a TCP/81`, `x/b > x/a TCP/81, x/c > x/a TCP/80`},

		// ClusterNetworkPolicy.
		"admin denies what is allowed":          {np + `{ingress: [{}]}` + "\n---\n" + cnp + `{tier: Admin, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`, `z/a > x/a TCP/80`, `y/a > x/a TCP/80, y/a > y/b TCP/80`},
		"admin accepts what is denied":          {np + `{}` + "\n---\n" + cnp + `{tier: Admin, ` + all + `, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`, `y/a > x/a TCP/80`, `z/a > x/a TCP/80`},
		"it is accepted at one end":             {np + `{policyTypes: [Egress]}` + "\n---\n" + cnp + `{tier: Admin, ` + all + `, ingress: [{action: Accept, from: [{namespaces: {}}]}]}`, `z/a > y/a TCP/80`, `x/a > y/a TCP/80`},
		"admin passes to NetworkPolicy":         {np + `{}` + "\n---\n" + cnp + `{tier: Admin, ` + all + `, ingress: [{action: Pass, from: [{namespaces: {matchLabels: {ns: "y"}}}]}, {action: Accept, from: [{namespaces: {}}]}]}`, `z/a > x/a TCP/80, y/a > z/a TCP/80`, `y/a > x/a TCP/80`},
		"admin passes to baseline":              {cnp + `{tier: Admin, ` + all + `, ingress: [{action: Pass, from: [{namespaces: {}}]}]}` + "\n---\n" + cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`, `z/a > x/a TCP/80`, `y/a > x/a TCP/80`},
		"NetworkPolicy overrides baseline":      {np + `{ingress: [{}]}` + "\n---\n" + cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, `y/a > x/a TCP/80`, `x/a > y/a TCP/80`},
		"baseline passes":                       {cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Pass, from: [{pods: {podSelector: {matchLabels: {pod: a}}}}]}, {action: Deny, from: [{namespaces: {}}]}]}`, `y/a > x/a TCP/80`, `y/b > x/a TCP/80`},
		"rules are ordered":                     {cnp + `{tier: Admin, ` + all + `, egress: [{action: Accept, to: [{pods: {podSelector: {matchLabels: {pod: b}}}}]}, {action: Deny, to: [{namespaces: {}}]}]}`, `x/a > y/b TCP/80`, `x/a > y/a TCP/80`},
		"policies are ordered by priority":      {cnp + `{tier: Admin, priority: 2, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}]}]}` + "\n---\n" + cnp + `{tier: Admin, priority: 1, ` + all + `, ingress: [{action: Accept, from: [{namespaces: {matchLabels: {ns: "y"}}}]}]}`, `y/a > x/a TCP/80`, `z/a > x/a TCP/80`},
		"the subject is some pods":              {cnp + `{tier: Admin, subject: {pods: {namespaceSelector: {matchLabels: {ns: x}}, podSelector: {matchLabels: {pod: a}}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, `y/a > x/b TCP/80, x/a > y/a TCP/80`, `y/a > x/a TCP/80`},
		"no ingress rules, no effect":           {cnp + `{tier: Admin, ` + all + `, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}`, `192.0.2.1 > x/a TCP/80, x/a > y/a TCP/80`, `x/a > 192.0.2.1 TCP/80, x/a > 192.0.2.1 ICMP/0`},
		"networks match pods":                   {cnp + `{tier: Admin, ` + all + `, egress: [{action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`, `x/a6 > y/a6 TCP/80`, `x/a > y/a TCP/80`},
		"a pass of all pods before":             {cnp + `{tier: Admin, ` + all + `, egress: [{action: Pass, to: [{namespaces: {}}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`, `x/a > y/a TCP/80`, `x/a > 192.0.2.1 TCP/80`},
		"nodes":                                 {cnp + `{tier: Admin, ` + all + `, egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: "1"}}}]}]}`, `x/a > 192.0.2.1 TCP/80, 192.0.2.10 > x/a TCP/80`, `x/a > 192.0.2.10 TCP/80`},
		"other nodes":                           {cnp + `{tier: Admin, ` + all + `, egress: [{action: Deny, to: [{nodes: {matchLabels: {zone: "2"}}}]}]}`, `x/a > 192.0.2.10 TCP/80`, ``},
		"a port of TCP":                         {cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}]}`, `y/a > x/a TCP/81, y/a > x/a UDP/80, y/a > x/a ICMP/0`, `y/a > x/a TCP/80`},
		"a range of SCTP and a port of UDP":     {cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{sctp: {destinationPort: {range: {start: 79, end: 80}}}}, {udp: {destinationPort: {number: 81}}}]}]}`, `y/a > x/a SCTP/81, y/a > x/a UDP/80, y/a > x/a TCP/80`, `y/a > x/a SCTP/79, y/a > x/a SCTP/80, y/a > x/a UDP/81`},
		"a named port, whatever its protocol":   {cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: serve-81-udp}]}]}`, `y/a > x/a UDP/80, y/a > x/a TCP/81`, `y/a > x/a UDP/81`},
		"without protocols, ICMP as well":       {cnp + `{tier: Baseline, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, `192.0.2.1 > x/a ICMP/0`, `y/a > x/a ICMP/0, y/a > x/a TCP/80`},
		"a peer of a newer API: Accept":         {np + `{}` + "\n---\n" + cnp + `{tier: Admin, ` + all + `, ingress: [{action: Accept, from: [{}, {namespaces: {}}]}]}`, `x/a > y/a TCP/80`, `y/a > x/a TCP/80`},
		"a peer of a newer API: Deny":           {cnp + `{tier: Admin, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Deny, from: [{}]}]}`, `x/a > y/a TCP/80`, `y/a > x/a TCP/80, 192.0.2.1 > x/a ICMP/0`},
		"a peer of a newer API: Pass":           {cnp + `{tier: Admin, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Pass, from: [{}]}]}`, `x/a > y/a TCP/80`, `y/a > x/a TCP/80`},
		"domain names accept nothing":           {cnp + `{tier: Admin, ` + all + `, egress: [{action: Accept, to: [{domainNames: [example.com]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]}`, ``, `x/a > 192.0.2.1 TCP/80`},
		"pods aren't denied to themselves":      {cnp + `{tier: Admin, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}]}], egress: [{action: Deny, to: [{namespaces: {}}]}]}`, `x/a > x/a TCP/80`, `x/a > x/b TCP/80`},
		"pods on the node's network no subject": {cnp + `{tier: Admin, ` + all + `, ingress: [{action: Deny, from: [{namespaces: {}}]}]}`, `y/a > 192.0.2.10 TCP/80, 192.0.2.10 > y/a TCP/80`, `y/a > x/a TCP/80`},
	} {
		t.Run(name, func(t *testing.T) {
			o := nine()
			for i, text := range strings.Split(c.policies, "\n---\n") {
				var err error
				if strings.Contains(text, cnp) {
					o.cluster = append(o.cluster, ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", i)}})
					err = yaml.Unmarshal([]byte(text), &o.cluster[len(o.cluster)-1])
				} else if text != "" {
					p := networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x"}}
					err = yaml.Unmarshal([]byte(text), &p)
					p.Name = fmt.Sprint("p", i)
					o.policies = append(o.policies, p)
				}
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
			}
			world, _ := o.world()
			for text, want := range map[string]bool{c.yes: true, c.no: false} {
				for _, probe := range strings.Split(text, ", ") {
					if probe == "" {
						continue
					}
					connection := o.parseConnection(probe)
					if got := o.allows(connection); got != want {
						t.Errorf("%s: the oracle says %v, want %v", probe, got, want)
					}
					if got := world.Decide(connection.flow()).Allowed; got != want {
						t.Errorf("%s: the accepted policies say %v, want %v", probe, got, want)
					}
				}
			}
		})
	}
}
