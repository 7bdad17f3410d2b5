package kubernetes_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/network/lease/kubernetes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

// connected returns a Connect that returns at once.
func connected(client *cluster.Client) func(context.Context) (*cluster.Client, error) {
	return func(context.Context) (*cluster.Client, error) { return client, nil }
}

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

const list = "/api/v1/nodes"

// server is an API server with Nodes, whose annotations can be patched.
type server struct {
	*clustertest.Server
	t *testing.T

	mu       sync.Mutex
	nodes    map[string]*corev1.Node
	journals map[string]*journal
	refuse   func(r *http.Request) bool // whether to answer a request with 403
}

func newServer(t *testing.T) *server {
	s := &server{Server: clustertest.New(t), t: t, nodes: map[string]*corev1.Node{}, journals: map[string]*journal{}}
	s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		s.mu.Lock()
		refuse := s.refuse
		s.mu.Unlock()
		if refuse != nil && refuse(r) {
			clustertest.RespondError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		}
		name, is := strings.CutPrefix(r.URL.Path, list+"/")
		if !is || r.Method != http.MethodPatch {
			return false
		}
		var patch corev1.Node
		body, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(body, &patch); err != nil {
			t.Error(err)
		}
		s.edit(name, func(n *corev1.Node) { maps.Copy(n.Annotations, patch.Annotations) })
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.node(name))
		return true
	})
	return s
}

func (s *server) node(name string) *corev1.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		n = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	}
	n = n.DeepCopy()
	n.APIVersion, n.Kind = "v1", "Node"
	return n
}

// edit changes a Node, which may be new.
func (s *server) edit(name string, change func(*corev1.Node)) {
	n := s.node(name)
	change(n)
	s.mu.Lock()
	s.nodes[name] = n
	s.mu.Unlock()
	s.Put(list, n)
}

func (s *server) remove(name string) {
	s.mu.Lock()
	delete(s.nodes, name)
	s.mu.Unlock()
	s.Remove(list, "", name)
}

func (s *server) setRefuse(refuse func(r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// journal is a huskd's journal.
type journal struct {
	mu      sync.Mutex
	records map[string][]byte
}

func (j *journal) Get(key string) ([]byte, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	value, ok := j.records[key]
	return value, ok
}

func (j *journal) Put(key string, value []byte) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.records[key] = value
	return nil
}

// registry returns the registry of a node, which may have been there before.
func (s *server) registry(name string) *kubernetes.Registry {
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	if s.journals[name] == nil {
		s.journals[name] = &journal{records: map[string][]byte{}}
	}
	return kubernetes.New(kubernetes.Config{Connect: connected(client), Node: name, Journal: s.journals[name]})
}

// Join implements peertest.Cluster: the Node gets pod CIDRs from its address, as from a controller.
func (s *server) Join(_ *testing.T, name string, address netip.Addr) peer.Registry {
	if s.node(name).Spec.PodCIDRs == nil {
		s.addNode(name, int(address.As4()[3]))
	}
	return s.registry(name)
}

// Leave implements peertest.Cluster.
func (s *server) Leave(_ *testing.T, name string) { s.remove(name) }

func (s *server) addNode(name string, number int) {
	s.edit(name, func(n *corev1.Node) {
		n.Spec.PodCIDRs = []string{fmt.Sprintf("10.201.%d.0/24", number), fmt.Sprintf("fd68:7573:6b00:%x::/64", number)}
	})
}

func TestRegistry(t *testing.T) {
	peertest.Run(t, func(t *testing.T) peertest.Cluster { return newServer(t) }, peertest.Options{})
}

// member is a node whose registry runs.
type member struct {
	*kubernetes.Registry
	t    *testing.T
	mu   sync.Mutex
	last peer.View
	seen int
	stop func()
}

func (s *server) run(name string, record peer.Node) *member {
	m := &member{Registry: s.registry(name), t: s.t}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	m.Announce(record)
	go func() {
		ended <- m.Run(ctx, func(v peer.View) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.last, m.seen = v, m.seen+1
		})
	}()
	m.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(m.stop)
	return m
}

