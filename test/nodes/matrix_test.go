package nodes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/test/node"
)

// The lists of the API server.
const (
	podsPath       = "/api/v1/pods"
	namespacesPath = "/api/v1/namespaces"
	nodesPath      = "/api/v1/nodes"
	policiesPath   = "/apis/networking.k8s.io/v1/networkpolicies"
	clusterPath    = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
)

// hostPort is the port of its node that is translated to port 80 of the pod x.a.
const hostPort = 8080

// party is one end of connections: a pod, a node with what runs in its host network, or the host
// outside.
type party struct {
	name string // x.a@n1, n1@n1, or out@out
	*host
	of *runtime // nil outside
	// object is the pod's, and nil for what isn't a pod.
	object *corev1.Pod
	conf   *libcni.RuntimeConf
	ends   []func() // close the listeners
}

// lab is nodes of an API server, and their pods.
type lab struct {
	t       *testing.T
	server  *clustertest.Server
	cluster *cluster
	nodes   []*runtime
	parties []*party
	put     map[string][2]string // the policies on the server: path of the list, namespace and name

	mu      sync.Mutex
	objects map[string]*corev1.Node // by name; guarded by mu
}

// annotate serves the requests by which nodes change their annotations.
func (l *lab) annotate(w http.ResponseWriter, r *http.Request) bool {
	name, isNode := strings.CutPrefix(r.URL.Path, nodesPath+"/")
	if !isNode || r.Method != http.MethodPatch {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	object := l.objects[name]
	if err := json.NewDecoder(r.Body).Decode(object); err != nil { // a merge patch without nulls
		l.t.Error(err)
	}
	l.server.Put(nodesPath, object)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
	return true
}

// newLab starts nodes with nine pods: a, b and c of the namespaces x, w and z, each letter on
// another node, and a host that is no node.
func newLab(t *testing.T, backend, families string, outside *node.Segment, on ...*node.Segment) *lab {
	t.Helper()
	l := &lab{t: t, put: map[string][2]string{}, objects: map[string]*corev1.Node{}}
	router := outside.Prefixes()[0].Addr().As4()
	router[3] = 254
	l.cluster = newCluster(t, backend, families, on...) // the file isn't used
	nodes := l.cluster.nodes
	err := netns.Do(nodes[0].OtherNet(), func() error {
		listener, err := net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4(router), 0).String())
		if err == nil {
			l.server = clustertest.NewOn(t, listener)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	l.server.Intercept(l.annotate)
	in := slices.DeleteFunc(strings.Split(subnets, ","), func(s string) bool { return !has(families, netip.MustParsePrefix(s)) })
	for _, m := range nodes {
		if backend == "wireguard" || backend == "bgp" {
			m.Binary("husk-" + backend)
		}
		r := newRuntime(m)
		r.flags = node.Flags("--network-only", "--network-backend", backend, "--pod-subnets", strings.Join(in, ","), "--network-store", "kubernetes", "--network-kubeconfig", l.server.Kubeconfig, "--node-name", m.Uplink.Name(), "--network-policy", "on")
		l.nodes = append(l.nodes, r)
		object := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: m.Uplink.Name(), Labels: map[string]string{"node": m.Uplink.Name()}}}
		for _, b := range m.blocks {
			object.Spec.PodCIDRs = append(object.Spec.PodCIDRs, b.String())
		}
		h := &host{name: m.Uplink.Name(), netns: m.Net()}
		for _, a := range m.Uplink.Addresses {
			object.Status.Addresses = append(object.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.Addr().String()})
			h.addresses = append(h.addresses, a.Addr())
		}
		l.mu.Lock()
		l.objects[m.Uplink.Name()] = object
		l.mu.Unlock()
		l.server.Put(nodesPath, object)
		r.huskd = r.Launch(r.flags)
		l.parties = append(l.parties, &party{name: h.name + "@" + h.name, host: h, of: r})
	}
	for _, name := range []string{"x", "w", "z"} {
		l.namespace(name, map[string]string{"ns": name})
	}
	for _, r := range l.nodes {
		r.serves()
	}
	for _, ns := range []string{"x", "w", "z"} {
		for i, name := range []string{"a", "b", "c"} {
			r := l.nodes[i%len(l.nodes)]
			p := &party{name: ns + "." + name + "@" + r.Uplink.Name(), of: r}
			p.object = &corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{"pod": name}},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "serve-80-tcp", ContainerPort: 80}, {Name: "serve-81-tcp", ContainerPort: 81}, {Name: "serve-80-udp", ContainerPort: 80, Protocol: corev1.ProtocolUDP}}}}},
			}
			p.conf = runtimeConf(ns + name)
			p.conf.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", ns}, {"K8S_POD_NAME", name}}
			if ns == "x" && name == "a" {
				mapping := func(protocol string) map[string]any {
					return map[string]any{"hostPort": hostPort, "containerPort": 80, "protocol": protocol}
				}
				p.conf.CapabilityArgs = map[string]any{"portMappings": []any{mapping("tcp"), mapping("udp")}}
			}
			l.parties = append(l.parties, p)
			l.attach(p)
		}
	}
	out := outside.Host()
	h := &host{name: "out", netns: out.Net}
	for _, a := range out.Addresses {
		h.addresses = append(h.addresses, a.Addr())
	}
	l.parties = append(l.parties, &party{name: "out@out", host: h})
	for _, p := range l.parties {
		if p.object == nil {
			p.listen(t)
		}
	}
	return l
}

