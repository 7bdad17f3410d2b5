package declared

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/placement"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lab has an owner of Services and the pods of its node.
type lab struct {
	t       *testing.T
	dir     string
	journal *journal.Journal
	*Services

	places  []placement.Place
	listens map[string]bool // on all addresses of the node

	mu     sync.Mutex
	pods   []agent.Pod
	events []string
	state  service.Changes
}

func newLab(t *testing.T) *lab {
	l := &lab{t: t, dir: filepath.Join(t.TempDir(), "journal"), listens: map[string]bool{}}
	for text, kind := range map[string]placement.Kind{
		"192.0.2.10/32": placement.Local, "2001:db8::10/128": placement.Local, "192.0.2.0/24": placement.Network, "192.0.2.1/32": placement.Gateway,
	} {
		l.places = append(l.places, placement.Place{Kind: kind, Prefix: netip.MustParsePrefix(text), Of: "of eth0"})
	}
	l.start()
	t.Cleanup(func() { l.journal.Close() })
	return l
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// start begins anew with what the journal has.
func (l *lab) start() {
	l.t.Helper()
	if l.journal != nil {
		l.journal.Close()
	}
	var err error
	if l.journal, _, err = journal.Open(l.dir); err != nil {
		l.t.Fatal(err)
	}
	l.state = service.Changes{Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
	l.Services, err = New(Config{
		Journal: l.journal, Subnets: prefixes("10.202.0.0/29", "fd68::/120"), PodSubnets: prefixes("10.201.0.0/16"), Node: "n",
		Places: func() ([]placement.Place, error) { return l.places, nil },
		Others: func() []placement.Place {
			return []placement.Place{
				{Kind: placement.Node, Prefix: netip.MustParsePrefix("10.50.0.2/32"), Of: "n2"},
				{Kind: placement.Resolver, Prefix: netip.MustParsePrefix("10.60.0.53/32"), Of: "of this node"},
				{Kind: placement.Resolver, Prefix: netip.MustParsePrefix("192.0.2.10/32"), Of: "of this node"},
			}
		},
		Listener: func(m pod.PortMapping) (at netip.AddrPort, listens bool, err error) {
			at = netip.AddrPortFrom(netip.IPv4Unspecified(), m.HostPort)
			return at, l.listens[fmt.Sprintf("%d/%s", m.HostPort, m.Protocol)], nil
		},
		Pods: func() []agent.Pod {
			l.mu.Lock()
			defer l.mu.Unlock()
			return slices.Clone(l.pods)
		},
		Report: func(e event.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, e.Pod+" "+e.Reason+": "+e.Message)
		},
		Changed: func(c service.Changes) {
			l.mu.Lock()
			defer l.mu.Unlock()
			maps.Copy(l.state.Services, c.Services)
			maps.Copy(l.state.Slices, c.Slices)
			maps.DeleteFunc(l.state.Slices, func(_ string, s *service.Slice) bool { return s == nil })
			maps.DeleteFunc(l.state.Services, func(_ string, s *service.Service) bool { return s == nil })
		},
		Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		l.t.Fatal(err)
	}
	for _, err := range l.Load() {
		l.t.Error(err)
	}
}

func (l *lab) parse(text string) manifest.File {
	l.t.Helper()
	f, err := manifest.Parse([]byte(text), manifest.Origin{File: "f", Services: true})
	if err != nil {
		l.t.Fatal(err)
	}
	return f
}

// run applies the Services of a file, and returns what they got or the error.
func (l *lab) run(spec string) string {
	l.t.Helper()
	name, spec, _ := strings.Cut(spec, " ")
	f := l.parse("{apiVersion: v1, kind: Service, metadata: {name: " + name + "}, spec: " + spec + "}")
	got, unchanged, err := l.Apply(l.t.Context(), Object{Service: f.Services[0]}, "run")
	if err != nil {
		return err.Error()
	}
	out := strings.Join(got.Spec.ClusterIPs, ",")
	for _, p := range got.Spec.Ports {
		if p.NodePort != 0 {
			out += fmt.Sprintf(" %d", p.NodePort)
		}
	}
	if unchanged {
		out += " unchanged"
	}
	return out
}

func (l *lab) want(when, got, want string) {
	l.t.Helper()
	if got != want {
		l.t.Errorf("%s: got %q, want %q", when, got, want)
	}
}

const onePort = "ports: [{port: 80}]"

// Addresses and node ports stay those of a Service while it exists: if it is run again, changed, or
// huskd restarts.
func TestAssignments(t *testing.T) {
	l := newLab(t)
	l.want("the first", l.run("web {type: NodePort, "+onePort+"}"), "10.202.0.2 31306")
	l.want("again", l.run("web {type: NodePort, "+onePort+"}"), "10.202.0.2 31306 unchanged")
	l.want("changed", l.run("web {type: NodePort, selector: {a: b}, "+onePort+"}"), "10.202.0.2 31306")
	l.want("both families", l.run("web {type: NodePort, ipFamilyPolicy: PreferDualStack, "+onePort+"}"), "10.202.0.2,fd68::2 31306")
	l.want("without node ports", l.run("web {ipFamilies: [IPv6], "+onePort+"}"), "fd68::2")
	l.want("another", l.run("db {clusterIP: 10.202.0.4, "+onePort+"}"), "10.202.0.4")
	l.want("a taken address", l.run("db2 {clusterIP: 10.202.0.4, "+onePort+"}"), "Service default/db2: clusterIP 10.202.0.4 is that of Service default/db: use another, or leave it out")
	l.want("a pod's address", l.run("db2 {clusterIP: 10.201.0.4, "+onePort+"}"), "Service default/db2: clusterIP 10.201.0.4 is in the subnet of pods, 10.201.0.0/16: use another, or leave it out")
	l.want("an address from elsewhere", l.run("db2 {clusterIP: 10.96.0.10, "+onePort+"}"), "10.96.0.10")
	l.want("no address", l.run("none {clusterIP: None}"), "")
	l.want("a name", l.run("name {type: ExternalName, externalName: example.com}"), "")
	l.want("a node port", l.run("n1 {type: NodePort, ports: [{port: 80, nodePort: 30080}]}"), "10.202.0.3 30080")
	l.want("a taken node port", l.run("n2 {type: NodePort, ports: [{port: 80, nodePort: 30080}]}"), "Service default/n2: node port 30080/TCP is that of Service default/n1: use another, or leave nodePort out")
	l.want("of another protocol", l.run("n2 {type: NodePort, ports: [{port: 80, protocol: UDP, nodePort: 30080}]}"), "10.202.0.5 30080")
	l.start()
	l.want("after a restart", l.run("web {ipFamilies: [IPv6], "+onePort+"}"), "fd68::2 unchanged")
	l.want("after a restart", l.run("n1 {type: NodePort, ports: [{port: 81, nodePort: 30080}]}"), "10.202.0.3 30080")
	l.want("another address", l.run("n1 {clusterIP: 10.202.0.6, "+onePort+"}"), "10.202.0.6")
	l.want("the last", l.run("last {"+onePort+"}"), "10.202.0.2")
	l.want("one more", l.run("more {"+onePort+"}"), "10.202.0.3")
	l.want("too many", l.run("most {"+onePort+"}"), "Service default/most: no address is left in service-subnets, which have 9 Services: remove some, or configure larger ones")
	if n, err := l.Remove(t.Context(), Object{Service: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1"}}}); n != 1 || err != nil {
		t.Error(n, err)
	}
	l.want("an address that was in use", l.run("most {clusterIP: 10.202.0.6, "+onePort+"}"), "10.202.0.6")
}

// podOn is a pod as the agent says it is.
func podOn(name, address string, ready bool) agent.Pod {
	p := agent.Pod{
		Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}}},
		Want:     podplan.Run, Sandboxes: []sandbox.Status{{ID: name}},
		Status: podplan.Status{Phase: podplan.PhaseRunning, IPs: []string{address}, Serving: ready, Ready: ready},
	}
	p.Manifest.Spec.Containers = []corev1.Container{{Name: "c", ReadinessProbe: &corev1.Probe{}, Ports: []corev1.ContainerPort{{HostPort: 30100}}}}
	p.Status.Containers = []podplan.ContainerStatus{{Name: "c", State: podplan.Running, Ready: ready}}
	if ready {
		p.Status.Containers[0].Health.Readiness = podplan.Healthy
	}
	return p
}

