package config

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/huskd/husk/internal/sysctl"
)

// Cluster is the configuration of a node in a cluster. It is used only with a kubeconfig, except
// for the name and the addresses, which other nodes of the pod network also know.
type Cluster struct {
	NodeName      string   `key:"node-name" help:"name of this node; the host name if empty"`
	NodeLabels    []string `key:"node-labels" help:"labels of the node, KEY=VALUE, in addition to the standard ones"`
	NodeIP        []string `key:"node-ip" help:"addresses of the node, at most one IPv4 and one IPv6 address, the primary one first; 0.0.0.0 or :: for the address of that family first. Those of the default routes if empty"`
	ProviderID    string   `key:"provider-id" help:"ID by which the cloud provider knows the machine, PROVIDER://…; set at the node's first registration"`
	NodeTaints    []string `key:"node-taints" help:"taints that the node is registered with, KEY=VALUE:EFFECT or KEY:EFFECT"`
	NodeListen    string   `key:"node-listen" help:"address to serve the kubelet API on, which the API server uses for kubectl logs, exec, attach and port-forward"`
	NodeHealthz   string   `key:"node-healthz-listen" help:"address to serve huskd's health on, at /healthz, without TLS or authentication; empty to disable"`
	NodeTLSCert   string   `key:"node-tls-cert-file" help:"certificate of the kubelet API; self-signed if empty"`
	NodeTLSKey    string   `key:"node-tls-private-key-file" help:"private key of that certificate"`
	NodeTLSMin    string   `key:"node-tls-min-version" help:"least version of TLS of the kubelet API: VersionTLS12 or VersionTLS13"`
	NodeTLSSuites []string `key:"node-tls-cipher-suites" help:"cipher suites of the kubelet API with TLS 1.2, by their names in Go's package crypto/tls; Go's defaults if empty. Those of TLS 1.3 can't be chosen"`
	NodeTLSCSR    bool     `key:"server-tls-bootstrap" help:"request the certificate of the kubelet API from the cluster, and renew it; somebody must approve each request of the signer kubernetes.io/kubelet-serving"`
	NodeClientCA  string   `key:"node-client-ca-file" help:"CA certificates for clients of the kubelet API; those of the kubeconfig if empty"`
	UnsafeSysctls []string `key:"allowed-unsafe-sysctls" help:"sysctls that pods of the cluster may set beside the kubelet's safe ones, such as net.core.somaxconn or, as a prefix, kernel.msg*"`
	KubeletDir    string   `key:"kubelet-dir" help:"directory whose subdirectories device-plugins and plugins_registry have the sockets of device plugins; /var/lib/kubelet if empty, or kubelet below a root that isn't the default"`
	ClusterDNS    []string `key:"cluster-dns" help:"name servers of the cluster, for pods with dnsPolicy ClusterFirst"`
	ClusterDomain string   `key:"cluster-domain" help:"domain of services and pods, in the search list of those pods"`
	ResolvConf    string   `key:"resolv-conf" help:"resolv.conf(5) with the node's resolvers, for pods that don't use those of the cluster and for huskd's DNS. If it names the stub of systemd-resolved, the file behind that is read; empty for no resolvers"`
	Capacity
}

func (c *Cluster) checkCluster(bad func(key, format string, args ...any)) {
	if c.NodeName != "" && len(validation.IsDNS1123Subdomain(c.NodeName)) > 0 {
		bad("node-name", "%q is not a valid name: use lower-case letters, digits, - and .", c.NodeName)
	}
	if _, err := c.Labels(); err != nil {
		bad("node-labels", "%w", err)
	}
	if _, err := c.NodeIPs(); err != nil {
		bad("node-ip", "%w", err)
	}
	if _, err := c.Taints(); err != nil {
		bad("node-taints", "%w", err)
	}
	if _, _, err := net.SplitHostPort(c.NodeListen); err != nil {
		bad("node-listen", "%q is not of the form 198.51.100.1:10250 or :10250", c.NodeListen)
	}
	if _, _, err := net.SplitHostPort(c.NodeHealthz); c.NodeHealthz != "" && err != nil {
		bad("node-healthz-listen", "%q is not of the form 127.0.0.1:10248", c.NodeHealthz)
	}
	if (c.NodeTLSCert == "") != (c.NodeTLSKey == "") {
		bad("node-tls-cert-file", "set both it and node-tls-private-key-file, or neither")
	}
	if _, _, err := c.TLS(); err != nil && c.NodeTLSMin != "VersionTLS12" && c.NodeTLSMin != "VersionTLS13" {
		bad("node-tls-min-version", "%w", err)
	} else if err != nil {
		bad("node-tls-cipher-suites", "%w", err)
	}
	if c.NodeTLSCSR && c.NodeTLSCert != "" {
		bad("server-tls-bootstrap", "node-tls-cert-file names a certificate already: set one of them")
	}
	for key, path := range map[string]string{"node-tls-cert-file": c.NodeTLSCert, "node-tls-private-key-file": c.NodeTLSKey, "node-client-ca-file": c.NodeClientCA, "resolv-conf": c.ResolvConf} {
		if path != "" && !filepath.IsAbs(path) {
			bad(key, "%q is not an absolute path", path)
		}
	}
	if _, err := sysctl.Allow(c.UnsafeSysctls); err != nil {
		bad("allowed-unsafe-sysctls", "%w", err)
	}
	for _, server := range c.ClusterDNS {
		if _, err := netip.ParseAddr(server); err != nil {
			bad("cluster-dns", "%q is not an IP address", server)
		}
	}
	if len(validation.IsDNS1123Subdomain(c.ClusterDomain)) > 0 {
		bad("cluster-domain", "%q is not a domain such as cluster.local", c.ClusterDomain)
	}
	c.checkCapacity(bad)
}

