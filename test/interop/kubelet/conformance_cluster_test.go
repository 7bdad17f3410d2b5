package kubelet

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/huskd/husk/test/node"
)

// Networks of the whole cluster. The pods of a single node have huskd's default subnets, those of
// several have podSubnets.
const (
	serviceRange = "10.96.0.0/16"
	apiService   = "10.96.0.1"
	dnsService   = "10.96.0.10"
	podRange     = "10.201.0.0/16,fd68:7573:6b00::/64"
)

// newWholeCluster starts a cluster with all that Kubernetes' own tests expect: the controllers, the
// scheduler, kube-proxy, and a registry with the images. The nodes haven't joined.
func newWholeCluster(t *testing.T, logs string, count int) *cluster {
	t.Helper()
	all := newMachines(t, logs, count)
	for _, m := range all {
		m.Must("mount", "--make-rshared", "/")         // as on a machine with systemd; mounts of pods propagate to it
		if err := os.Chmod(m.Dir, 0o711); err != nil { // the root users of user namespaces pass through it
			t.Fatal(err)
		}
	}
	c := &cluster{machine: all[0], others: all[1:]}
	c.config = &rest.Config{
		Host: "https://" + c.forward("127.0.0.1:6443"), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 100,
	}
	var err error
	c.api, err = kubernetes.NewForConfig(c.config)
	c.must(err)
	c.flags = c.apiServerFlags()
	serveImages(all, mirrored, buildImages(t, c.Dir))
	c.startControlPlane()
	c.write("admin.conf", c.kubeconfig(token))
	flags, pods := []string(nil), podRange
	if count > 1 {
		flags, pods = podCIDRs, podSubnets
	}
	c.control = append(c.control,
		c.start("kube-controller-manager", append(flags, "--kubeconfig", c.Dir+"/admin.conf", "--leader-elect=false", "--use-service-account-credentials",
			"--service-account-private-key-file", c.Dir+"/service-accounts.key", "--root-ca-file", c.Dir+"/ca.crt",
			"--cluster-signing-cert-file", c.Dir+"/ca.crt", "--cluster-signing-key-file", c.Dir+"/ca.key")...),
		c.start("kube-scheduler", "--kubeconfig", c.Dir+"/admin.conf", "--leader-elect=false"),
	)
	if !withoutProxy() {
		for _, m := range c.nodes() {
			c.control = append(c.control, m.start("kube-proxy", "--config", m.write("kube-proxy.yaml", fmt.Sprintf(proxyConfig, c.Dir, pods, m.name))))
		}
	}
	return c
}

