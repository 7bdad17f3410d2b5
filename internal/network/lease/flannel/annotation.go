package flannel

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
)

// AnnotationPrefix is the prefix of the annotations by which flannel's nodes know each other in
// Kubernetes.
const AnnotationPrefix = "flannel.alpha.coreos.com/"

const (
	backendType   = AnnotationPrefix + "backend-type"
	backendData   = AnnotationPrefix + "backend-data"
	backendV6Data = AnnotationPrefix + "backend-v6-data"
	publicIP      = AnnotationPrefix + "public-ip"
	publicIPv6    = AnnotationPrefix + "public-ipv6"
	managed       = AnnotationPrefix + "kube-subnet-manager" // "true": flannel's nodes take note of the Node
)

// Assume returns the network of which a Node with these podCIDRs is a part, as far as annotations
// tell it: in Kubernetes, the network's configuration is in a file of flanneld's pods.
func Assume(b Backend, podCIDRs []netip.Prefix) Network {
	n := Network{Backend: b}
	switch b {
	case VXLAN:
		n.VNI, n.Port = defaultVNI, peer.VXLANPort
	case WireGuard:
		n.Port = peer.WireGuardPort
	}
	for _, block := range podCIDRs {
		n.Ranges = append(n.Ranges, Range{Network: block})
	}
	return n
}

// BackendOf returns the backend of a Node with these annotations, and false if flannel's nodes
// don't take note of it.
func BackendOf(annotations map[string]string) (Backend, bool) {
	return Backend(annotations[backendType]), annotations[managed] == "true"
}

// Annotations returns the annotations of a node. An error says what keeps the node from being a
// part of the network.
func (n Network) Annotations(node peer.Node) (map[string]string, error) {
	a, err := n.attributes(node)
	if err != nil {
		return nil, err
	}
	out := map[string]string{backendType: a.BackendType, publicIP: a.PublicIP, backendData: null, managed: "true"}
	if present(a.BackendData) {
		out[backendData] = string(a.BackendData)
	}
	six := slices.ContainsFunc(n.Ranges, func(r Range) bool { return r.Network.Addr().Is6() })
	if a.PublicIPv6 != nil && six {
		out[publicIPv6], out[backendV6Data] = *a.PublicIPv6, null
		if present(a.BackendV6Data) {
			out[backendV6Data] = string(a.BackendV6Data)
		}
	}
	return out, nil
}

// FromAnnotations returns the record of a node with these annotations, apart from its name and
// blocks.
func (n Network) FromAnnotations(annotations map[string]string) (peer.Node, error) {
	a := attributes{PublicIP: annotations[publicIP], BackendType: annotations[backendType]}
	if text, ok := annotations[publicIPv6]; ok {
		a.PublicIPv6 = &text
	}
	for key, into := range map[string]*json.RawMessage{backendData: &a.BackendData, backendV6Data: &a.BackendV6Data} {
		if len(annotations[key]) > maxValue {
			return peer.Node{}, fmt.Errorf("annotation %s of %d bytes: at most %d", key, len(annotations[key]), maxValue)
		}
		*into = json.RawMessage(annotations[key])
	}
	return n.node(a)
}