func (m *member) view() (peer.View, int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last, m.seen
}

// eventually waits for a view that ok accepts.
func (m *member) eventually(what string, ok func(peer.View) bool) {
	m.t.Helper()
	clustertest.Eventually(m.t, func() string {
		if v, seen := m.view(); seen == 0 || !ok(v) {
			return fmt.Sprintf("no view with %s, but %+v", what, v)
		}
		return ""
	})
}

func (m *member) mayNot(block, want string) {
	m.t.Helper()
	clustertest.Eventually(m.t, func() string {
		if err := m.May(netip.MustParsePrefix(block)); err == nil || !strings.Contains(err.Error(), want) {
			return fmt.Sprintf("May(%s) is %v, want %q", block, err, want)
		}
		return ""
	})
}

func (m *member) may(block string) {
	m.t.Helper()
	clustertest.Eventually(m.t, func() string {
		if err := m.May(netip.MustParsePrefix(block)); err != nil {
			return err.Error()
		}
		return ""
	})
}

var record = peer.Node{Boot: "b", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, MTU: 1500, VXLAN: &peer.VXLAN{VNI: 1, Port: 8472, MAC: peer.MAC{2, 0, 0, 0, 0, 1}}}

// TestFence: a Node that is deleted or gets other CIDRs ends the use of its block, and an API
// server that is away doesn't, not even over a restart.
func TestFence(t *testing.T) {
	s := newServer(t)
	here := s.run("here", record)
	here.mayNot("10.201.1.0/24", "has no Node here")
	s.addNode("here", 1)
	here.may("10.201.1.0/24")
	s.edit("here", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.201.2.0/24"} })
	here.mayNot("10.201.1.0/24", "not among the podCIDRs of node here, which are [10.201.2.0/24]")
	here.may("10.201.2.0/24")

	s.setRefuse(func(*http.Request) bool { return true })
	s.CloseConnections()
	here.stop()
	here = s.run("here", record)
	here.may("10.201.2.0/24")
	here.mayNot("10.201.1.0/24", "not among")
	clustertest.Eventually(t, func() string {
		if err := here.May(netip.Prefix{}); !strings.Contains(err.Error(), "bind a ClusterRole") {
			return fmt.Sprintf("May of no block is %v", err)
		}
		return ""
	})
	s.setRefuse(nil)
	here.eventually("its block", func(v peer.View) bool { return len(v.Blocks) == 1 })

	s.remove("here")
	here.mayNot("10.201.2.0/24", "has no Node here")
	here.stop()
	s.setRefuse(func(*http.Request) bool { return true })
	here = s.run("here", record)
	here.mayNot("10.201.2.0/24", "bind a ClusterRole with get, list and watch of nodes to the group system:nodes")
}

// TestAnnotationIsKept: what somebody removes or changes is written again.
func TestAnnotationIsKept(t *testing.T) {
	s := newServer(t)
	s.addNode("here", 1)
	s.run("here", record)
	for _, spoil := range []func(map[string]string){
		func(map[string]string) {},
		func(a map[string]string) { delete(a, kubernetes.Annotation) },
		func(a map[string]string) { a[kubernetes.Annotation] = "{" },
	} {
		s.edit("here", func(n *corev1.Node) { spoil(n.Annotations) })
		clustertest.Eventually(t, func() string {
			n, err := peer.Parse([]byte(s.node("here").Annotations[kubernetes.Annotation]))
			if err != nil || n.Name != "here" || n.MTU != 1500 || len(n.Blocks) != 2 || len(s.node("here").Annotations) != 1 {
				return fmt.Sprintf("the annotation is %v, %v", n, err)
			}
			return ""
		})
	}
}

// TestOthers: what other Nodes say can't do more than make themselves unreachable.
func TestOthers(t *testing.T) {
	s := newServer(t)
	s.addNode("here", 1)
	for i, text := range []string{
		`{"v":1,"node":"here","addresses":["192.0.2.9"],"blocks":["10.201.1.0/24"]}`, // claims our name and block
		`{`, `{"v":1,"addresses":["127.0.0.1"]}`, strings.Repeat(" ", 20000) + `{"v":1}`,
	} {
		name := fmt.Sprintf("n%d", i)
		s.addNode(name, 10+i)
		s.edit(name, func(n *corev1.Node) { n.Annotations[kubernetes.Annotation] = text })
	}
	for _, name := range []string{"x1", "x2", "x3", "x4", "x5"} {
		s.addNode(name, 20)
	}
	s.edit("y", func(n *corev1.Node) {
		n.Spec.PodCIDRs = []string{"224.0.0.0/24"}
		n.Annotations[kubernetes.Annotation] = `{"v":1,"addresses":["192.0.2.9"]}`
	})
	s.edit("new", func(*corev1.Node) {})
	here := s.run("here", record)
	here.eventually("one peer", func(v peer.View) bool { return len(v.Peers) == 1 })
	v, _ := here.view()
	if p := v.Peers[0]; p.Name != "n0" || p.Blocks[0].String() != "10.201.10.0/24" || p.Addresses[0].String() != "192.0.2.9" {
		t.Errorf("the peer is %+v", p)
	}
	want := []string{
		"node n1: annotation husk.dev/network: unexpected end of JSON input",
		"node n2: record of node n2: address 127.0.0.1 is not one that other nodes can reach",
		"node n3: annotation husk.dev/network of 20007 bytes: at most 16384",
		"node y: pod CIDRs [224.0.0.0/24]: block 224.0.0.0/24 has addresses that pods can't have",
		"pods of these nodes aren't reached, as the nodes have no annotation husk.dev/network, and are none of flannel's: x1, x2, x3 and 2 more",
	}
	if !slices.Equal(v.Notes, want) {
		t.Errorf("got notes\n%s\nwant\n%s", strings.Join(v.Notes, "\n"), strings.Join(want, "\n"))
	}

	_, before := here.view()
	s.edit("n0", func(n *corev1.Node) { n.Status.NodeInfo.KernelVersion = "7" }) // no news
	s.edit("n0", func(n *corev1.Node) { n.Spec.PodCIDRs = []string{"10.201.30.0/24"} })
	here.eventually("the new block", func(v peer.View) bool { return v.Peers[0].Blocks[0].String() == "10.201.30.0/24" })
	if _, after := here.view(); after != before+1 {
		t.Errorf("%d updates after one change", after-before)
	}
}

// TestCredentialsOfANode: who writes the annotation of one Node gets the packets of no other. The
// annotation can at most lead packets for its own pods astray, or make two nodes use another way.
func TestCredentialsOfANode(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd68:7573:6b00::/48")}
	const (
		key    = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE="
		ways   = `"vxlan":{"vni":1,"port":8472,"mac":"02:00:00:00:00:03"},"wireguard":[{"key":"` + key + `","port":51820}]`
		honest = `{"v":1,"node":"honest","addresses":["192.0.2.3","2001:db8::3"],"blocks":["10.201.3.0/24"],` + ways + `}`
		all    = "honest by vxlan wireguard; "
	)
	self := record
	self.Version, self.Name = peer.Version, "here"
	self.Addresses = append(slices.Clone(self.Addresses), netip.MustParseAddr("2001:db8::1"))
	for name, c := range map[string]struct{ node, annotation, want, note string }{
		"another's blocks":  {"evil", `{"v":1,"addresses":["192.0.2.9"],"blocks":["10.201.3.0/24","fd68:7573:6b00:3::/64"]}`, "evil by; " + all, ""},
		"this node's":       {"evil", `{"v":1,"addresses":["192.0.2.9"],"blocks":["10.201.1.0/24","fd68:7573:6b00:1::/64"]}`, "evil by; " + all, ""},
		"all pods'":         {"evil", `{"v":1,"addresses":["192.0.2.9"],"blocks":["10.201.0.0/16","fd68:7573:6b00::/48"]}`, "evil by; " + all, ""},
		"everything":        {"evil", `{"v":1,"addresses":["192.0.2.9"],"blocks":["0.0.0.0/0","::/0"]}`, "evil by; " + all, ""},
		"another's name":    {"evil", `{"v":1,"node":"honest","addresses":["192.0.2.9"],"blocks":["10.201.3.0/24"]}`, "evil by; " + all, ""},
		"this node's name":  {"evil", `{"v":1,"node":"here","addresses":["192.0.2.9"],"blocks":["10.201.1.0/24"]}`, "evil by; " + all, ""},
		"another's address": {"evil", `{"v":1,"addresses":["192.0.2.3","2001:db8::3"],"blocks":["10.201.3.0/24"]}`, "evil by; " + all, ""},
		"its MAC and key":   {"zevil", `{"v":1,"addresses":["192.0.2.3"],` + ways + `}`, all + "zevil by; ", "node zevil has the MAC 02:00:00:00:00:03 of node honest"},
		// The first by name keeps them: the other one is reached by another way, or not at all.
		"its MAC and key, before it": {"evil", `{"v":1,"addresses":["192.0.2.9"],` + ways + `}`, "evil by vxlan wireguard; honest by; ", "node honest has the key " + key + " of node evil"},
		"this node's MAC":            {"evil", `{"v":1,"addresses":["192.0.2.9"],"vxlan":{"vni":1,"port":8472,"mac":"02:00:00:00:00:01"}}`, "evil by; " + all, "node evil has the MAC 02:00:00:00:00:01 of node here"},
		"this node's address":        {"evil", `{"v":1,"addresses":["192.0.2.1"]}`, all, "node evil has this node's address 192.0.2.1"},
		"this node's IPv6 address":   {"evil", `{"v":1,"addresses":["192.0.2.9","2001:db8::1"]}`, all, "node evil has this node's address 2001:db8::1"},
		"a pod's address":            {"evil", `{"v":1,"addresses":["10.201.3.7"]}`, all, "node evil has the address 10.201.3.7, which is inside the pod subnets"},
		"a pod's IPv6 address":       {"evil", `{"v":1,"addresses":["fd68:7573:6b00:3::7"]}`, all, "node evil has the address fd68:7573:6b00:3::7, which is inside"},
		"loopback":                   {"evil", `{"v":1,"addresses":["127.0.0.1"]}`, all, "address 127.0.0.1 is not one that other nodes can reach"},
		"IPv6 loopback":              {"evil", `{"v":1,"addresses":["::1"]}`, all, "address ::1 is not one"},
		"multicast":                  {"evil", `{"v":1,"addresses":["224.0.0.1"]}`, all, "address 224.0.0.1 is not one"},
		"IPv6 multicast":             {"evil", `{"v":1,"addresses":["ff02::1"]}`, all, "address ff02::1 is not one"},
		"link-local":                 {"evil", `{"v":1,"addresses":["169.254.169.254"]}`, all, "address 169.254.169.254 is not one"},
		"IPv6 link-local":            {"evil", `{"v":1,"addresses":["fe80::1"]}`, all, "address fe80::1 is not one"},
		"too large":                  {"evil", `{"v":1,"x":"` + strings.Repeat("x", 16<<10) + `"}`, all, "at most 16384"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			numbers := map[string]int{"here": 1, "honest": 3, c.node: 9}
			for node, number := range numbers {
				s.addNode(node, number)
			}
			s.edit("honest", func(n *corev1.Node) { n.Annotations[kubernetes.Annotation] = honest })
			s.edit(c.node, func(n *corev1.Node) { n.Annotations[kubernetes.Annotation] = c.annotation })
			here := s.run("here", self)
			here.eventually("this node's blocks", func(v peer.View) bool { return len(v.Blocks) == 2 })
			v, _ := here.view()
			self := self
			self.Blocks = v.Blocks
			peers, notes := peer.Accept(cluster, self, v.Peers)
			notes = append(notes, v.Notes...)
			got := ""
			for _, p := range append(peers, &self) {
				number := numbers[p.Name]
				if want := []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.201.%d.0/24", number)), netip.MustParsePrefix(fmt.Sprintf("fd68:7573:6b00:%x::/64", number))}; !slices.Equal(p.Blocks, want) {
					t.Errorf("node %s has the blocks %v, want %v", p.Name, p.Blocks, want)
				}
				if p == &self {
					continue
				}
				got += p.Name + " by"
				if p.VXLAN != nil {
					got += " vxlan"
				}
				if p.WireGuard != nil {
					got += " wireguard"
				}
				got += "; "
			}
			if got != c.want {
				t.Errorf("accepted: %s, want %s", got, c.want)
			}
			if noted := slices.ContainsFunc(notes, func(n string) bool { return strings.Contains(n, c.note) }); c.note == "" && len(notes) > 0 || !noted && c.note != "" {
				t.Errorf("notes %q, want one with %q", notes, c.note)
			}
		})
	}
}

