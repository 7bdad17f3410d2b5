package kubelet

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	registry "github.com/huskd/husk/internal/network/lease/kubernetes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/test/node"
)

// podSubnets are those of all nodes.
const podSubnets = "10.201.0.0/16,fd68:7573:6b01::/48"

// podCIDRs are flags by which the controller manager gives each node a part of podSubnets.
var podCIDRs = []string{"--allocate-node-cidrs", "--cluster-cidr", podSubnets, "--node-cidr-mask-size-ipv4", "24", "--node-cidr-mask-size-ipv6", "64"}

// worker is a node whose huskd is the network of another runtime, as which the test calls husk-cni.
type worker struct {
	*machine
	c    *cluster
	pods map[string][]netip.Addr
}

// newWorker adds a node, whose Node exists and whose huskd doesn't run yet.
func (c *cluster) newWorker(s *node.Segment) *worker {
	c.t.Helper()
	n := s.Node()
	w := &worker{machine: &machine{t: c.t, Node: n, name: n.Uplink.Name()}, c: c, pods: map[string][]netip.Addr{}}
	_, err := c.api.CoreV1().Nodes().Create(c.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.name}}, metav1.CreateOptions{})
	c.must(err)
	w.issue(time.Time{})
	w.Must("mkdir", "-p", "/run/netns")
	w.Must("mount", "-t", "tmpfs", "netns", "/run/netns")
	w.Must("mount", "--make-shared", "/run/netns")
	c.t.Cleanup(func() { _ = w.Command(context.Background(), "umount", "/run/netns").Run() })
	w.write("kubeconfig", fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: \"https://%v:6443\", certificate-authority: %s/ca.crt}}]\n"+
		"contexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {client-certificate: %s, client-key: %[3]s}}]\ncurrent-context: x\n",
		c.Uplink.Addresses[0].Addr(), c.Dir, w.Dir+"/kubelet-client-current.pem"))
	return w
}

// issue gives the node a new client certificate, as the kubelet does: in one file with its key.
func (w *worker) issue(end time.Time) {
	w.t.Helper()
	w.c.ca.clientUntil(end, w.name, "system:node:"+w.name, "system:nodes")
	var text strings.Builder
	for _, kind := range []string{".crt", ".key"} {
		part, err := os.ReadFile(filepath.Join(w.c.Dir, w.name+kind))
		w.c.must(err)
		text.Write(part)
	}
	w.write("kubelet-client-current.pem", text.String())
}

func (w *worker) launch() {
	w.t.Helper()
	w.huskd = w.Huskd(node.Flags("--network-only", "--network-store", "kubernetes", "--network-kubeconfig", w.Dir+"/kubeconfig", "--node-name", w.name, "--pod-subnets", podSubnets))
}

// conflist is the path of the configuration by which the runtime finds the network.
func (w *worker) conflist() string { return filepath.Join(w.CNI, "10-husk.conflist") }

