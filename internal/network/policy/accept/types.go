package accept

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsjson "sigs.k8s.io/json"
)

// ClusterVersion is the version of ClusterNetworkPolicy that this package reads.
var ClusterVersion = schema.GroupVersion{Group: "policy.networking.k8s.io", Version: "v1alpha2"}

// ClusterNetworkPolicy is a policy.networking.k8s.io/v1alpha2 object, without its status.
// https://network-policy-api.sigs.k8s.io/reference/spec/
type ClusterNetworkPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              ClusterNetworkPolicySpec `json:"spec"`

	// unknown are the paths of the fields that the types don't have.
	unknown []string
}

// ClusterNetworkPolicySpec is the content of a ClusterNetworkPolicy.
type ClusterNetworkPolicySpec struct {
	Tier     string         `json:"tier"`     // Admin or Baseline
	Priority int32          `json:"priority"` // 0 to 1000
	Subject  ClusterSubject `json:"subject"`
	Ingress  []ClusterRule  `json:"ingress,omitempty"`
	Egress   []ClusterRule  `json:"egress,omitempty"`
}

// ClusterSubject selects the pods of a policy. Exactly one field is set.
type ClusterSubject struct {
	Namespaces *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPods       `json:"pods,omitempty"`
}

// NamespacedPods selects pods by the labels of their namespace and their own.
type NamespacedPods struct {
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`
	PodSelector       metav1.LabelSelector `json:"podSelector"`
}

// ClusterRule is a rule of a ClusterNetworkPolicy. Ingress rules have From, egress rules To.
type ClusterRule struct {
	Name      string            `json:"name,omitempty"`
	Action    string            `json:"action"` // Accept, Deny or Pass
	From      []ClusterPeer     `json:"from,omitempty"`
	To        []ClusterPeer     `json:"to,omitempty"`
	Protocols []ClusterProtocol `json:"protocols,omitempty"`
}

// ClusterPeer is the other end. Exactly one field is set. Those of ingress rules are only
// Namespaces or Pods.
type ClusterPeer struct {
	Namespaces  *metav1.LabelSelector `json:"namespaces,omitempty"`
	Pods        *NamespacedPods       `json:"pods,omitempty"`
	Nodes       *metav1.LabelSelector `json:"nodes,omitempty"`
	Networks    []string              `json:"networks,omitempty"`
	DomainNames []string              `json:"domainNames,omitempty"`
}

// ClusterProtocol are ports of a protocol, or a port by its name. Exactly one field is set.
type ClusterProtocol struct {
	TCP                  *ClusterPorts `json:"tcp,omitempty"`
	UDP                  *ClusterPorts `json:"udp,omitempty"`
	SCTP                 *ClusterPorts `json:"sctp,omitempty"`
	DestinationNamedPort string        `json:"destinationNamedPort,omitempty"`
}

// ClusterPorts are the ports of a protocol.
type ClusterPorts struct {
	DestinationPort *ClusterPort `json:"destinationPort,omitempty"`
}

// ClusterPort is a port or a range of ports. Exactly one field is set.
type ClusterPort struct {
	Number int32             `json:"number,omitempty"`
	Range  *ClusterPortRange `json:"range,omitempty"`
}

// ClusterPortRange is a range of ports with both its ends.
type ClusterPortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"` // after Start
}

// ClusterNetworkPolicyList is a list of ClusterNetworkPolicies.
type ClusterNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []ClusterNetworkPolicy `json:"items"`
}

// UnmarshalJSON decodes a policy, and notes fields that the types don't have. A newer API may have
// more of them, and a rule means something else without them.
func (p *ClusterNetworkPolicy) UnmarshalJSON(data []byte) error {
	type plain ClusterNetworkPolicy
	*p = ClusterNetworkPolicy{}
	unknown, err := sigsjson.UnmarshalStrict(data, (*plain)(p), sigsjson.DisallowUnknownFields)
	for _, u := range unknown {
		if at, ok := u.(sigsjson.FieldError); ok {
			p.unknown = append(p.unknown, at.FieldPath())
		}
	}
	return err
}

// DeepCopyObject returns a copy.
func (p *ClusterNetworkPolicy) DeepCopyObject() runtime.Object {
	out := copyOf(p)
	out.unknown = append([]string(nil), p.unknown...)
	return out
}

// DeepCopyObject returns a copy.
func (l *ClusterNetworkPolicyList) DeepCopyObject() runtime.Object { return copyOf(l) }

// copyOf copies what has a JSON form. The API's clients copy only what is small or empty.
func copyOf[T any](from *T) *T {
	to := new(T)
	if data, err := json.Marshal(from); err == nil {
		_ = json.Unmarshal(data, to) // what was marshaled
	}
	return to
}