func TestNoCIDRs(t *testing.T) {
	s := newServer(t)
	s.edit("here", func(*corev1.Node) {})
	here := s.run("here", record)
	const why = "kube-controller-manager gives them to nodes with --allocate-node-cidrs"
	here.eventually("a note", func(v peer.View) bool { return len(v.Notes) == 1 && strings.Contains(v.Notes[0], why) })
	if err := here.May(netip.Prefix{}); err == nil || !strings.Contains(err.Error(), why) {
		t.Error(err)
	}
}

// TestFlannel: nodes of Husk and flannel know each other.
func TestFlannel(t *testing.T) {
	s := newServer(t)
	for name, number := range map[string]int{"here": 1, "husk": 2, "flanneld": 3} {
		s.edit(name, func(n *corev1.Node) { n.Spec.PodCIDRs = []string{fmt.Sprintf("10.201.%d.0/24", number)} })
	}
	s.edit("flanneld", func(n *corev1.Node) {
		n.Annotations = map[string]string{
			"flannel.alpha.coreos.com/backend-data": `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`, "flannel.alpha.coreos.com/backend-type": "vxlan",
			"flannel.alpha.coreos.com/public-ip": "192.0.2.3", "flannel.alpha.coreos.com/kube-subnet-manager": "true",
		}
	})
	here := s.run("here", record)
	other := record
	other.Addresses = []netip.Addr{netip.MustParseAddr("192.0.2.2")}
	s.run("husk", other)
	here.eventually("both peers", func(v peer.View) bool {
		return len(v.Peers) == 2 && v.Peers[0].Name == "flanneld" && v.Peers[0].VXLAN.MAC == peer.MAC{0x12, 0xc6, 0x65, 0x89, 0xb4, 0xe3} && v.Peers[0].Tunneled &&
			v.Peers[1].Name == "husk" && !v.Peers[1].Tunneled
	})
	clustertest.Eventually(t, func() string {
		a := s.node("here").Annotations
		if a["flannel.alpha.coreos.com/kube-subnet-manager"] != "true" || a["flannel.alpha.coreos.com/public-ip"] != "192.0.2.1" ||
			a["flannel.alpha.coreos.com/backend-data"] != `{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}` || a["flannel.alpha.coreos.com/backend-type"] != "vxlan" {
			return fmt.Sprintf("annotations %v", a)
		}
		return ""
	})
}