// newMachines starts the machines. With host-gw, several share a link. Otherwise there is a router
// between each two, so that packets go by the backend's own way.
func newMachines(t *testing.T, logs string, count int) (all []*machine) {
	t.Helper()
	if count == 1 {
		m := newMachine(t)
		m.logs = logs
		return []*machine{m}
	}
	underlay := node.NewUnderlay(t)
	segment := underlay.Segment(node.Media{})
	for i := range count {
		if i > 0 && *backend != "host-gw" {
			segment = underlay.Segment(node.Media{})
		}
		m := newMachineOf(t, fmt.Sprint("n", i+1), segment.Node)
		m.logs = logs
		if i > 0 {
			m.logs = filepath.Join(logs, m.name)
		}
		if err := os.MkdirAll(m.logs, 0o755); err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

// apiServerFlags writes the certificates and tokens of the API server and returns its flags.
func (c *cluster) apiServerFlags() []string {
	c.t.Helper()
	address, _ := c.addresses()
	key := c.write("service-accounts.key", newKey(c.t))
	c.ca = c.writeCertificates()
	c.ca.server("apiserver", []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		"127.0.0.1", apiService, address)
	c.newAuthority("front").client("front-client", "front", "")
	return []string{"--etcd-servers", "http://127.0.0.1:2379", "--bind-address", "0.0.0.0", "--secure-port", "6443", "--advertise-address", address,
		"--service-cluster-ip-range", serviceRange, "--allow-privileged", "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--token-auth-file", c.tokens(),
		"--client-ca-file", c.Dir + "/ca.crt", "--tls-cert-file", c.Dir + "/apiserver.crt", "--tls-private-key-file", c.Dir + "/apiserver.key",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--kubelet-preferred-address-types", "InternalIP", "--kubelet-client-certificate", c.Dir + "/client.crt", "--kubelet-client-key", c.Dir + "/client.key",
		"--requestheader-client-ca-file", c.Dir + "/front.crt", "--requestheader-allowed-names", "front", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", c.Dir + "/front-client.crt", "--proxy-client-key-file", c.Dir + "/front-client.key",
		"--enable-aggregator-routing"}
}

// kubeconfig returns a kubeconfig for all nodes.
func (c *cluster) kubeconfig(token string) string {
	address, _ := c.addresses()
	return strings.NewReplacer("insecure-skip-tls-verify: true", "certificate-authority: "+c.Dir+"/ca.crt", "127.0.0.1", address).Replace(fmt.Sprintf(kubeconfig, token))
}

// proxyConfig leaves the conntrack sysctls alone: they are the machine's, and not of its network
// namespace.
const proxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[1]s/admin.conf}
hostnameOverride: %[3]s
mode: nftables
clusterCIDR: %[2]s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// joinAs makes the huskds the nodes, or has kubelets use them. Then it starts the cluster's DNS
// server.
func (c *cluster) joinAs(kind string) {
	c.t.Helper()
	c.allowPolicies()
	if withoutProxy() {
		c.Must(c.program("kubectl"), "--kubeconfig", c.Dir+"/admin.conf", "create", "clusterrolebinding", "husk-service-proxy", "--clusterrole", "system:node-proxier", "--group", "system:nodes")
	}
	for _, m := range c.nodes() {
		c.joinMachine(m, kind)
	}
	c.awaitNodeReady()
	c.Must(c.program("kubectl"), "--kubeconfig", c.Dir+"/admin.conf", "apply", "-f", c.write("dns.yaml", clusterDNS))
	node.Eventually(c.t, 3*time.Minute, func() string {
		d, err := c.api.AppsV1().Deployments(metav1.NamespaceSystem).Get(c.t.Context(), "coredns", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if d.Status.ReadyReplicas == 0 {
			return "the DNS server isn't ready"
		}
		return ""
	})
}

// joinMachine makes a machine's huskd a node, or has a kubelet use it.
func (c *cluster) joinMachine(m *machine, kind string) {
	c.t.Helper()
	m.huskd.Stop()
	credentials := m.write("kubeconfig", c.kubeconfig(tokenPrefix+m.name))
	// Kubernetes' own clusters have this handler, and specs of RuntimeClasses use it.
	runc, err := exec.LookPath("runc")
	c.must(err)
	flags := []string{"--config", m.write("huskd.toml", fmt.Sprintf("[runtimes.test-handler]\npath = %q\n", runc))}
	zone := []string{"--node-labels", corev1.LabelTopologyZone + "=" + m.name} // some specs need several
	if len(c.others) > 0 {
		flags = append(flags, "--network-store", "kubernetes", "--network-backend", *backend, "--pod-subnets", podSubnets)
	}
	switch kind {
	case "huskd":
		proxy := "off"
		if withoutProxy() {
			proxy = "on"
		}
		flags = append(append(flags, zone...), "--kubeconfig", credentials, "--node-name", m.name, "--service-proxy", proxy, "--node-client-ca-file", c.Dir+"/ca.crt",
			"--cluster-dns", dnsService, "--image-gc-high", "100", "--eviction-hard", "nodefs.available=0%,imagefs.available=0%")
	case "kubelet":
		flags = append(flags, "--network-kubeconfig", credentials)
	default:
		c.t.Fatalf("the node is %q, not huskd or kubelet", kind)
	}
	log := m.log("huskd")
	m.huskd = m.Huskd(node.Flags(flags...), func(cmd *exec.Cmd) { cmd.Stdout, cmd.Stderr = log, log })
	if kind == "kubelet" {
		m.reclaim += fmt.Sprintf("\nclusterDNS: [%s]\nclusterDomain: cluster.local\nserializeImagePulls: false", dnsService)
		m.startKubelet(append(zone, "--kubeconfig", credentials)...)
	}
}

// withoutProxy reports whether huskd leads the connections of Services, instead of a kube-proxy.
func withoutProxy() bool { return os.Getenv("HUSK_TEST_KUBE_PROXY") == "off" }

//go:embed testdata/dns.yaml
var clusterDNS string

// leave deletes the pods that are left, waits until they are gone, and stops everything.
func (c *cluster) leave() {
	c.t.Helper()
	c.must(c.api.AppsV1().Deployments(metav1.NamespaceSystem).Delete(c.t.Context(), "coredns", metav1.DeleteOptions{}))
	node.Eventually(c.t, 3*time.Minute, func() string {
		pods, err := c.api.CoreV1().Pods("").List(c.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, p := range pods.Items {
			return p.Namespace + "/" + p.Name + " is " + describe(&p)
		}
		return ""
	})
	for _, m := range c.nodes() {
		m.awaitGone()
	}
	for _, p := range c.control {
		p.kill()
	}
	for _, m := range c.nodes() {
		m.Must(c.program("kube-proxy"), "--cleanup")
	}
}
