package kubelet

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/test/node"
)

// allowPolicies creates the objects of docs/policy.md, which let nodes read policies.
func (c *cluster) allowPolicies() {
	c.t.Helper()
	page, err := os.ReadFile("../../../docs/policy.md")
	c.must(err)
	_, rest, _ := strings.Cut(string(page), "  ```yaml\n")
	manifest, _, _ := strings.Cut(rest, "  ```\n")
	first, second, found := strings.Cut(strings.ReplaceAll("\n"+manifest, "\n  ", "\n"), "---\n")
	if !found {
		c.t.Fatal("docs/policy.md has no manifest of two objects")
	}
	var role rbacv1.ClusterRole
	var binding rbacv1.ClusterRoleBinding
	c.must(yaml.UnmarshalStrict([]byte(first), &role))
	c.must(yaml.UnmarshalStrict([]byte(second), &binding))
	_, err = c.api.RbacV1().ClusterRoles().Create(c.t.Context(), &role, metav1.CreateOptions{})
	c.must(err)
	_, err = c.api.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &binding, metav1.CreateOptions{})
	c.must(err)
}

// labelled is a pod with one label and a web server.
func labelled(name, role string) string {
	return strings.Replace(simple(name, "", `command: [sh, -c, "echo hello > /index.html; exec httpd -f -p 80 -h /"], readinessProbe: {httpGet: {path: /index.html, port: 80}, periodSeconds: 1}`),
		"namespace: default}", "namespace: default, labels: {role: "+role+"}}", 1)
}

// fetches waits until a pod can fetch from another, or can't.
func (c *cluster) fetches(from string, to *corev1.Pod, want bool) {
	c.t.Helper()
	node.Eventually(c.t, time.Minute, func() string {
		got := strings.HasSuffix(c.run(from, "c", "sh", "-c", `printf 'GET /index.html HTTP/1.0\r\n\r\n' | nc -w 1 `+to.Status.PodIP+" 80"), "\nhello\n")
		if got != want {
			return fmt.Sprintf("%s fetches from %s: %v, want %v\n%s", from, to.Name, got, want, c.MustHusk("net", "policy"))
		}
		return ""
	})
}

// TestNetworkPolicyBesideKubelet: huskd enforces the API server's policies for the pods of a kubelet
// that calls it by CRI. Its kubeconfig is written later than huskd starts.
func TestNetworkPolicyBesideKubelet(t *testing.T) {
	c := newCluster(t)
	c.huskd.Stop()
	flags := node.Flags("--network-kubeconfig", c.Dir+"/network.kubeconfig")
	c.huskd = c.Huskd(flags)
	c.join()
	c.awaitNodeReady()
	c.create(labelled("web", "server"))
	node.Eventually(t, time.Minute, func() string {
		if p := c.pod("web"); p != nil && p.Status.PodIP != "" {
			t.Fatal("a pod was attached before the source of policies was known")
		}
		list, err := c.api.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		c.must(err)
		for _, e := range list.Items {
			if strings.Contains(e.Message, "network policy is not known yet: policies: the API server has not answered yet") {
				return ""
			}
		}
		return "no event says why the pod isn't started"
	})
	c.allowPolicies()
	c.write("network.kubeconfig", fmt.Sprintf(kubeconfig, nodeToken))
	web := c.await("web", ready)
	c.create(labelled("friend", "friend"))
	c.create(labelled("stranger", "stranger"))
	c.await("friend", ready)
	c.await("stranger", ready)
	c.fetches("friend", web, true)
	c.fetches("stranger", web, true)

	policies := c.api.NetworkingV1().NetworkPolicies("default")
	_, err := policies.Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": "server"}},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "friend"}}}}}},
		},
	}, metav1.CreateOptions{})
	c.must(err)
	c.fetches("stranger", web, false)
	c.fetches("friend", web, true)
	c.huskd.Kill()
	c.huskd = c.Huskd(flags)
	c.create(labelled("late", "stranger"))
	c.await("late", ready)
	c.fetches("late", web, false)
	c.fetches("friend", web, true)
	c.await("web", ready) // the kubelet's probes reach it

	c.must(policies.Delete(t.Context(), "web", metav1.DeleteOptions{}))
	c.fetches("stranger", web, true)
	for _, name := range []string{"web", "friend", "stranger", "late"} {
		c.must(c.api.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}))
	}
	c.awaitGone() // the kubelet needs the API server for that
	c.end()
}
