package kubelet

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/huskd/husk/test/node"
)

// Networks of the whole cluster: the node's pods have huskd's default subnets.
const (
	serviceRange = "10.96.0.0/16"
	apiService   = "10.96.0.1"
	dnsService   = "10.96.0.10"
	podRange     = "10.201.0.0/16,fd68:7573:6b00::/64"
)

// newWholeCluster starts a cluster of one node with all that Kubernetes' own tests expect: the
// controllers, the scheduler, kube-proxy, and a registry with the images. The node hasn't joined.
func newWholeCluster(t *testing.T, logs string) *cluster {
	t.Helper()
	m := newMachine(t)
	m.logs = logs
	c := &cluster{machine: m, config: &rest.Config{
		Host: "https://" + m.forward("127.0.0.1:6443"), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 100,
	}}
	var err error
	c.api, err = kubernetes.NewForConfig(c.config)
	c.must(err)
	c.flags = c.apiServerFlags(node.Address4)
	c.serveImages()
	c.startControlPlane()
	c.write("admin.conf", c.kubeconfig(token))
	c.control = append(c.control,
		c.start("kube-controller-manager", "--kubeconfig", c.Dir+"/admin.conf", "--leader-elect=false", "--use-service-account-credentials",
			"--service-account-private-key-file", c.Dir+"/service-accounts.key", "--root-ca-file", c.Dir+"/ca.crt",
			"--cluster-signing-cert-file", c.Dir+"/ca.crt", "--cluster-signing-key-file", c.Dir+"/ca.key"),
		c.start("kube-scheduler", "--kubeconfig", c.Dir+"/admin.conf", "--leader-elect=false"),
	)
	if !withoutProxy() {
		c.control = append(c.control, c.start("kube-proxy", "--config", c.write("kube-proxy.yaml", fmt.Sprintf(proxyConfig, c.Dir, podRange))))
	}
	return c
}

// apiServerFlags writes the certificates of the API server at an address and returns its flags.
func (c *cluster) apiServerFlags(address string) []string {
	c.t.Helper()
	key := c.write("service-accounts.key", newKey(c.t))
	c.ca = c.writeCertificates()
	c.ca.server("apiserver", []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		"127.0.0.1", apiService, address)
	c.newAuthority("front").client("front-client", "front", "")
	return []string{"--etcd-servers", "http://127.0.0.1:2379", "--bind-address", "0.0.0.0", "--secure-port", "6443", "--advertise-address", address,
		"--service-cluster-ip-range", serviceRange, "--allow-privileged", "--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--token-auth-file", c.write("tokens.csv", token+",admin,admin,system:masters\n"+nodeToken+",system:node:node,node,system:nodes\n"),
		"--client-ca-file", c.Dir + "/ca.crt", "--tls-cert-file", c.Dir + "/apiserver.crt", "--tls-private-key-file", c.Dir + "/apiserver.key",
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--kubelet-preferred-address-types", "InternalIP", "--kubelet-client-certificate", c.Dir + "/client.crt", "--kubelet-client-key", c.Dir + "/client.key",
		"--requestheader-client-ca-file", c.Dir + "/front.crt", "--requestheader-allowed-names", "front", "--requestheader-username-headers", "X-Remote-User",
		"--requestheader-group-headers", "X-Remote-Group", "--requestheader-extra-headers-prefix", "X-Remote-Extra-",
		"--proxy-client-cert-file", c.Dir + "/front-client.crt", "--proxy-client-key-file", c.Dir + "/front-client.key",
		"--enable-aggregator-routing"}
}

func (c *cluster) kubeconfig(token string) string {
	return strings.ReplaceAll(fmt.Sprintf(kubeconfig, token), "insecure-skip-tls-verify: true", "certificate-authority: "+c.Dir+"/ca.crt")
}

// proxyConfig leaves the conntrack sysctls alone: they are the machine's, and not of its network
// namespace.
const proxyConfig = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: %[1]s/admin.conf}
hostnameOverride: node
mode: nftables
clusterCIDR: %[2]s
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// joinAs makes huskd the node, or has a kubelet use huskd. Then it starts the cluster's DNS server.
func (c *cluster) joinAs(kind string) {
	c.t.Helper()
	c.huskd.Stop()
	logged := func(cmd *exec.Cmd) {
		log := c.log("huskd")
		cmd.Stdout, cmd.Stderr = log, log
	}
	switch kind {
	case "huskd":
		c.allowPolicies()
		proxy := "off"
		if withoutProxy() {
			proxy = "on"
			c.Must(c.program("kubectl"), "--kubeconfig", c.Dir+"/admin.conf", "create", "clusterrolebinding", "husk-service-proxy", "--clusterrole", "system:node-proxier", "--group", "system:nodes")
		}
		c.huskd = c.Huskd(logged, node.Flags("--kubeconfig", c.write("kubeconfig", c.kubeconfig(nodeToken)), "--node-name", "node", "--service-proxy", proxy,
			"--node-client-ca-file", c.Dir+"/ca.crt", "--cluster-dns", dnsService, "--image-gc-high", "100", "--eviction-hard", "nodefs.available=0%,imagefs.available=0%"))
	case "kubelet":
		c.allowPolicies()
		c.huskd = c.Huskd(logged, node.Flags("--network-kubeconfig", c.write("network.kubeconfig", c.kubeconfig(nodeToken))))
		c.reclaim += fmt.Sprintf("\nclusterDNS: [%s]\nclusterDomain: cluster.local\nserializeImagePulls: false", dnsService)
		c.startKubelet("--kubeconfig", c.write("kubeconfig", c.kubeconfig(nodeToken)))
	default:
		c.t.Fatalf("the node is %q, not huskd or kubelet", kind)
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
	c.awaitGone()
	for _, p := range c.control {
		p.kill()
	}
	c.Must(c.program("kube-proxy"), "--cleanup")
}
