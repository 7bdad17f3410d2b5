package flannel

import (
	"encoding/json"
	"fmt"
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

// Annotations returns the annotations of a node. An error says what keeps the node from being a
// part of the network.
func (n Network) Annotations(node peer.Node) (map[string]string, error) {
	for _, b := range node.Blocks {
		if !slices.ContainsFunc(n.Ranges, func(r Range) bool { return r.Network.Bits() <= b.Bits() && r.Network.Contains(b.Addr()) }) {
			return nil, fmt.Errorf("pod CIDR %v is outside flannel's network %v", b, n.Subnets())
		}
	}
	a, err := n.attributes(node)
	if err != nil {
		return nil, err
	}
	out := map[string]string{backendType: a.BackendType, publicIP: a.PublicIP, backendData: null, managed: "true"}
	if present(a.BackendData) {
		out[backendData] = string(a.BackendData)
	}
	if a.PublicIPv6 != nil && n.Ranges[len(n.Ranges)-1].Network.Addr().Is6() {
		out[publicIPv6], out[backendV6Data] = *a.PublicIPv6, null
		if present(a.BackendV6Data) {
			out[backendV6Data] = string(a.BackendV6Data)
		}
	}
	return out, nil
}

// FromAnnotations returns the record of a node with these annotations, apart from its name and
// blocks, and whether the node is one of flannel's.
func (n Network) FromAnnotations(annotations map[string]string) (node peer.Node, ok bool, err error) {
	if annotations[managed] != "true" {
		return node, false, nil
	}
	a := attributes{PublicIP: annotations[publicIP], BackendType: annotations[backendType]}
	if text, ok := annotations[publicIPv6]; ok {
		a.PublicIPv6 = &text
	}
	for key, into := range map[string]*json.RawMessage{backendData: &a.BackendData, backendV6Data: &a.BackendV6Data} {
		if len(annotations[key]) > maxValue {
			return node, true, fmt.Errorf("annotation %s of %d bytes: at most %d", key, len(annotations[key]), maxValue)
		}
		*into = json.RawMessage(annotations[key])
	}
	node, err = n.node(a)
	return node, true, err
}