// big returns a Node as a kubelet reports it: 12 KB of JSON.
func big(i int) *corev1.Node {
	n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d.example.com", i), Labels: map[string]string{}, Annotations: map[string]string{}}}
	for l := range 20 {
		n.Labels[fmt.Sprintf("label-%d.example.com/of-the-node", l)] = fmt.Sprintf("value-%d", i)
	}
	for l := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: int64(l) << 20, Names: []string{
			fmt.Sprintf("registry.example.com/project/image-%d@sha256:%064x", l, i), fmt.Sprintf("registry.example.com/project/image-%d:v1.2.%d", l, i),
		}})
	}
	for _, c := range []corev1.NodeConditionType{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: c, Status: "True", Reason: "KubeletHasSufficient", Message: "kubelet has sufficient of it available"})
	}
	n.Spec.PodCIDRs = []string{fmt.Sprintf("10.%d.%d.0/24", 16+i>>8, i&255), fmt.Sprintf("fd68:7573:6b00:%x::/64", i)}
	n.Annotations[kubernetes.Annotation] = fmt.Sprintf(`{"v":1,"node":%q,"boot":"8d5bd0a2-1f0f-4f52-a7f1-%012x","addresses":["192.0.%d.%d","2001:db8::%x"],"blocks":[],"mtu":1500,"vxlan":{"vni":1,"port":8472,"mac":"02:00:00:00:%02x:%02x"}}`,
		n.Name, i, 2+i>>8, i&255, 1+i, i>>8, i&255)
	return n
}

