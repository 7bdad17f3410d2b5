package kubelet

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	huskcluster "github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/network/lease/kubernetes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/test/node"
)

// noJournal forgets everything.
type noJournal struct{}

func (noJournal) Get(string) ([]byte, bool) { return nil, false }
func (noJournal) Put(string, []byte) error  { return nil }

// TestNetworkRegistry: with a kubelet's credentials, a node finds its blocks and peers and tells them
// its record.
func TestNetworkRegistry(t *testing.T) {
	c := newCluster(t)
	defer huskNode{c}.end()
	nodes := c.api.CoreV1().Nodes()
	for i, name := range []string{"node", "other"} {
		_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{
			kubernetes.Annotation: fmt.Sprintf(`{"v":1,"addresses":["192.0.2.%d"]}`, 1+i),
		}}, Spec: corev1.NodeSpec{PodCIDR: fmt.Sprintf("10.201.%d.0/24", 1+i), PodCIDRs: []string{fmt.Sprintf("10.201.%d.0/24", 1+i)}}}, metav1.CreateOptions{})
		c.must(err)
	}
	path := c.write("network.kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, insecure-skip-tls-verify: true}}]\n"+
		"contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: %s}}]\ncurrent-context: x\n", c.config.Host, nodeToken))
	client, err := huskcluster.New(path, slog.New(slog.DiscardHandler))
	c.must(err)
	r := kubernetes.New(kubernetes.Config{Connect: func(context.Context) (*huskcluster.Client, error) { return client, nil }, Node: "node", Journal: noJournal{}})
	r.Announce(peer.Node{Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.7")}, MTU: 1500})

	var mu sync.Mutex
	var last peer.View
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(ctx, func(v peer.View) {
			mu.Lock()
			defer mu.Unlock()
			last = v
		})
	}()
	defer func() {
		cancel()
		c.must(<-ended)
		client.Close()
	}()
	block := netip.MustParsePrefix("10.201.1.0/24")
	node.Eventually(t, time.Minute, func() string {
		if err := r.May(block); err == nil || !strings.Contains(err.Error(), "bind a ClusterRole with get, list and watch of nodes to the group system:nodes") {
			return fmt.Sprintf("May without the ClusterRole: %v", err)
		}
		return ""
	})

	c.allowNodes()
	written := func() string {
		n, err := nodes.Get(t.Context(), "node", metav1.GetOptions{})
		c.must(err)
		text := n.Annotations[kubernetes.Annotation]
		if record, err := peer.Parse([]byte(text)); err != nil || record.MTU != 1500 || record.Blocks[0] != block || record.Addresses[0].String() != "192.0.2.7" {
			return fmt.Sprintf("the annotation is %s: %v", text, err)
		}
		return ""
	}
	sees := func(peers string) func() string {
		return func() string {
			mu.Lock()
			defer mu.Unlock()
			text := ""
			for _, p := range last.Peers {
				text += fmt.Sprint(p.Name, p.Blocks, p.Addresses)
			}
			if text != peers || r.May(block) != nil {
				return fmt.Sprintf("the view is %+v, May says %v", last, r.May(block))
			}
			return ""
		}
	}
	node.Eventually(t, time.Minute, sees("other[10.201.2.0/24] [192.0.2.2]"))
	node.Eventually(t, time.Minute, written)
	_, err = nodes.Patch(t.Context(), "node", types.MergePatchType, []byte(`{"metadata":{"annotations":null}}`), metav1.PatchOptions{})
	c.must(err)
	node.Eventually(t, time.Minute, written)
	if err := client.Patch(t.Context(), "/api/v1/nodes/other", []byte(`{"metadata":{"annotations":{"husk.dev/network":"{}"}}}`), &corev1.Node{}); err == nil {
		t.Error("a node may write another node's record")
	}
	c.must(nodes.Delete(t.Context(), "other", metav1.DeleteOptions{}))
	node.Eventually(t, time.Minute, sees(""))
	c.must(nodes.Delete(t.Context(), "node", metav1.DeleteOptions{}))
	node.Eventually(t, time.Minute, func() string {
		if err := r.May(block); err == nil || !strings.Contains(err.Error(), "has no Node node") {
			return fmt.Sprintf("May says %v", err)
		}
		return ""
	})
}

// allowNodes lets all nodes read each other's Node, as docs/nodes.md says.
func (c *cluster) allowNodes() {
	c.t.Helper()
	_, err := c.api.RbacV1().ClusterRoles().Create(c.t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "husk-nodes"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
	}}, metav1.CreateOptions{})
	c.must(err)
	_, err = c.api.RbacV1().ClusterRoleBindings().Create(c.t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "husk-nodes"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "husk-nodes"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:nodes"}}}, metav1.CreateOptions{})
	c.must(err)
}