// set makes pods the node's.
func (l *lab) set(pods ...agent.Pod) {
	l.mu.Lock()
	l.pods = pods
	l.mu.Unlock()
	l.PodChanged()
}

// await waits until the endpoints of all Services are as wanted.
func (l *lab) await(when, want string) {
	l.t.Helper()
	got := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		got = ""
		for _, key := range slices.Sorted(maps.Keys(l.state.Slices)) {
			for _, e := range l.state.Slices[key].Endpoints {
				state := "not"
				switch {
				case e.Ready:
					state = "ready"
				case e.Serving && e.Terminating:
					state = "leaving"
				}
				got += fmt.Sprintf("%s:%s=%s ", key, e.Address, state)
			}
		}
		l.mu.Unlock()
		if got = strings.TrimSpace(got); got == want {
			return
		}
	}
	l.t.Errorf("%s: got %q, want %q", when, got, want)
}

// serve runs the source until stop is called.
func (l *lab) serve() (stop func()) {
	l.Start()
	ctx, cancel := context.WithCancel(l.t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx, func(service.Changes) {}, func(error) {}) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	}
}

// Endpoints follow the pods.
func TestEndpoints(t *testing.T) {
	l := newLab(t)
	stop := l.serve()
	l.run("web {selector: {app: web}, " + onePort + "}")
	l.set(podOn("a", "10.201.0.1", true), podOn("b", "10.201.0.2", false))
	l.await("at first", "default/web-ipv4-1:10.201.0.1=ready default/web-ipv4-1:10.201.0.2=not")
	l.set(podOn("a", "10.201.0.1", false), podOn("b", "10.201.0.2", false))
	l.await("once it was not ready", "default/web-ipv4-1:10.201.0.1=not default/web-ipv4-1:10.201.0.2=not")
	leaving := podOn("a", "10.201.0.1", true)
	leaving.Want, leaving.Status.Ready = podplan.Remove, false
	l.set(leaving)
	l.await("leaving", "default/web-ipv4-1:10.201.0.1=leaving")
	l.run("web {selector: {app: web}, clusterIP: None}")
	l.await("without an address", "default/web-ipv4-1:10.201.0.1=leaving")
	l.set()
	l.await("without pods", "")
	stop()
}