func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / (1 << 20)
}

// BenchmarkNodes measures the memory of 5,000 nodes, as a list of whole objects and as the registry
// keeps them, with the view that its user has.
func BenchmarkNodes(b *testing.B) {
	const count = 5000
	s := clustertest.New(b)
	for i := range count {
		s.Put(list, big(i))
	}
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		before := heap()
		ctx, cancel := context.WithCancel(context.Background())
		c := cluster.Watch[*corev1.Node](ctx, client, cluster.List{Path: list, Item: &corev1.Node{}, List: &corev1.NodeList{}}, func() {})
		for !c.Synced() {
			time.Sleep(10 * time.Millisecond)
		}
		b.ReportMetric(heap()-before, "MB-whole")
		runtime.KeepAlive(c)
		cancel()
		client.Close()

		before = heap()
		ctx, cancel = context.WithCancel(context.Background())
		r := kubernetes.New(kubernetes.Config{Connect: connected(client), Node: "node-0000.example.com", Journal: &journal{records: map[string][]byte{}}})
		views, ended := make(chan peer.View, 8), make(chan error, 1)
		go func() { ended <- r.Run(ctx, func(v peer.View) { views <- v }) }()
		v := <-views
		b.ReportMetric(heap()-before, "MB-kept")
		var last peer.View
		for change := range 4 { // the watch may begin with the first one
			other := big(7)
			other.Spec.PodCIDRs[1] = fmt.Sprintf("fd68:7573:6b01:%x::/64", time.Now().UnixMicro()&0xffff+int64(change))
			start := time.Now()
			s.Put(list, other)
			last = <-views
			b.ReportMetric(float64(time.Since(start).Microseconds()), "µs/change")
		}
		if len(v.Peers) != count-1 || len(last.Peers) != count-1 || len(v.Notes) > 0 {
			b.Fatalf("%d peers, %v", len(v.Peers), v.Notes)
		}
		runtime.KeepAlive(r)
		cancel()
		if err := <-ended; err != nil {
			b.Fatal(err)
		}
		client.Close()
	}
}

