package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/test/node"
)

// application is a Deployment, its Services and a client.
const application = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  selector: {app: web}
  ports: [{port: 8000, targetPort: http}]
---
apiVersion: v1
kind: Service
metadata: {name: each}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: c
        image: localhost/web:1
        command: [/bin/httpd, -f, -p, '80', -h, /www]
        ports: [{name: http, containerPort: 80}]
        readinessProbe: {httpGet: {port: http}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/web:1', command: [/bin/sleep, '1000000']}]
`

// listedService is a Service in the output of husk net services.
type listedService struct {
	Namespace, Name, Type string
	Addresses             []string
	Ports                 []struct {
		Port, NodePort int
		Endpoints      []string
	}
	Endpoints, Ready int
}

func services(t *testing.T, n *node.Node) map[string]listedService {
	t.Helper()
	var list []listedService
	if err := json.Unmarshal([]byte(n.MustHusk("net", "services", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	out := map[string]listedService{}
	for _, s := range list {
		out[s.Name] = s
	}
	return out
}

// fetch returns the name of the pod that answers a pod at an address, or nothing.
func fetch(n *node.Node, pod, address string) string {
	name, _, _ := strings.Cut(n.Husk("exec", pod, "--", "timeout", "5", "wget", "-q", "-O", "-", "http://"+address+"/").Stdout, " ")
	return strings.TrimSpace(name)
}

// answers waits until a pod with one of the names answers, and no other.
func answers(t *testing.T, what string, want []string, ask func() string) {
	t.Helper()
	node.Eventually(t, 60*time.Second, func() string {
		seen := map[string]bool{}
		for range 30 {
			name := ask()
			if !slices.Contains(want, name) {
				return fmt.Sprintf("%s: %q answers, want one of %v", what, name, want)
			}
			if seen[name] = true; len(seen) == len(want) {
				return ""
			}
		}
		return fmt.Sprintf("%s: only %v of %v answer", what, seen, want)
	})
}

// asking makes requests to an address until stop is called, which returns what failed.
func asking(path, address string) (stop func() []string) {
	done := make(chan struct{})
	var failed []string
	var running sync.WaitGroup
	running.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			if _, err := node.Get(path, address); err != nil {
				failed = append(failed, err.Error())
			}
		}
	})
	return func() []string {
		close(done)
		running.Wait()
		return failed
	}
}

// TestServices runs an application of one file: its Service leads to its pods by name, address and
// port of the node. It follows the pods when they are replaced, and neither a kill of huskd nor a
// reboot changes its address. In the end, nothing is left.
func TestServices(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	d := startHuskd(t, n)
	table := "inet " + n.Instance().ServiceTable()
	if out := n.Must("nft", "list", "tables"); strings.Contains(out, table) {
		t.Errorf("without Services there is the table\n%s", out)
	}
	file := write(t, n, "app.yaml", application)
	run := func() string {
		t.Helper()
		r := n.Husk("run", "--wait", "--timeout", "120s", file)
		if r.Code != 0 {
			t.Fatalf("%+v\n%s\n%s", r, n.Husk("ps", "-a").Stdout, n.Husk("events").Stdout)
		}
		return r.Stdout
	}
	if out := run(); !strings.Contains(out, "service default/web at 10.203.0.2, node port 3") || !strings.Contains(out, "service default/each names its pods\n") ||
		!strings.Contains(out, "service default/alias is a name for web.default.svc.cluster.local\n") {
		t.Errorf("husk run prints\n%s", out)
	}
	web := services(t, n)["web"]
	if web.Type != "NodePort" || len(web.Addresses) != 1 || len(web.Ports) != 1 || web.Ready != 3 || len(web.Ports[0].Endpoints) != 3 {
		t.Fatalf("husk net services has %+v", web)
	}
	if out := n.MustHusk("net", "explain", "client", "web", "8000"); !strings.Contains(out, "leads to "+web.Ports[0].Endpoints[0]+", one of 3 endpoints\n") || !strings.Contains(out, "pod default/web-") {
		t.Errorf("husk net explain prints\n%s", out)
	}
	address, nodePort := fmt.Sprintf("%s:8000", web.Addresses[0]), fmt.Sprintf("%s:%d", node.Address4, web.Ports[0].NodePort)
	env := &testEnv{Node: n, t: t}
	pods := func() (out []string) {
		for _, p := range env.podsOf("deployment/default/web") {
			out = append(out, p.Name)
		}
		return out
	}
	get := func(path, address string) func() string {
		return func() string {
			body, _ := node.Get(path, address)
			name, _, _ := strings.Cut(body, " ")
			return strings.TrimSpace(name)
		}
	}
	reached := func(when string) {
		t.Helper()
		names := pods()
		for _, at := range []string{"web:8000", "web.default.svc.cluster.local:8000", address, "alias:8000", "each:80", nodePort} {
			answers(t, when+", a pod to "+at, names, func() string { return fetch(n, "client", at) })
		}
		answers(t, when+", the node to "+address, names, get(n.Net(), address))
		answers(t, when+", the node to its port", names, get(n.Net(), nodePort))
		answers(t, when+", another host to "+nodePort, names, get(n.OtherNet(), nodePort))
		answers(t, when+", a pod of the Service", names, func() string { return fetch(n, names[0], "web:8000") })
	}
	reached("at first")
	if out := n.MustHusk("exec", "client", "--", "env"); !strings.Contains(out, "WEB_SERVICE_HOST="+web.Addresses[0]+"\n") || !strings.Contains(out, "WEB_PORT=tcp://"+address+"\n") {
		t.Errorf("the client's variables are\n%s", out)
	}

	// An open connection outlives huskd, and new ones are led meanwhile.
	var open net.Conn
	if err := netns.Do(n.Net(), func() (err error) {
		open, err = net.DialTimeout("tcp", address, 5*time.Second)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	stop := asking(n.OtherNet(), nodePort)
	d.Kill()
	d = n.Huskd()
	node.Eventually(t, 20*time.Second, func() string {
		if got := services(t, n)["web"]; got.Ready != 3 || got.Addresses[0] != web.Addresses[0] || got.Ports[0].NodePort != web.Ports[0].NodePort {
			return fmt.Sprintf("the Service as before: %+v", got)
		}
		return ""
	})
	if failed := stop(); len(failed) > 0 {
		t.Errorf("%d requests failed while huskd was killed: %s", len(failed), failed[0])
	}
	if _, err := fmt.Fprint(open, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Error(err)
	} else if line, err := bufio.NewReader(open).ReadString('\n'); !strings.Contains(line, "200") {
		t.Errorf("the connection from before the kill answers %q, %v", line, err)
	}
	reached("after a kill")

	first := pods()
	n.MustHusk("restart", "deployment/web")
	n.MustHusk("rollout", "status", "deployment/web", "--wait", "--timeout", "60s")
	node.Eventually(t, 30*time.Second, func() string {
		for _, name := range pods() {
			if slices.Contains(first, name) {
				return name + " to be replaced"
			}
		}
		return ""
	})
	reached("after a rollout")

	if out := n.MustHusk("run", "--wait", file); !strings.Contains(out, "service default/web unchanged, at 10.203.0.2") {
		t.Errorf("husk run prints\n%s", out)
	}
	d.Stop()
	n.Reboot()
	d = n.Huskd()
	node.Eventually(t, 60*time.Second, func() string {
		if got := services(t, n)["web"]; got.Ready != 3 || got.Addresses[0] != web.Addresses[0] {
			return fmt.Sprintf("the Service as before the reboot: %+v", got)
		}
		return ""
	})
	reached("after a reboot")

	n.MustHusk("rm", "svc/default/alias")
	if r := n.Husk("rm", "-f", file); r.Code != 0 || !strings.Contains(r.Stdout, "service default/web removed\n") || !strings.Contains(r.Stderr, "service default/alias is not there\n") {
		t.Errorf("husk rm: %+v", r)
	}
	node.Eventually(t, 10*time.Second, func() string {
		if strings.Contains(n.Must("nft", "list", "tables"), table) {
			return "the table of Services to go"
		}
		return ""
	})
	d.Stop()
	n.NothingLeft()
}

// TestBadServices checks that each conflict is one clear line, that the rest of the file runs, and
// that the manifests directory serves Services, too.
func TestBadServices(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	if err := os.Mkdir(n.Dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	d := startHuskd(t, n, node.Flags("--manifests", n.Dir+"/manifests"))
	const one = "{apiVersion: v1, kind: Service, metadata: {name: %s}, spec: {%s}}\n---\n"
	file := ""
	for _, s := range [][2]string{
		{"a", "clusterIP: 10.203.0.9, ports: [{port: 80}]"},
		{"b", "clusterIP: 10.203.0.9, ports: [{port: 80}]"},
		{"c", "type: NodePort, ports: [{port: 80, nodePort: 30080}]"},
		{"d", "type: NodePort, ports: [{port: 80, nodePort: 30080}]"},
		{"e", "type: LoadBalancer, selector: {app: nobody}, ports: [{port: 80, nodePort: 30081}]"},
		{"f", "ipFamilyPolicy: PreferDualStack, ports: [{port: 80}]"},
	} {
		file += fmt.Sprintf(one, s[0], s[1])
	}
	pod := "{apiVersion: v1, kind: Pod, metadata: {name: p}, spec: {terminationGracePeriodSeconds: 0, containers: [{name: c, image: 'localhost/web:1', command: [/bin/sleep, '1000'], ports: [{containerPort: 80, hostPort: 30099}]}]}}"
	app := write(t, n, "app.yaml", file+pod)
	r := n.Husk("run", "--wait", app)
	for _, want := range []string{
		"husk: " + app + ": Service default/b: clusterIP 10.203.0.9 is that of Service default/a: use another, or leave it out\n",
		app + ": Service default/d: node port 30080/TCP is that of Service default/c: use another, or leave nodePort out\n",
		"service default/e: a node without a cluster has no load balancer: connect to node port 30081/TCP of this node\n",
		"service default/e: no pod in namespace default has the labels app=nobody, which its selector wants\n",
		"service default/f at 10.203.0.4, fd68:7573:6b80::2\n",
		"pod default/p ready",
	} {
		if !strings.Contains(r.Stdout+r.Stderr, want) {
			t.Errorf("husk run doesn't print %q:\n%s%s", want, r.Stdout, r.Stderr)
		}
	}
	if r.Code != 1 {
		t.Errorf("husk run returns %d", r.Code)
	}
	taken := write(t, n, "taken.yaml", fmt.Sprintf(one, "taken", "type: NodePort, ports: [{port: 80, nodePort: 30099}]"))
	r = n.Husk("run", taken)
	if want := "husk: " + taken + ": Service default/taken: node port 30099/TCP is that of pod default/p, as its hostPort: use another, or leave nodePort out\n"; r.Code != 1 || r.Stderr != want {
		t.Errorf("a pod's port: %+v", r)
	}
	n.MustHusk("run", write(t, n, "q.yaml", strings.NewReplacer("name: p}", "name: q}", "30099", "30081").Replace(pod)))
	n.MustHusk("run", write(t, n, "r.yaml", strings.NewReplacer("name: p}", "name: r}", "spec: {", "spec: {hostNetwork: true, ",
		"containerPort: 80, hostPort: 30099", "containerPort: 30081").Replace(pod)))
	node.Eventually(t, 20*time.Second, func() string {
		out := n.MustHusk("events")
		for _, pod := range []string{"q", "r"} {
			refused := func(line string) bool {
				return strings.Contains(line, " pod "+pod+" ") && strings.Contains(line, "host port 30081/tcp is in use on this node: Service default/e has it as its node port")
			}
			if !slices.ContainsFunc(strings.Split(out, "\n"), refused) {
				return "the Service's port to be refused to pod " + pod + ":\n" + out
			}
		}
		return ""
	})
	n.MustHusk("rm", "service/e")
	node.Eventually(t, 60*time.Second, func() string {
		if out := n.MustHusk("ps"); strings.Count(out, "Running") != 3 {
			return "the pods to start without the Service:\n" + out
		}
		return ""
	})
	path := write(t, n, "manifests/s.yaml", fmt.Sprintf(one, "declared", "clusterIP: 10.203.0.9, ports: [{port: 80}]")+
		fmt.Sprintf(one, "db", "ports: [{port: 80, targetPort: 8080}]")+
		"{apiVersion: v1, kind: Endpoints, metadata: {name: db}, subsets: [{addresses: [{ip: 192.0.2.77}], ports: [{port: 8080}]}]}")
	node.Eventually(t, 20*time.Second, func() string {
		if out := n.MustHusk("net", "services"); !strings.Contains(out, "80/TCP -> 192.0.2.77:8080\n") || !strings.Contains(n.MustHusk("events"), "Service default/declared: clusterIP 10.203.0.9 is that of Service default/a") {
			return "the directory's Services:\n" + out
		}
		return ""
	})
	n.MustHusk("rm", "service/a")
	if got := services(t, n)["declared"]; got.Addresses[0] != "10.203.0.9" {
		t.Errorf("after the conflict's end: %+v", got)
	}
	if r := n.Husk("rm", "service/db"); r.Code != 1 || r.Stderr != "husk: Service default/db is declared in "+path+": remove it there\n" {
		t.Errorf("a declared Service: %+v", r)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("rm", "-f", "service/c", "service/f", "p", "q", "r")
	node.Eventually(t, 20*time.Second, func() string {
		if got := services(t, n); len(got) > 0 {
			return fmt.Sprintf("all Services to go: %v", got)
		}
		return ""
	})
	d.Stop()
	n.NothingLeft()
}

// TestServicesLeaveTheNodeAlone checks that no Service of a manifest takes an address or a port
// that the node or another host has: what was reached there before is reached after.
func TestServicesLeaveTheNodeAlone(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	d := startHuskd(t, n)
	listen(t, n.Net(), ":2222", "node")
	listen(t, n.Net(), node.Address4+":30111", "node")
	listen(t, n.OtherNet(), ":2222", "other")
	reached := func(when string) {
		t.Helper()
		for _, c := range []struct{ from, to, want string }{
			{n.OtherNet(), net.JoinHostPort(node.Address4, "2222"), "node"}, {n.OtherNet(), net.JoinHostPort(node.Address6, "2222"), "node"},
			{n.OtherNet(), net.JoinHostPort(node.Address4, "30111"), "node"},
			{n.Net(), net.JoinHostPort(node.Other4, "2222"), "other"}, {n.Net(), net.JoinHostPort(node.Other6, "2222"), "other"},
		} {
			if got := greeting(c.from, c.to); got != c.want {
				t.Errorf("%s: %s answers %q, want %q", when, c.to, got, c.want)
			}
		}
	}
	reached("at first")
	own := plan.Resolvers(n.Instance())
	const one = "{apiVersion: v1, kind: Service, metadata: {name: bad}, spec: {%s}}\n"
	for _, c := range []struct{ spec, want string }{
		{"clusterIP: " + node.Address4, "clusterIP " + node.Address4 + " is an address of this node on up0: use another, or leave it out"},
		{"clusterIP: '" + node.Address6 + "'", "clusterIP " + node.Address6 + " is an address of this node on up0: use another, or leave it out"},
		{"clusterIP: " + node.Other4, "clusterIP " + node.Other4 + " is the address of a gateway of up0: use another, or leave it out"},
		{"clusterIP: '" + node.Other6 + "'", "clusterIP " + node.Other6 + " is the address of a gateway of up0: use another, or leave it out"},
		{"clusterIP: 198.51.100.255", "clusterIP 198.51.100.255 is a broadcast address of up0: use another, or leave it out"},
		{"clusterIP: " + own[0].String(), "clusterIP " + own[0].String() + " is a link-local address: use another, or leave it out"},
		{"clusterIP: '" + own[1].String() + "'", "clusterIP " + own[1].String() + " is the address of a DNS server of pods: use another, or leave it out"},
		{"externalIPs: [" + node.Address4 + "]", "port 2222/TCP of externalIP " + node.Address4 + " is in use on this node: a process listens on [::]:2222; stop it, or use another port or address"},
		{"externalIPs: ['" + node.Address6 + "']", "port 2222/TCP of externalIP " + node.Address6 + " is in use on this node: a process listens on [::]:2222; stop it, or use another port or address"},
		{"externalIPs: [" + node.Other4 + "]", "externalIPs[0] " + node.Other4 + " is the address of a gateway of up0: use another, or leave it out"},
	} {
		path := write(t, n, "bad.yaml", fmt.Sprintf(one, c.spec+", ports: [{port: 2222}]"))
		if r := n.Husk("run", path); r.Code != 1 || r.Stderr != "husk: "+path+": Service default/bad: "+c.want+"\n" {
			t.Errorf("%s: %+v", c.spec, r)
		}
		reached("with " + c.spec)
	}
	path := write(t, n, "port.yaml", fmt.Sprintf(one, "type: NodePort, ports: [{port: 80, nodePort: 30111}]"))
	if r := n.Husk("run", path); r.Code != 1 || r.Stderr != "husk: "+path+": Service default/bad: node port 30111/TCP is in use: a process listens on "+node.Address4+":30111; stop it, use another, or leave nodePort out\n" {
		t.Errorf("a node port on which a process listens: %+v", r)
	}
	reached("with a node port")
	// An address that a Service may have can become another's.
	n.MustHusk("run", write(t, n, "good.yaml", strings.Replace(fmt.Sprintf(one, "clusterIP: 10.96.0.10, ports: [{port: 80}]"), "bad", "good", 1)))
	n.Must("ip", "address", "add", "10.96.0.10/32", "dev", "up0")
	if out := n.Husk("doctor").Stdout; !strings.Contains(out, "Service default/good: clusterIP 10.96.0.10 is an address of this node on up0, whose packets it takes: give it another address") {
		t.Errorf("husk doctor prints\n%s", out)
	}
	n.MustHusk("rm", "service/good")
	d.Stop()
	n.NothingLeft()
}

// listen answers connections to an address in a network namespace with a word.
func listen(t *testing.T, path, address, word string) {
	t.Helper()
	var l net.Listener
	if err := netns.Do(path, func() (err error) {
		l, err = net.Listen("tcp", address)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte(word))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
}

// greeting returns what an address says to one who connects from a network namespace.
func greeting(path, address string) string {
	var word []byte
	_ = netns.Do(path, func() error {
		conn, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		word, err = io.ReadAll(conn)
		return err
	})
	return string(word)
}