// A pod's hostPort and a Service's node port exclude each other.
func TestHostPorts(t *testing.T) {
	l := newLab(t)
	l.set(podOn("a", "10.201.0.1", true))
	l.want("a pod's port", l.run("web {type: NodePort, ports: [{port: 80, nodePort: 30100}]}"), "Service default/web: node port 30100/TCP is that of pod default/a, as its hostPort: use another, or leave nodePort out")
	l.run("web {type: NodePort, ports: [{port: 80, nodePort: 30101}]}")
	if err := l.Taken(pod.PortMapping{Protocol: pod.TCP, HostPort: 30101}); err == nil || err.Error() != "host port 30101/tcp is in use on this node: Service default/web has it as its node port; use another hostPort" {
		t.Error(err)
	}
	if err := l.Taken(pod.PortMapping{Protocol: pod.UDP, HostPort: 30101}); err != nil {
		t.Error(err)
	}
	// A pod that waits for the port of a Service doesn't take it when the Service changes.
	l.run("first {clusterIP: 10.202.0.6, type: NodePort, ports: [{port: 80, nodePort: 30102}]}")
	waits := podOn("b", "", false)
	waits.Manifest.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 30102, Protocol: corev1.ProtocolTCP}}
	l.set(waits)
	l.want("changed", l.run("first {clusterIP: 10.202.0.6, type: NodePort, selector: {a: b}, ports: [{port: 80, nodePort: 30102}]}"), "10.202.0.6 30102")
	l.want("another", l.run("second {type: NodePort, ports: [{port: 80, nodePort: 30102}]}"), "Service default/second: node port 30102/TCP is that of Service default/first: use another, or leave nodePort out")
}

