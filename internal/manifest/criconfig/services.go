package criconfig

import (
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// The service through which pods reach the API server of their cluster.
const (
	masterService   = "kubernetes"
	masterNamespace = "default"
)

// ServicesName returns the name of the config map with the variables of services that stands in
// each container of an API server's pod before what it has in envFrom.
func ServicesName(pod *corev1.Pod) string { return "services." + string(pod.UID) }

// ServiceVariables returns kubelet's environment variables for services: always those of the API
// server, and with links also those of the services in the namespace.
func ServiceVariables(services []*corev1.Service, namespace string, links bool) manifest.Object {
	chosen := map[string]*corev1.Service{}
	for _, s := range services {
		master := s.Namespace == masterNamespace && s.Name == masterService
		switch {
		case s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone || len(s.Spec.Ports) == 0:
		case s.Namespace == namespace && (links || master):
			chosen[s.Name] = s
		case master && chosen[s.Name] == nil:
			chosen[s.Name] = s
		}
	}
	out := manifest.Object{}
	for name, s := range chosen {
		prefix := strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
		set := func(suffix, value string) { out[prefix+suffix] = []byte(value) }
		host := s.Spec.ClusterIP
		set("_SERVICE_HOST", host)
		set("_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port)))
		for i, p := range s.Spec.Ports {
			port := strconv.Itoa(int(p.Port))
			if p.Name != "" {
				set("_SERVICE_PORT_"+strings.ToUpper(strings.ReplaceAll(p.Name, "-", "_")), port)
			}
			protocol := strings.ToLower(string(p.Protocol))
			if protocol == "" {
				protocol = "tcp"
			}
			url := protocol + "://" + at(host, port)
			if i == 0 {
				set("_PORT", url)
			}
			link := "_PORT_" + port + "_" + strings.ToUpper(protocol)
			set(link, url)
			set(link+"_PROTO", protocol)
			set(link+"_PORT", port)
			set(link+"_ADDR", host)
		}
	}
	return out
}

// at returns an address and port as in a URL.
func at(host, port string) string {
	if addr, err := netip.ParseAddr(host); err == nil && addr.Is6() {
		host = "[" + host + "]"
	}
	return host + ":" + port
}