// setKubeletDir sets the default of KubeletDir. Device plugins look only in the kubelet's own
// directory, so this is the default where huskd is the only node of the machine.
func (c *Config) setKubeletDir(bad func(key, format string, args ...any)) {
	switch {
	case c.KubeletDir == "" && c.Root == defaultRoot:
		c.KubeletDir = "/var/lib/kubelet"
	case c.KubeletDir == "":
		c.KubeletDir = filepath.Join(c.Root, "kubelet")
	case !filepath.IsAbs(c.KubeletDir):
		bad("kubelet-dir", "%q is not an absolute path", c.KubeletDir)
	}
	c.KubeletDir = filepath.Clean(c.KubeletDir)
}

// Labels returns the node's labels.
func (c *Cluster) Labels() (map[string]string, error) {
	out := map[string]string{}
	for _, text := range c.NodeLabels {
		key, value, ok := strings.Cut(text, "=")
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			return nil, fmt.Errorf("%q is not of the form KEY=VALUE", text)
		}
		if reserved(key) && !kubeletapis.IsKubeletLabel(key) {
			return nil, fmt.Errorf("%s: a node may not set this label itself: of those of kubernetes.io and k8s.io it may set %s, and any below kubelet.kubernetes.io and node.kubernetes.io",
				key, strings.Join(kubeletapis.KubeletLabels(), ", "))
		}
		out[key] = value
	}
	return out, nil
}

// reserved reports whether a label is one of Kubernetes' own. NodeRestriction, an admission plugin
// of the API server, lets a node set only some of them.
func reserved(label string) bool {
	domain, _, named := strings.Cut(label, "/")
	return named && slices.ContainsFunc([]string{"kubernetes.io", "k8s.io"}, func(own string) bool {
		return domain == own || strings.HasSuffix(domain, "."+own)
	})
}

// NodeIPs returns the node's addresses, the primary one first. A single unspecified address names
// the family of the primary one.
func (c *Cluster) NodeIPs() ([]netip.Addr, error) {
	var out []netip.Addr
	for _, text := range c.NodeIP {
		ip, err := netip.ParseAddr(text)
		switch {
		case err != nil || ip.Zone() != "":
			return nil, fmt.Errorf("%q is not an IP address", text)
		case ip.IsLoopback() || ip.IsMulticast() || ip.IsLinkLocalUnicast():
			return nil, fmt.Errorf("%s can't be reached by others", ip)
		case len(c.NodeIP) > 1 && ip.IsUnspecified():
			return nil, fmt.Errorf("%s stands for all addresses of a family: give no other", ip)
		case len(out) == 1 && out[0].Is4() == ip.Is4() || len(out) > 1:
			return nil, errors.New("give at most one IPv4 and one IPv6 address")
		}
		out = append(out, ip.Unmap())
	}
	return out, nil
}

// TLS returns the least version of TLS of the kubelet API, and the cipher suites of TLS 1.2; none
// for Go's defaults.
func (c *Cluster) TLS() (least uint16, suites []uint16, err error) {
	switch c.NodeTLSMin {
	case "VersionTLS12":
		least = tls.VersionTLS12
	case "VersionTLS13":
		least = tls.VersionTLS13
	default:
		return 0, nil, fmt.Errorf("%q is neither VersionTLS12 nor VersionTLS13", c.NodeTLSMin)
	}
	known := slices.Concat(tls.CipherSuites(), tls.InsecureCipherSuites())
	for _, name := range c.NodeTLSSuites {
		i := slices.IndexFunc(known, func(s *tls.CipherSuite) bool { return s.Name == name })
		if i < 0 {
			return 0, nil, fmt.Errorf("%q is not a cipher suite of Go's package crypto/tls, such as TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", name)
		}
		suites = append(suites, known[i].ID)
	}
	if len(suites) > 0 && least < tls.VersionTLS13 && !slices.ContainsFunc(suites, func(id uint16) bool {
		return id == tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 || id == tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256
	}) {
		return 0, nil, errors.New("HTTP/2 with TLS 1.2 needs TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 or TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256: add one, or set node-tls-min-version to VersionTLS13")
	}
	return least, suites, nil
}

// Taints returns the taints that the node is registered with.
func (c *Cluster) Taints() ([]corev1.Taint, error) {
	var out []corev1.Taint
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	for _, text := range c.NodeTaints {
		name, effect, ok := strings.Cut(text, ":")
		key, value, _ := strings.Cut(name, "=")
		t := corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}
		if !ok || len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 || !slices.Contains(effects, t.Effect) {
			return nil, fmt.Errorf("%q is not of the form KEY=VALUE:EFFECT with an effect of NoSchedule, PreferNoSchedule or NoExecute", text)
		}
		out = append(out, t)
	}
	return out, nil
}