// attach starts a pod as a cluster does: the API server has it first, and its addresses afterwards.
func (l *lab) attach(p *party) {
	l.t.Helper()
	p.object.Status.PodIPs = nil
	l.server.Put(podsPath, p.object)
	p.host = p.of.attach(p.conf)
	for _, a := range p.addresses {
		p.object.Status.PodIPs = append(p.object.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	p.object.Status.Phase = corev1.PodRunning
	l.server.Put(podsPath, p.object)
	p.listen(l.t)
}

// detach ends a pod.
func (l *lab) detach(p *party) {
	l.t.Helper()
	for _, end := range p.ends {
		end()
	}
	p.ends = nil
	p.of.detach(p.conf)
	l.server.Remove(podsPath, p.object.Namespace, p.object.Name)
}

func (l *lab) namespace(name string, labels map[string]string) {
	l.server.Put(namespacesPath, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

// relabel changes the labels of a pod.
func (l *lab) relabel(name string, labels map[string]string) {
	p := l.party(name)
	p.object.Labels = labels
	l.server.Put(podsPath, p.object)
}

// party returns the party with a name, which may lack its node.
func (l *lab) party(name string) *party {
	l.t.Helper()
	for _, p := range l.parties {
		if matchesName(name, p.name) {
			return p
		}
	}
	l.t.Fatalf("no party is called %s", name)
	return nil
}

func matchesName(pattern, name string) bool {
	if !strings.Contains(pattern, "@") {
		pattern += "@*"
	}
	ok, _ := path.Match(pattern, name)
	return ok
}

// listen accepts TCP connections on ports 80 and 81, and answers UDP on port 80.
func (p *party) listen(t *testing.T) {
	t.Helper()
	err := netns.Do(p.netns, func() error {
		for _, a := range p.addresses {
			packets, err := net.ListenPacket("udp", netip.AddrPortFrom(a, 80).String())
			if err != nil {
				return err
			}
			p.ends = append(p.ends, func() { _ = packets.Close() })
			go echoUDP(packets)
			for _, port := range []uint16{80, 81} {
				streams, err := net.Listen("tcp", netip.AddrPortFrom(a, port).String())
				if err != nil {
					return err
				}
				p.ends = append(p.ends, func() { _ = streams.Close() })
				go func() {
					for {
						c, err := streams.Accept()
						if err != nil {
							return
						}
						go func() { // until the client has closed the connection
							_ = c.SetReadDeadline(time.Now().Add(2 * slowest))
							_, _ = c.Read(make([]byte, 1))
							_ = c.(*net.TCPConn).SetLinger(0) // see probe.begin
							_ = c.Close()
						}()
					}
				}()
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	t.Cleanup(func() {
		for _, end := range p.ends {
			end()
		}
	})
}

// probe is one connection that is tried.
type probe struct {
	from     *party
	to       string // the name of a party, or the node of a host port with the port
	port     string // tcp/80
	address  netip.AddrPort
	want     bool
	fd       int
	ended    bool // with an answer or an error
	answered bool
}

func (p *probe) String() string {
	return fmt.Sprintf("%s to %s (%v) %s: want %t", p.from.name, p.to, p.address.Addr(), p.port, p.want)
}

// probes returns those of all pairs, in every family that pods have.
func (l *lab) probes() (out []*probe) {
	for _, from := range l.parties {
		add := func(to string, addresses []netip.Addr, ports ...string) {
			for _, a := range addresses {
				if l.pods()[0].address(a.Is6()).IsValid() {
					for _, port := range ports {
						_, number, _ := strings.Cut(port, "/")
						n, _ := strconv.ParseUint(number, 10, 16)
						out = append(out, &probe{from: from, to: to, port: port, address: netip.AddrPortFrom(a, uint16(n)), want: true})
					}
				}
			}
		}
		for _, to := range l.parties {
			switch {
			case from == to && to.object == nil: // a host to itself
			case to.object != nil && from.of == nil: // nothing outside knows the way to pods
			case to.object != nil:
				add(to.name, to.addresses, "tcp/80", "tcp/81", "udp/80")
			default:
				add(to.name, to.addresses, "tcp/80", "udp/80")
			}
		}
		first := l.parties[0]
		add(first.Node()+":8080@"+first.Node(), first.addresses, "tcp/8080", "udp/8080")
	}
	return out
}

// Node returns the name of the party's node.
func (p *party) Node() string {
	_, at, _ := strings.Cut(p.name, "@")
	return at
}

func (l *lab) pods() (out []*party) {
	for _, p := range l.parties {
		if p.object != nil {
			out = append(out, p)
		}
	}
	return out
}

// always reports whether a connection is allowed whatever NetworkPolicies say: from a node to its
// own pods, from a pod to its own node, and from a pod to itself.
func (p *probe) always() bool {
	port := strings.Contains(p.to, ":")
	_, at, _ := strings.Cut(p.to, "@")
	switch {
	case p.from.object == nil:
		return p.from.Node() == at
	case port:
		return matchesName("x.a", p.from.name)
	}
	return p.from.name == p.to || p.to == p.from.Node()+"@"+p.from.Node()
}

// expect sets what is wanted of probes: everything is allowed but what lines deny, in their order:
// "deny FROM TO PORT" or "allow FROM TO PORT", with patterns of path.Match. Names are like w.b or,
// with the node, w.b@n2.
func expect(t *testing.T, probes []*probe, lines []string) {
	t.Helper()
	never := map[*probe]bool{}
	for _, line := range lines {
		words := strings.Fields(line)
		if len(words) != 4 || !slices.Contains([]string{"allow", "deny", "never"}, words[0]) {
			t.Fatalf("%q isn't an expectation", line)
		}
		for _, p := range probes {
			port, err := path.Match(strings.ReplaceAll(words[3], "/", "|"), strings.ReplaceAll(p.port, "/", "|"))
			if err != nil {
				t.Fatal(err)
			}
			if port && matchesName(words[1], p.from.name) && matchesName(words[2], p.to) {
				p.want, never[p] = words[0] == "allow", words[0] == "never"
			}
		}
	}
	for _, p := range probes {
		p.want = p.want || p.always() && !never[p]
	}
}

// Times of a round of probes. A connection that should be denied, but isn't, is found as quickly as
// those that are allowed.
const (
	quickest = 150 * time.Millisecond // how long an allowed connection may take in the first round
	slowest  = 3 * time.Second        // and in later ones
	calm     = 100 * time.Millisecond // how long others are watched after the last answer
)

// try tries all connections at once, for so long at most, and returns what isn't as wanted.
func (l *lab) try(probes []*probe, limit time.Duration) (wrong []string) {
	l.t.Helper()
	defer func() {
		for _, p := range probes {
			if p.fd >= 0 {
				_ = unix.Close(p.fd)
			}
		}
	}()
	for _, p := range probes {
		p.fd, p.ended, p.answered = -1, false, false
	}
	for i := 0; i < len(probes); {
		from := probes[i].from
		err := netns.Do(from.netns, func() error {
			for ; i < len(probes) && probes[i].from == from; i++ {
				if err := probes[i].begin(); err != nil {
					return fmt.Errorf("%v: %w", probes[i], err)
				}
			}
			return nil
		})
		if err != nil {
			return []string{err.Error()}
		}
	}
	complete := wait(probes, limit)
	for _, p := range probes {
		if p.answered != p.want && (complete || p.ended) {
			wrong = append(wrong, p.String())
		}
	}
	return wrong
}

// begin begins a connection from a socket of the current network namespace.
func (p *probe) begin() (err error) {
	family, kind := unix.AF_INET, unix.SOCK_STREAM
	var to unix.Sockaddr = &unix.SockaddrInet4{Port: int(p.address.Port())}
	if p.address.Addr().Is6() {
		family = unix.AF_INET6
		to = &unix.SockaddrInet6{Port: int(p.address.Port()), Addr: p.address.Addr().As16()}
	} else {
		to.(*unix.SockaddrInet4).Addr = p.address.Addr().As4()
	}
	udp := strings.HasPrefix(p.port, "udp")
	if udp {
		kind = unix.SOCK_DGRAM
	}
	if p.fd, err = unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0); err != nil {
		return err
	}
	if !udp {
		// A closed connection whose other end is gone would keep its network namespace for minutes.
		if err := unix.SetsockoptLinger(p.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return err
		}
	}
	if err := unix.Connect(p.fd, to); err != nil && err != unix.EINPROGRESS {
		return err
	}
	if udp {
		_, err = unix.Write(p.fd, make([]byte, 100))
	}
	return err
}

// wait waits for answers, until there is a wrong one: then it isn't complete.
func wait(probes []*probe, limit time.Duration) (complete bool) {
	began := time.Now()
	last := began
	open := slices.Clone(probes)
	for {
		missing := slices.ContainsFunc(open, func(p *probe) bool { return p.want })
		left := calm - time.Since(last)
		if missing {
			left = limit - time.Since(began)
		}
		if left <= 0 {
			return true
		}
		fds := make([]unix.PollFd, len(open))
		for i, p := range open {
			fds[i] = unix.PollFd{Fd: int32(p.fd), Events: unix.POLLOUT}
			if strings.HasPrefix(p.port, "udp") {
				fds[i].Events = unix.POLLIN
			}
		}
		n, err := unix.Poll(fds, max(1, int(left.Milliseconds())))
		if err != nil && err != unix.EINTR || n == 0 {
			continue
		}
		var rest []*probe
		for i, p := range open {
			if fds[i].Revents == 0 {
				rest = append(rest, p)
				continue
			}
			code, err := unix.GetsockoptInt(p.fd, unix.SOL_SOCKET, unix.SO_ERROR)
			p.ended, p.answered = true, err == nil && code == 0
			if p.answered != p.want {
				return false
			}
		}
		open, last = rest, time.Now()
	}
}

// converges waits until all connections are as wanted.
func (l *lab) converges(t *testing.T, lines []string) {
	t.Helper()
	probes := l.probes()
	expect(t, probes, lines)
	deadline := time.Now().Add(20 * time.Second)
	for limit := quickest; ; limit = min(2*limit, slowest) {
		wrong := l.try(probes, limit)
		switch {
		case len(wrong) == 0:
			return
		case time.Now().After(deadline):
			t.Errorf("%d of %d connections are not as wanted:\n%s", len(wrong), len(probes), strings.Join(wrong[:min(len(wrong), 40)], "\n"))
			return
		}
	}
}

var addressed = regexp.MustCompile(`\$(ip|net|allbut)\(([^)]*)\)`)

// expand replaces what stands for addresses in policies: $ip(NAME) are the ipBlocks of a party,
// with every address from which it reaches pods, $allbut(NAME) all other addresses, and $net(NAME)
// the networks of a ClusterNetworkPolicy.
func (l *lab) expand(text string) string {
	return addressed.ReplaceAllStringFunc(text, func(call string) string {
		what := addressed.FindStringSubmatch(call)
		p := l.party(what[2])
		addresses := slices.Clone(p.addresses)
		if p.object == nil && p.of != nil {
			for _, b := range p.of.blocks {
				addresses = append(addresses, b.Addr().Next())
			}
		}
		var out []string
		except := map[string][]string{}
		for _, a := range addresses {
			single := strconv.Quote(netip.PrefixFrom(a, a.BitLen()).String())
			all := `"0.0.0.0/0"`
			if a.Is6() {
				all = `"::/0"`
			}
			except[all] = append(except[all], single)
			if what[1] == "net" {
				out = append(out, single)
			} else {
				out = append(out, "{ipBlock: {cidr: "+single+"}}")
			}
		}
		if what[1] == "allbut" {
			out = nil
			for all, singles := range except {
				out = append(out, "{ipBlock: {cidr: "+all+", except: ["+strings.Join(singles, ", ")+"]}}")
			}
		}
		return strings.Join(out, ", ")
	})
}

// apply makes the policies of a text those on the server.
func (l *lab) apply(text string) {
	l.t.Helper()
	want := map[string]bool{}
	for document := range strings.SplitSeq(l.expand(text), "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		var o clustertest.Object = &networkingv1.NetworkPolicy{}
		list := policiesPath
		if strings.Contains(document, "tier:") {
			o, list = &accept.ClusterNetworkPolicy{}, clusterPath
		}
		if err := yaml.UnmarshalStrict([]byte(document), o); err != nil {
			l.t.Fatalf("%v:\n%s", err, document)
		}
		key := list + " " + o.GetNamespace() + "/" + o.GetName()
		want[key] = true
		l.put[key] = [2]string{o.GetNamespace(), o.GetName()}
		l.server.Put(list, o)
	}
	for key, name := range l.put {
		if !want[key] {
			list, _, _ := strings.Cut(key, " ")
			l.server.Remove(list, name[0], name[1])
			delete(l.put, key)
		}
	}
}

// end removes everything, and checks that nothing is left.
func (l *lab) end() {
	l.t.Helper()
	for _, p := range l.pods() {
		l.detach(p)
	}
	for _, p := range l.parties {
		for _, end := range p.ends {
			end()
		}
	}
	for _, r := range l.nodes {
		r.huskd.Stop()
		r.Must("umount", "/run/netns")
		r.NothingLeft()
	}
}

// TestPolicyMatrix tries all connections between pods, nodes and a host outside under many
// policies, on one node and across three, by every way between them.
func TestPolicyMatrix(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		backend, families, way string
		nodes                  int
		apart                  bool // each node has a segment of its own
	}{
		{"host-gw", "46", "", 1, false},
		{"host-gw", "4", "direct", 3, false},
		{"host-gw", "6", "direct", 3, false},
		{"host-gw", "46", "direct", 3, false},
		{"vxlan", "46", "vxlan", 3, true},
		{"wireguard", "46", "wireguard", 3, true},
		{"bgp", "46", "bgp", 3, false},
	} {
		t.Run(fmt.Sprintf("%d_nodes_%s_IPv%s", c.nodes, c.backend, c.families), func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			on := []*node.Segment{u.Segment(node.Media{})}
			for len(on) < c.nodes {
				next := on[0]
				if c.apart {
					next = u.Segment(node.Media{})
				}
				on = append(on, next)
			}
			l := newLab(t, c.backend, c.families, u.Segment(node.Media{MTU: narrow}), on...)
			if c.way != "" {
				l.cluster.goes(by(c.way))
			}
			for _, row := range policyRows {
				l.run(t, row)
			}
			l.end()
		})
	}
}

// run runs a row of the table.
func (l *lab) run(t *testing.T, row policyRow) {
	t.Run(strings.ReplaceAll(row.name, " ", "_"), func(t *testing.T) {
		for _, s := range row.steps {
			if s.change != nil {
				s.change(l)
			}
			l.apply(s.policies)
			l.converges(t, s.expect)
			if s.also != nil {
				s.also(t, l)
			}
		}
	})
}
