package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/test/node"
)

// bootstrapToken is that of a machine that isn't a node yet.
const bootstrapToken = "iwanttojoin"

// bind gives a cluster role to a group.
func (c *cluster) bind(role, group string) {
	c.t.Helper()
	_, err := c.api.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "tests-" + role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:" + role},
		Subjects:   []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: group}},
	}, metav1.CreateOptions{})
	c.must(err)
}

// approve approves all requests of a signer until ctx ends, as a controller or a person does.
func (c *cluster) approve(ctx context.Context, signer string) {
	client := c.api.CertificatesV1().CertificateSigningRequests()
	for ctx.Err() == nil {
		list, err := client.List(ctx, metav1.ListOptions{})
		if err == nil {
			for _, r := range list.Items {
				if r.Spec.SignerName == signer && len(r.Status.Conditions) == 0 {
					r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
						Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", Message: "approved",
					})
					_, _ = client.UpdateApproval(ctx, r.Name, &r, metav1.UpdateOptions{})
				}
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// TestHuskdBootstrap makes a machine with a bootstrap token a node: the cluster's own controllers
// approve and sign its client certificate, and sign its serving certificate.
func TestHuskdBootstrap(t *testing.T) {
	c := newCluster(t)
	o := huskNode{c}
	// The authority for clients of the API server signs the certificates, too.
	for _, p := range c.control {
		p.kill()
	}
	tokens, err := os.ReadFile(c.Dir + "/tokens.csv")
	c.must(err)
	c.write("tokens.csv", string(tokens)+bootstrapToken+",machine,machine,system:bootstrappers\n")
	c.flags = append(c.flags, "--client-ca-file", c.Dir+"/ca.crt")
	c.startControlPlane()
	c.bind("node-bootstrapper", "system:bootstrappers")
	c.bind("certificates.k8s.io:certificatesigningrequests:nodeclient", "system:bootstrappers")
	c.control = append(c.control, c.start("kube-controller-manager", "--kubeconfig", c.write("admin.conf", fmt.Sprintf(kubeconfig, token)),
		"--controllers", "csrapproving,csrsigning", "--cluster-signing-cert-file", c.Dir+"/ca.crt", "--cluster-signing-key-file", c.Dir+"/ca.key", "--leader-elect=false"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go c.approve(ctx, certificatesv1.KubeletServingSignerName)

	o.huskd.Stop()
	start := func() {
		o.huskd = o.Huskd(node.Flags("--kubeconfig", o.Dir+"/written.conf", "--bootstrap-kubeconfig", o.write("bootstrap.conf", fmt.Sprintf(kubeconfig, bootstrapToken)),
			"--server-tls-bootstrap", "--node-name", "node", "--node-client-ca-file", o.Dir+"/ca.crt", "--kube-reserved", "cpu=100m,memory=64Mi",
			"--max-pods", "20", "--provider-id", "cloud://1", "--node-ip", node.Address4))
	}
	start()
	o.awaitNodeReady()
	n, err := o.api.CoreV1().Nodes().Get(t.Context(), "node", metav1.GetOptions{})
	o.must(err)
	if n.Spec.ProviderID != "cloud://1" || n.Status.Capacity.Cpu().MilliValue()-n.Status.Allocatable.Cpu().MilliValue() != 100 || n.Status.Allocatable.Pods().Value() != 20 {
		t.Errorf("the node is %+v", n)
	}
	server, err := o.api.Discovery().ServerVersion()
	o.must(err)
	if got := n.Status.NodeInfo.KubeletVersion; !strings.HasPrefix(got, server.GitVersion+"+husk-") && !strings.HasPrefix(got, "v1.37.") {
		t.Errorf("the node's version is %s, the server's %s", got, server.GitVersion)
	}
	if n.Status.NodeInfo.SystemUUID == "" && n.Status.NodeInfo.MachineID != "" {
		t.Error("the node has no system UUID")
	}
	node.Eventually(t, time.Minute, func() string {
		conn, err := o.dial(t.Context(), "tcp", "127.0.0.1:10250")
		if err != nil {
			return err.Error()
		}
		defer conn.Close()
		session := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
		if err := session.HandshakeContext(t.Context()); err != nil {
			return err.Error()
		}
		if leaf := session.ConnectionState().PeerCertificates[0]; leaf.Issuer.CommonName != "authority ca" || leaf.VerifyHostname(node.Address4) != nil {
			return fmt.Sprintf("the serving certificate is %s of %s for %v", leaf.Subject, leaf.Issuer, leaf.IPAddresses)
		}
		return ""
	})
	o.create(simple("web", "", "command: [sleep, '1000']"))
	o.await("web", ready)

	// The node comes back with what it has, without another bootstrap.
	o.huskd.Kill()
	o.Must("rm", o.Dir+"/bootstrap.conf")
	o.write("bootstrap.conf", fmt.Sprintf(kubeconfig, "expired"))
	before := o.requests()
	start()
	o.must(o.api.CoreV1().Nodes().Delete(t.Context(), "node", metav1.DeleteOptions{}))
	o.awaitNodeReady()
	if after := o.requests(); after != before {
		t.Errorf("%d requests for certificates, %d before the restart", after, before)
	}
	o.must(o.api.CoreV1().Pods("default").Delete(t.Context(), "web", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	o.awaitGone()
	o.Must("rm", "-r", o.Root+"/pki") // what the node is to the cluster outlives its pods
	o.end()
}

// requests returns the number of requests for certificates.
func (c *cluster) requests() int {
	c.t.Helper()
	list, err := c.api.CertificatesV1().CertificateSigningRequests().List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	return len(list.Items)
}
