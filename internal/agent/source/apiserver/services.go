package apiserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// The service through which pods reach the API server.
const (
	masterService   = "kubernetes"
	masterNamespace = "default"
)

// serviceVariables returns kubelet's environment variables for services: always those of the API
// server, and with links also those of the services in the namespace.
func serviceVariables(services []*corev1.Service, namespace string, links bool) manifest.Object {
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
			url := protocol + "://" + net.JoinHostPort(host, port)
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

// fingerprint returns a hash of an object.
func fingerprint(o manifest.Object) string {
	h := sha256.New()
	for _, key := range slices.Sorted(maps.Keys(o)) {
		fmt.Fprintf(h, "%q%q", key, o[key])
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}