// call calls husk-cni as a runtime does, with the configuration that huskd writes.
func (w *worker) call(command, pod string) (string, error) {
	w.t.Helper()
	program := w.Binary("husk-cni")
	cmd := w.Command(w.t.Context(), program)
	cmd.Env = []string{"CNI_COMMAND=" + command, "CNI_PATH=" + filepath.Dir(program), "CNI_CONTAINERID=" + pod, "CNI_NETNS=/run/netns/" + pod, "CNI_IFNAME=eth0"}
	cmd.Stdin = strings.NewReader(fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "husk", "type": "husk-cni", "network": "node", "daemon": "%s/husk.sock"}`, w.State))
	out, err := cmd.Output()
	return string(out), err
}

// add makes a pod: its addresses are of the node's podCIDRs.
func (w *worker) add(pod string) {
	w.t.Helper()
	w.Must("ip", "netns", "add", pod)
	text, err := w.call("ADD", pod)
	if err != nil {
		w.t.Fatalf("ADD on %s: %v: %s\n%s", w.name, err, text, w.huskd.Log())
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	w.c.must(json.Unmarshal([]byte(text), &result))
	cidrs := w.object().Spec.PodCIDRs
	for _, ip := range result.IPs {
		a := ip.Address.Addr()
		if !slices.ContainsFunc(cidrs, func(c string) bool { return netip.MustParsePrefix(c).Contains(a) }) {
			w.t.Errorf("%s of %s has the address %v, which isn't of %v", pod, w.name, a, cidrs)
		}
		w.pods[pod] = append(w.pods[pod], a)
	}
	if len(result.IPs) != 2 {
		w.t.Errorf("ADD on %s: %s", w.name, text)
	}
}

// remove removes the pod.
func (w *worker) remove(pod string) {
	w.t.Helper()
	if out, err := w.call("DEL", pod); err != nil {
		w.t.Errorf("DEL on %s: %v: %s", w.name, err, out)
	}
	w.Must("ip", "netns", "del", pod)
	delete(w.pods, pod)
}

// known is the node's last known Node: the API server may be away.
var known = map[string]*corev1.Node{}

func (w *worker) object() *corev1.Node {
	w.t.Helper()
	n, err := w.c.api.CoreV1().Nodes().Get(w.t.Context(), w.name, metav1.GetOptions{})
	if err != nil {
		return known[w.name]
	}
	known[w.name] = n
	return n
}

// reports waits until STATUS reports a text, and fails if the runtime has the network already.
func (w *worker) reports(text string) {
	w.t.Helper()
	node.Eventually(w.t, time.Minute, func() string {
		if out, err := w.call("STATUS", ""); err == nil || !strings.Contains(out, `"code": 50`) || !strings.Contains(out, text) {
			return fmt.Sprintf("STATUS of %s: %v: %s", w.name, err, out)
		}
		return ""
	})
	if _, err := os.Stat(w.conflist()); err == nil {
		w.t.Errorf("the runtime of %s has the network while STATUS says %s", w.name, text)
	}
}

// connected waits until the runtime has the network, and checks the node's record.
func (w *worker) connected() {
	w.t.Helper()
	node.Eventually(w.t, time.Minute, func() string {
		if _, err := os.Stat(w.conflist()); err != nil {
			out, _ := w.call("STATUS", "")
			return err.Error() + "\n" + out
		}
		n := w.object()
		record, err := peer.Parse([]byte(n.Annotations[registry.Annotation]))
		if err != nil {
			return fmt.Sprintf("the annotation of %s: %v", w.name, err)
		}
		if len(record.Blocks) != len(n.Spec.PodCIDRs) || len(record.Blocks) != 2 || !slices.Contains(record.Addresses, w.Uplink.Addresses[0].Addr()) {
			return fmt.Sprintf("the annotation of %s with %v is %s", w.name, n.Spec.PodCIDRs, n.Annotations[registry.Annotation])
		}
		return ""
	})
	w.ok()
}

// ok checks that STATUS succeeds.
func (w *worker) ok() {
	w.t.Helper()
	if out, err := w.call("STATUS", ""); err != nil {
		w.t.Errorf("STATUS of %s: %v: %s", w.name, err, out)
	}
}

// reach checks that each pod of a node reaches each of others.
func reach(t *testing.T, of ...*worker) {
	t.Helper()
	for _, from := range of {
		for _, to := range of {
			for name := range from.pods {
				for other, addresses := range to.pods {
					for _, a := range addresses {
						if from == to && name == other {
							continue
						}
						node.Eventually(t, 30*time.Second, func() string {
							if r := from.Run("ip", "netns", "exec", name, "ping", "-c1", "-W1", "-s1000", a.String()); r.Code != 0 {
								return fmt.Sprintf("%s of %s doesn't reach %v of %s: %s%s", name, from.name, a, to.name, r.Stdout, r.Stderr)
							}
							return ""
						})
					}
				}
			}
		}
	}
}

// sees waits until `husk net nodes` shows another node.
func (w *worker) sees(other string) {
	w.t.Helper()
	node.Eventually(w.t, time.Minute, func() string {
		if got := w.MustHusk("net", "nodes"); !strings.Contains(got, "\n"+other+" ") {
			return fmt.Sprintf("%s doesn't see %s:\n%s\n%s", w.name, other, got, w.huskd.Log())
		}
		return ""
	})
}

// TestNetworkOnly runs huskd as the pod network of another runtime, on nodes of a real API server
// with the kubelets' credentials. Nothing breaks while the API server is away and while a node's
// certificate has expired.
func TestNetworkOnly(t *testing.T) {
	s := node.NewUnderlay(t).Segment(node.Media{})
	c := &cluster{machine: &machine{t: t, Node: s.Node(), name: "server"}}
	c.config = &rest.Config{Host: "https://" + c.forward("127.0.0.1:6443"), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 100}
	var err error
	c.api, err = kubernetes.NewForConfig(c.config)
	c.must(err)
	c.flags = c.apiServerFlags()
	c.startControlPlane()
	a, b := c.newWorker(s), c.newWorker(s)

	a.launch()
	b.launch()
	a.reports("bind a ClusterRole with get, list and watch of nodes to the group system:nodes")
	c.allowNodes()
	a.reports("no podCIDRs for node " + a.name)
	c.control = append(c.control, c.start("kube-controller-manager", append(podCIDRs, "--kubeconfig", c.write("admin.conf", c.kubeconfig(token)), "--leader-elect=false",
		"--controllers", "node-ipam-controller")...))
	for _, w := range []*worker{a, b} {
		w.connected()
		w.add("first")
	}
	reach(t, a, b)

	for _, p := range slices.Backward(c.control) {
		p.kill()
	}
	a.huskd.Kill()
	a.launch()
	for _, w := range []*worker{a, b} {
		w.ok()
		w.add("second")
	}
	reach(t, a, b)

	b.issue(time.Now().Add(-time.Minute))
	c.startControlPlane()
	third, err := c.api.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "third", Annotations: map[string]string{registry.Annotation: `{"v":1,"addresses":["192.0.2.200"]}`}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.201.200.0/24", PodCIDRs: []string{"10.201.200.0/24"}},
	}, metav1.CreateOptions{})
	c.must(err)
	a.sees(third.Name)
	node.Eventually(t, time.Minute, func() string {
		if !strings.Contains(b.huskd.Log(), "Unauthorized") {
			return "an expired certificate isn't said:\n" + b.huskd.Log()
		}
		return ""
	})
	b.ok()
	b.add("third")
	reach(t, a, b)
	b.issue(time.Time{})
	b.sees(third.Name)

	for _, w := range []*worker{a, b} {
		for pod := range w.pods {
			w.remove(pod)
		}
		w.huskd.Stop()
		w.Must("umount", "/run/netns")
		w.NothingLeft()
	}
	for _, p := range c.control {
		p.kill()
	}
}