// A Service can't take addresses and ports that something else has.
func TestPlaces(t *testing.T) {
	l := newLab(t)
	l.listens["22/tcp"], l.listens["30105/tcp"], l.listens["30106/udp"] = true, true, true
	l.set(podOn("a", "10.201.0.1", true)) // with hostPort 30100
	const refused = ": use another, or leave it out"
	for spec, want := range map[string]string{
		"{clusterIP: 192.0.2.10, " + onePort + "}":                              "clusterIP 192.0.2.10 is an address of this node of eth0" + refused,
		"{clusterIP: '2001:db8::10', " + onePort + "}":                          "clusterIP 2001:db8::10 is an address of this node of eth0" + refused,
		"{clusterIPs: [10.202.0.5, '2001:db8::10'], " + onePort + "}":           "clusterIP 2001:db8::10 is an address of this node of eth0" + refused,
		"{clusterIP: 192.0.2.1, " + onePort + "}":                               "clusterIP 192.0.2.1 is the address of a gateway of eth0" + refused,
		"{clusterIP: 192.0.2.99, " + onePort + "}":                              "clusterIP 192.0.2.99 is in the network 192.0.2.0/24 of eth0" + refused,
		"{clusterIP: 10.50.0.2, " + onePort + "}":                               "clusterIP 10.50.0.2 is an address of node n2" + refused,
		"{clusterIP: 10.60.0.53, " + onePort + "}":                              "clusterIP 10.60.0.53 is the address of a DNS server of this node" + refused,
		"{clusterIP: 169.254.169.254, " + onePort + "}":                         "clusterIP 169.254.169.254 is a link-local address" + refused,
		"{clusterIP: 8.8.8.8, " + onePort + "}":                                 "clusterIP 8.8.8.8 is neither private nor in service-subnets" + refused,
		"{externalIPs: [10.201.0.9], " + onePort + "}":                          "externalIPs[0] 10.201.0.9 is in the subnet of pods, 10.201.0.0/16" + refused,
		"{externalIPs: [203.0.113.1, 169.254.0.9], " + onePort + "}":            "externalIPs[1] 169.254.0.9 is a link-local address" + refused,
		"{externalIPs: ['fe80::9'], " + onePort + "}":                           "externalIPs[0] fe80::9 is a link-local address" + refused,
		"{externalIPs: [192.0.2.10], ports: [{port: 22}]}":                      "port 22/TCP of externalIP 192.0.2.10 is in use on this node: a process listens on 0.0.0.0:22; stop it, or use another port or address",
		"{externalIPs: ['2001:db8::10'], ports: [{port: 22}]}":                  "port 22/TCP of externalIP 2001:db8::10 is in use on this node: a process listens on 0.0.0.0:22; stop it, or use another port or address",
		"{externalIPs: [192.0.2.10], ports: [{port: 30100}]}":                   "port 30100/TCP of externalIP 192.0.2.10 is that of pod default/a, as its hostPort: use another port or address",
		"{type: NodePort, ports: [{port: 80, nodePort: 30105}]}":                "node port 30105/TCP is in use: a process listens on 0.0.0.0:30105; stop it, use another, or leave nodePort out",
		"{type: NodePort, ports: [{port: 80, protocol: UDP, nodePort: 30106}]}": "node port 30106/UDP is in use: a process listens on 0.0.0.0:30106; stop it, use another, or leave nodePort out",
	} {
		l.want(spec, l.run("bad "+spec), "Service default/bad: "+want)
	}
	if all := l.Effective(); len(all) > 0 {
		t.Errorf("refused Services count: %v", all)
	}
	l.want("a local external IP", l.run("ext {clusterIP: 10.202.0.2, externalIPs: [192.0.2.10], "+onePort+"}"), "10.202.0.2")
	l.want("one elsewhere", l.run("far {clusterIP: 10.202.0.3, externalIPs: [203.0.113.1], ports: [{port: 22}]}"), "10.202.0.3")
	l.want("a Service's", l.run("bad {externalIPs: [203.0.113.1], ports: [{port: 22}]}"), "Service default/bad: port 22/TCP of externalIP 203.0.113.1 is that of Service default/far: use another port or address")
	l.want("an external IP's port", l.run("np {type: NodePort, externalIPs: [192.0.2.10], ports: [{port: 30107, nodePort: 30107}]}"), "10.202.0.4 30107")
	l.want("another's node port", l.run("bad {externalIPs: [192.0.2.10], ports: [{port: 30107}]}"), "Service default/bad: port 30107/TCP of externalIP 192.0.2.10 is that of Service default/np: use another port or address")
	for m, want := range map[pod.PortMapping]string{
		{Protocol: pod.TCP, HostPort: 80}:                                            "host port 80/tcp is in use on this node: Service default/ext has it as the port of its externalIP 192.0.2.10; use another hostPort",
		{Protocol: pod.TCP, HostPort: 80, HostIP: netip.MustParseAddr("192.0.2.10")}: "host port 80/tcp is in use on this node: Service default/ext has it as the port of its externalIP 192.0.2.10; use another hostPort",
		{Protocol: pod.TCP, HostPort: 80, HostIP: netip.MustParseAddr("192.0.2.11")}: "",
		{Protocol: pod.UDP, HostPort: 80}:                                            "",
		{Protocol: pod.TCP, HostPort: 22}:                                            "",
	} {
		got := ""
		if err := l.Taken(m); err != nil {
			got = err.Error()
		}
		l.want(fmt.Sprint(m), got, want)
	}
	// What a Service has stays, though a process may listen there now. A chosen port is none of these.
	l.listens["30107/tcp"], l.listens["80/tcp"], l.listens["31306/tcp"] = true, true, true
	l.want("changed", l.run("np {type: NodePort, selector: {a: b}, externalIPs: [192.0.2.10], ports: [{port: 30107, nodePort: 30107}]}"), "10.202.0.4 30107")
	l.want("changed", l.run("ext {clusterIP: 10.202.0.2, selector: {a: b}, externalIPs: [192.0.2.10], "+onePort+"}"), "10.202.0.2")
	l.want("another port", l.run("web {type: NodePort, "+onePort+"}"), "10.202.0.5 31307")
	// The node's addresses change.
	if p := l.Problems(); len(p) > 0 {
		t.Errorf("problems %q", p)
	}
	l.places = append(l.places, placement.Place{Kind: placement.Local, Prefix: netip.MustParsePrefix("10.202.0.6/32"), Of: "on br0"},
		placement.Place{Kind: placement.Broadcast, Prefix: netip.MustParsePrefix("10.202.0.2/32"), Of: "of br0"})
	want := []string{
		"service-subnets has 10.202.0.0/29, where the node has something else: 10.202.0.2/32 is a broadcast address of br0, 10.202.0.6/32 is an address of this node on br0: configure other service-subnets",
		"Service default/ext: clusterIP 10.202.0.2 is a broadcast address of br0, whose packets it takes: give it another address",
	}
	if p := l.Problems(); !slices.Equal(p, want) {
		t.Errorf("problems %q, want %q", p, want)
	}
	l.want("a taken address", l.run("more {"+onePort+"}"), "Service default/more: the next address of service-subnets, 10.202.0.6, is an address of this node on br0: configure other service-subnets")
}