// TestRenamed: the podCIDRs of a Node aren't used under another name, and pods that have addresses
// of them are told of. The journal of a former version has no name.
func TestRenamed(t *testing.T) {
	block := netip.MustParsePrefix("10.201.1.0/24")
	in := []peer.Usage{{Block: netip.MustParsePrefix("10.201.1.7/32"), Size: 1, Used: 1}}
	for text, former := range map[string]string{`["10.201.1.0/24"]`: "", `{"node":"a","blocks":["10.201.1.0/24"]}`: "a"} {
		for _, name := range []string{"a", "b"} {
			r := kubernetes.New(kubernetes.Config{Node: name, Journal: &journal{records: map[string][]byte{"node-pod-cidrs": []byte(text)}}})
			renamed := former != "" && former != name
			if err := r.May(block); renamed != (err != nil) {
				t.Errorf("journal %s: node %s may use the block: %v", text, name, err)
			}
			for _, used := range [][]peer.Usage{in, {{Block: block, Size: 254}}, {{Block: netip.MustParsePrefix("10.201.2.7/32"), Size: 1, Used: 1}}} {
				err := r.Renamed(used)
				if want := renamed && &used[0] == &in[0]; want != (err != nil) || want && !strings.Contains(err.Error(), "node b was node a before") {
					t.Errorf("journal %s, node %s, used %v: %v", text, name, used, err)
				}
			}
		}
	}
}
