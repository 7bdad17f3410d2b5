package criconfig

import (
	"bytes"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	huskpod "github.com/huskd/husk/internal/pod"
)

// The limits of a resolv.conf in Kubernetes and glibc.
const (
	maxServers  = 3
	maxSearches = 32
)

// clusterOption makes resolvers try names with few dots in the cluster's domains first.
const clusterOption = "ndots:5"

// dnsConfig returns the configuration of the pod's dnsPolicy, merged with its dnsConfig. As in
// kubelet, ClusterFirst without name servers of a cluster means the node's configuration.
func dnsConfig(pod *corev1.Pod, n Node) *runtimeapi.DNSConfig {
	out := &runtimeapi.DNSConfig{}
	if pod.Spec.DNSPolicy != corev1.DNSNone {
		out = parseResolvConf(n.ResolvConf)
		if !pod.Spec.HostNetwork {
			// The pod can't reach a resolver on the node's loopback interface.
			out.Servers = slices.DeleteFunc(out.Servers, isLoopback)
		}
		if len(n.ClusterDNS) > 0 && (pod.Spec.DNSPolicy == corev1.DNSClusterFirstWithHostNet || pod.Spec.DNSPolicy == corev1.DNSClusterFirst && !pod.Spec.HostNetwork) {
			services := "svc." + n.ClusterDomain
			out.Servers = slices.Clone(n.ClusterDNS)
			out.Searches = appendNew([]string{pod.Namespace + "." + services, services, n.ClusterDomain}, out.Searches)
			out.Options = []string{clusterOption}
		}
	}
	if own := pod.Spec.DNSConfig; own != nil {
		out.Servers = appendNew(out.Servers, own.Nameservers)
		out.Searches = appendNew(out.Searches, own.Searches)
		for _, o := range own.Options {
			out.Options = setOption(out.Options, o)
		}
	}
	out.Servers = out.Servers[:min(len(out.Servers), maxServers)]
	out.Searches = out.Searches[:min(len(out.Searches), maxSearches)]
	return out
}

// parseResolvConf parses a resolv.conf(5).
func parseResolvConf(content []byte) *runtimeapi.DNSConfig {
	out := &runtimeapi.DNSConfig{}
	for line := range bytes.Lines(content) {
		words := strings.Fields(string(line))
		if len(words) < 2 {
			continue
		}
		switch words[0] {
		case "nameserver":
			if _, err := netip.ParseAddr(words[1]); err == nil {
				out.Servers = append(out.Servers, words[1])
			}
		case "search", "domain": // the last one counts
			out.Searches = words[1:]
		case "options":
			out.Options = append(out.Options, words[1:]...)
		}
	}
	return out
}

func isLoopback(server string) bool {
	addr, err := netip.ParseAddr(server)
	return err == nil && addr.IsLoopback()
}

// appendNew appends the values of more that values doesn't contain.
func appendNew(values, more []string) []string {
	for _, v := range more {
		if !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}

// setOption replaces the option with the same name, or appends o.
func setOption(options []string, o corev1.PodDNSConfigOption) []string {
	text := o.Name
	if o.Value != nil && *o.Value != "" {
		text += ":" + *o.Value
	}
	for i, other := range options {
		if name, _, _ := strings.Cut(other, ":"); name == o.Name {
			options[i] = text
			return options
		}
	}
	return append(options, text)
}

// The first lines of /etc/hosts, by which tools recognize that changes of the file are lost. They
// are the kubelet's.
const (
	hostsHeader     = "# Kubernetes-managed hosts file.\n"
	nodeHostsHeader = "# Kubernetes-managed hosts file (host network).\n"
)

// HostsFile returns the content of the pod's /etc/hosts. For a pod in the node's network it has
// node, the content of the node's file.
func HostsFile(pod *corev1.Pod, podIPs []string, node []byte, n Node) []byte {
	var b bytes.Buffer
	if pod.Spec.HostNetwork {
		b.WriteString(nodeHostsHeader)
		b.Write(node)
		if len(node) > 0 && node[len(node)-1] != '\n' {
			b.WriteByte('\n')
		}
	} else {
		names := []string{Hostname(pod)}
		if hasDomain(pod) {
			names = []string{fqdn(pod, n), Hostname(pod)}
		}
		b.WriteString(hostsHeader)
		b.WriteString(huskpod.HostsFile(podIPs, names...))
	}
	for _, alias := range pod.Spec.HostAliases {
		b.WriteString(alias.IP + "\t" + strings.Join(alias.Hostnames, "\t") + "\n")
	}
	return b.Bytes()
}