// What a directory declares comes and goes with its files, except for files that can't be read.
// husk run can't have the same names. A conflict ends with its cause.
func TestDeclare(t *testing.T) {
	l := newLab(t)
	declare := func(unread []string, files ...string) {
		t.Helper()
		set := source.Set{Kind: source.File, Unread: unread}
		for _, text := range files {
			at, name, _ := strings.Cut(text, " ")
			name, spec, _ := strings.Cut(name, " ")
			f := l.parse("{apiVersion: v1, kind: Service, metadata: {name: " + name + "}, spec: " + spec + "}")
			set.Services = append(set.Services, source.Service{Service: f.Services[0], Location: at})
		}
		l.Declare(set)
	}
	all := func() (out string) {
		for _, s := range l.Effective() {
			out += s.Name + "=" + s.Spec.ClusterIP + " "
		}
		return strings.TrimSpace(out)
	}
	declare(nil, "/a web {"+onePort+"}", "/b db {clusterIP: 10.202.0.2, "+onePort+"}")
	l.want("a conflict", all(), "db=10.202.0.2 web=10.202.0.3")
	declare(nil, "/c web {"+onePort+"}", "/b db {clusterIP: 10.202.0.2, "+onePort+"}", "/b second {clusterIP: 10.202.0.2, "+onePort+"}")
	l.want("moved, and a conflict", all(), "db=10.202.0.2 web=10.202.0.3")
	if want := []string{"default/service/second NotServed: Service default/second: clusterIP 10.202.0.2 is that of Service default/db: use another, or leave it out (from file:/b)"}; !slices.Equal(l.events, want) {
		t.Errorf("events %q, want %q", l.events, want)
	}
	l.want("husk run", l.run("web {"+onePort+"}"), "Service default/web exists already, from file:/c: rename one")
	if _, err := l.Remove(t.Context(), Object{Service: l.Effective()[1]}); err == nil || err.Error() != "Service default/web is declared in /c: remove it there" {
		t.Error(err)
	}
	l.start()
	declare([]string{"/b"}, "/c web {"+onePort+"}")
	l.want("unread", all(), "db=10.202.0.2 web=10.202.0.3")
	declare(nil, "/c web {"+onePort+"}", "/b second {clusterIP: 10.202.0.2, "+onePort+"}")
	l.want("without the cause", all(), "second=10.202.0.2 web=10.202.0.3")
	declare(nil)
	l.want("nothing", all(), "")
}

// A Service that no pod serves is reported once.
func TestNoPods(t *testing.T) {
	l := newLab(t)
	l.run("web {selector: {app: web}, " + onePort + "}")
	now := time.Now()
	if _, next := l.observe(now); next != selectTime {
		t.Errorf("look again after %v", next)
	}
	for range 2 {
		l.observe(now.Add(selectTime))
	}
	want := []string{"default/service/web NoPods: no pod in namespace default has the labels app=web, which its selector wants"}
	if !slices.Equal(l.events, want) {
		t.Errorf("events %q, want %q", l.events, want)
	}
}

// A node has no load balancer.
func TestLoadBalancer(t *testing.T) {
	l := newLab(t)
	l.run("web {type: LoadBalancer, ports: [{port: 80, nodePort: 30080}]}")
	want := []string{"default/service/web NoLoadBalancer: a node without a cluster has no load balancer: connect to node port 30080/TCP of this node"}
	if !slices.Equal(l.events, want) {
		t.Errorf("events %q, want %q", l.events, want)
	}
}
