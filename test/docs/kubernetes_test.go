package docs

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// objects returns the objects of a manifest by their kind.
func objects(t *testing.T, file string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, document := range strings.Split(read(t, file), "\n---\n") {
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &kind); err != nil {
			t.Fatal(err)
		}
		all[kind.Kind] = []byte(document)
	}
	return all
}

func decode(t *testing.T, document []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		t.Fatalf("%v\n%s", err, document)
	}
}

// TestNetworkManifest runs huskd with the configuration of the DaemonSet, and compares what it
// requests of an API server with what the manifest permits.
func TestNetworkManifest(t *testing.T) {
	t.Parallel()
	var role rbacv1.ClusterRole
	var config corev1.ConfigMap
	var agent appsv1.DaemonSet
	manifest := objects(t, "packaging/kubernetes/husk-network.yaml")
	decode(t, manifest["ClusterRole"], &role)
	decode(t, manifest["ConfigMap"], &config)
	decode(t, manifest["DaemonSet"], &agent)
	var permitted []string
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				permitted = append(permitted, verb+" "+rule.APIGroups[0]+"/"+resource)
			}
		}
	}
	mounts := map[string]string{}
	for _, m := range agent.Spec.Template.Spec.Containers[0].VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	for _, path := range []string{"/etc/husk", "/var/lib/husk", "/run/husk", "/etc/cni/net.d", "/run/netns"} {
		if mounts[path] == "" {
			t.Errorf("the DaemonSet doesn't mount %s", path)
		}
	}

	n := node.New(t)
	var server *clustertest.Server
	if err := netns.Do(n.Net(), func() error {
		server = clustertest.New(t) // listens in the node's network
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Annotations: map[string]string{}}, Spec: corev1.NodeSpec{PodCIDR: "10.244.3.0/24", PodCIDRs: []string{"10.244.3.0/24"}}}
	server.Put("/api/v1/nodes", own)
	server.Put("/apis/networking.k8s.io/v1/networkpolicies", &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deny"}})
	var mu sync.Mutex
	requested := map[string]bool{}
	server.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if verb := verbOf(r); verb != "" {
			mu.Lock()
			requested[verb] = true
			mu.Unlock()
		}
		if r.Method != http.MethodPatch {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(own)
		return true
	})
	toml := strings.ReplaceAll(config.Data["huskd.toml"], "/etc/husk/kubeconfig", server.Kubeconfig)
	path := filepath.Join(n.Dir, "network.toml")
	if err := os.WriteFile(path, []byte(toml), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.Huskd(node.Flags("--config", path, "--node-name", "here"))
	slices.Sort(permitted)
	node.Eventually(t, 30*time.Second, func() string {
		mu.Lock()
		defer mu.Unlock()
		var got []string
		for verb := range requested {
			got = append(got, verb)
		}
		slices.Sort(got)
		if !slices.Equal(got, permitted) {
			return "huskd requests\n" + strings.Join(got, "\n") + "\nthe manifest permits\n" + strings.Join(permitted, "\n")
		}
		return ""
	})
	n.MustHusk("shutdown")
	d.Wait(30 * time.Second)
}

// verbOf returns what an authorizer sees of a request for objects, such as "list apps/daemonsets".
func verbOf(r *http.Request) string {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	group := ""
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[2:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[3:]
	default:
		return "" // discovery, which every account may read
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		parts = parts[2:]
	}
	resource := group + "/" + parts[0]
	switch {
	case r.Method == http.MethodPatch:
		return "patch " + resource
	case r.Method != http.MethodGet:
		return strings.ToLower(r.Method) + " " + resource
	case len(parts) > 1:
		return "get " + resource
	case r.URL.Query().Get("watch") != "":
		return "watch " + resource
	}
	return "list " + resource
}
