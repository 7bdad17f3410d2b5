package fields

import (
	"fmt"
	"strings"
)

// objectKind is a kind that is neither a pod nor a workload, and that a node without a cluster
// uses.
type objectKind struct {
	kind, apiVersion string
	about            string
	fields           []Field
}

// objectKinds lists each field of the kinds, or a field that it is part of. They have the metadata
// and status of workloads too.
var objectKinds = []objectKind{
	{"ConfigMap", "v1", "Kept for the pods of later files, until `husk rm configmap/NAME`.", []Field{
		{"data", Honoured, "texts by key"},
		{"binaryData", Honoured, "bytes by key, in base64"},
		{"immutable", Ignored, "a file may change every object"},
	}},
	{"Secret", "v1", "Kept for the pods of later files, until `husk rm secret/NAME`.", []Field{
		{"data", Honoured, "bytes by key, in base64"},
		{"stringData", Honoured, "texts by key; they override data"},
		{"type", Ignored, "a pod's imagePullSecrets name those that have registry credentials"},
		{"immutable", Ignored, "a file may change every object"},
	}},
	{"PersistentVolumeClaim", "v1", "[Volumes](../volumes.md) describes what huskd does with claims.", []Field{
		{"spec.accessModes", Honoured, "ReadWriteOncePod allows one pod at a time; the others are alike on one node"},
		{"spec.resources.requests", Honoured, "storage: how large a PersistentVolume must be. The directory is limited to it where the file system has project quotas"},
		{"spec.storageClassName", Honoured, "chooses among PersistentVolumes of that class; without one that suits, the claim is a directory of the node"},
		{"spec.volumeName", Honoured, "name of the PersistentVolume"},
		{"spec.volumeMode", Honoured, "Filesystem; Block is refused"},
		{"spec.resources.limits", Ignored, "the requests are the size"},
		{"spec.selector", Ignored, "PersistentVolumes are chosen by name and class"},
		{"spec.dataSource", Ignored, "a new claim is empty: fill it by husk volume import"},
		{"spec.dataSourceRef", Ignored, "a new claim is empty: fill it by husk volume import"},
		{"spec.volumeAttributesClassName", Ignored, "directories have no such attributes"},
	}},
	{"PersistentVolume", "v1", "One that is neither hostPath nor local has no effect; its claims are directories of the node.", []Field{
		{"spec.hostPath", Honoured, "path: the directory of the node. The type isn't checked"},
		{"spec.local", Honoured, "path: the directory of the node"},
		{"spec.accessModes", Honoured, "a claim must ask for no other"},
		{"spec.capacity", Honoured, "storage: a claim must ask for no more"},
		{"spec.storageClassName", Honoured, "the class of the claims"},
		{"spec.claimRef", Honoured, "namespace and name of the only claim that gets it"},
		{"spec.persistentVolumeReclaimPolicy", Ignored, "what is in the directory stays when the claim is removed"},
		{"spec.mountOptions", Ignored, "directories are bind-mounted"},
		{"spec.nodeAffinity", Ignored, "there is one node"},
		{"spec.volumeMode", Ignored, "claims decide"},
		{"spec.volumeAttributesClassName", Ignored, "directories have no such attributes"},
	}},
	{"Service", "v1", "[Services](../services.md) describes what huskd does with them.", []Field{
		{"spec.type", Honoured, "ClusterIP, NodePort, ExternalName; LoadBalancer has a node port, and no load balancer"},
		{"spec.selector", Honoured, "labels of the pods; without it, Endpoints or EndpointSlices have the addresses"},
		{"spec.ports[].name", Honoured, "name, in DNS and in environment variables"},
		{"spec.ports[].protocol", Honoured, "TCP, UDP or SCTP; TCP if absent"},
		{"spec.ports[].port", Honoured, "port of the Service"},
		{"spec.ports[].targetPort", Honoured, "port of the pods, or its name; port if absent"},
		{"spec.ports[].nodePort", Honoured, "port of the node, 30000 to 32767; chosen by huskd if absent"},
		{"spec.clusterIP", Honoured, "address, or None for a headless Service; an address of service-subnets if absent"},
		{"spec.clusterIPs", Honoured, "addresses of both families; the first one is clusterIP"},
		{"spec.ipFamilies", Honoured, "IPv4, IPv6 or both; that of pod-subnets' first subnet if absent"},
		{"spec.ipFamilyPolicy", Honoured, "SingleStack, PreferDualStack or RequireDualStack"},
		{"spec.externalIPs", Honoured, "further addresses of the Service"},
		{"spec.externalName", Honoured, "the name that DNS answers, with type ExternalName"},
		{"spec.sessionAffinity", Honoured, "ClientIP leads a client to the same pod"},
		{"spec.sessionAffinityConfig", Honoured, "clientIP.timeoutSeconds, 1 to 86400; 10800 if absent"},
		{"spec.internalTrafficPolicy", Honoured, "Local and Cluster are alike where all pods are on the node"},
		{"spec.externalTrafficPolicy", Honoured, "Local keeps the client's address"},
		{"spec.publishNotReadyAddresses", Honoured, "pods are endpoints before they are ready"},
		{"spec.allocateLoadBalancerNodePorts", Honoured, "false leaves type LoadBalancer without node ports"},
		{"spec.healthCheckNodePort", Honoured, "with type LoadBalancer and externalTrafficPolicy Local: answers whether the node has endpoints, by HTTP"},
		{"spec.ports[].appProtocol", Ignored, "for load balancers"},
		{"spec.loadBalancerClass", Ignored, "for load balancers"},
		{"spec.loadBalancerIP", Ignored, "for load balancers"},
		{"spec.loadBalancerSourceRanges", Ignored, "for load balancers: use a NetworkPolicy"},
		{"spec.trafficDistribution", Ignored, "there is one node"},
	}},
	{"Endpoints", "v1", "They are those of the Service of the same name, if it has no selector.", []Field{
		{"subsets[].addresses", Honoured, "addresses that get connections"},
		{"subsets[].notReadyAddresses", Honoured, "addresses that are only in DNS, with publishNotReadyAddresses"},
		{"subsets[].ports", Honoured, "ports, by the names that the Service has"},
	}},
	{"EndpointSlice", "discovery.k8s.io/v1", "The label kubernetes.io/service-name names the Service, which has no selector.", []Field{
		{"addressType", Honoured, "IPv4 or IPv6; slices of FQDN have no endpoints"},
		{"endpoints[].addresses", Honoured, "the first address gets connections"},
		{"endpoints[].conditions", Honoured, "ready, serving, terminating"},
		{"endpoints[].hostname", Honoured, "name in DNS"},
		{"endpoints[].targetRef", Honoured, "the pod that is shown"},
		{"endpoints[].nodeName", Honoured, "whether a Local policy counts the endpoint"},
		{"endpoints[].hints", Honoured, "nodes and zones whose clients prefer the endpoint"},
		{"ports", Honoured, "ports, by the names that the Service has"},
		{"endpoints[].zone", Ignored, "the hints count"},
		{"endpoints[].deprecatedTopology", Ignored, "no longer in Kubernetes"},
	}},
	{"NetworkPolicy", "networking.k8s.io/v1", "[Network policies](../policy.md) describes what huskd does with them.", []Field{
		{"spec.podSelector", Honoured, "labels of the pods that it applies to; empty for all of the namespace"},
		{"spec.policyTypes", Honoured, "Ingress, Egress or both"},
		{"spec.ingress", Honoured, "from whom to which ports"},
		{"spec.egress", Honoured, "to whom and which ports"},
	}},
	{"ClusterNetworkPolicy", "policy.networking.k8s.io/v1alpha2", "[Network policies](../policy.md) describes what huskd does with them.", []Field{
		{"spec.tier", Honoured, "Admin, before network policies, or Baseline, after them"},
		{"spec.priority", Honoured, "0 to 1000; the lowest is first"},
		{"spec.subject", Honoured, "labels of the pods and their namespaces"},
		{"spec.ingress", Honoured, "rules in order: Accept, Deny or Pass"},
		{"spec.egress", Honoured, "rules in order; peers may be nodes and networks. Those with domainNames are refused"},
	}},
}

// objectReference returns the part of the reference page about objects that are used.
func objectReference() string {
	var b strings.Builder
	b.WriteString("\n## Other objects\n\nThey have the `metadata` and `status` of [workloads](#workloads).\n")
	for _, k := range objectKinds {
		fmt.Fprintf(&b, "\n### %s (%s)\n\n%s\n", k.kind, k.apiVersion, k.about)
		b.WriteString(table(k.fields))
	}
	return b.String()
}
