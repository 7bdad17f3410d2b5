package e2e

import (
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/test/node"
)

// serveNames serves DNS at addresses of a network namespace: all names have the address answer.
func serveNames(t *testing.T, path, answer string, addresses ...string) {
	t.Helper()
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		reply := new(dns.Msg).SetReply(query)
		if q := query.Question[0]; !strings.HasSuffix(q.Name, ".example.com.") {
			reply.Rcode = dns.RcodeNameError
		} else if q.Qtype == dns.TypeA {
			rr, _ := dns.NewRR(q.Name + " 60 A " + answer)
			reply.Answer = []dns.RR{rr}
		}
		_ = w.WriteMsg(reply)
	})
	for _, address := range addresses {
		var packets net.PacketConn
		err := netns.Do(path, func() (err error) {
			packets, err = net.ListenPacket("udp", address)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		started, done := make(chan struct{}), make(chan struct{})
		server := &dns.Server{PacketConn: packets, Handler: handler, NotifyStartedFunc: func() { close(started) }}
		go func() {
			_ = server.ActivateAndServe()
			close(done)
		}()
		<-started
		t.Cleanup(func() {
			_ = server.Shutdown()
			<-done
		})
	}
}

// resolver is the resolv.conf of a node whose resolver is the address.
func resolver(address string) string { return "nameserver " + address + "\nsearch corp.example\n" }

// mountResolver makes address the node's resolver, until it is unmounted.
func mountResolver(t *testing.T, n *node.Node, address string) {
	t.Helper()
	n.Must("mount", "--bind", write(t, n, "resolv.conf", resolver(address)), "/etc/resolv.conf")
}

// answered matches the last address that nslookup prints, which is not the server's.
var answered = regexp.MustCompile(`(?s)Name:.*Address(?: 1)?: ([0-9.]+)`)

// lookup returns the IPv4 address of a name in a pod, or nothing.
func lookup(n *node.Node, pod, name string) string {
	if m := answered.FindStringSubmatch(n.Husk("exec", pod, "--", "nslookup", name).Stdout); m != nil {
		return m[1]
	}
	return ""
}

const namedPod = `apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s}
spec:
  terminationGracePeriodSeconds: 0
%s
  containers:
  - {name: c, image: 'localhost/web:1', command: [/bin/httpd, -f, -p, '80', -h, /www]}
`

// TestNames checks that pods find each other and the rest of the world by name: by the node's DNS
// server, which asks a resolver on the node's loopback and, after a change, one on another host. A
// policy that allows nothing doesn't keep a pod from names. A restart of huskd, and the end of a
// pod, change nothing for others.
func TestNames(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	serveNames(t, n.Net(), "192.0.2.1", "127.0.0.1:53")
	serveNames(t, n.OtherNet(), "192.0.2.2", node.Other4+":53")
	mountResolver(t, n, "127.0.0.1")
	if err := os.Mkdir(n.Dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, n, "manifests/policy.yaml", "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: nothing}\nspec: {podSelector: {}, policyTypes: [Egress]}\n")
	flags := node.Flags("--manifests", n.Dir+"/manifests")
	d := startHuskd(t, n, flags)
	for _, p := range [][3]string{
		{"web", "default", "  hostname: primary\n  subdomain: db"},
		{"client", "default", ""},
		{"other", "prod", ""},
		{"plain", "default", "  dnsPolicy: Default"},
		{"host", "default", "  hostNetwork: true\n  dnsPolicy: ClusterFirstWithHostNet"},
	} {
		spec := namedPod
		if p[0] == "host" {
			spec = strings.Replace(spec, "'80'", "'8099'", 1)
		}
		n.MustHusk("run", "--wait", write(t, n, p[0]+".yaml", fmt.Sprintf(spec, p[0], p[1], p[2])))
	}
	own := plan.Resolvers(n.Instance())[0].String()
	for pod, want := range map[string]string{
		"client":     "search default.svc.cluster.local svc.cluster.local cluster.local corp.example\nnameserver " + own + "\noptions ndots:5\n",
		"prod/other": "search prod.svc.cluster.local svc.cluster.local cluster.local corp.example\nnameserver " + own + "\noptions ndots:5\n",
		"host":       "search default.svc.cluster.local svc.cluster.local cluster.local corp.example\nnameserver " + own + "\noptions ndots:5\n",
		"plain":      "search corp.example\n",
	} {
		if got := n.MustHusk("exec", pod, "--", "cat", "/etc/resolv.conf"); got != want {
			t.Errorf("resolv.conf of %s is\n%s\nwant\n%s", pod, got, want)
		}
	}
	web := inspect(t, n, "web").IPs[0]
	found := func(when, from, name, want string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			got := lookup(n, from, name)
			if got == want {
				return ""
			}
			return fmt.Sprintf("%s, %s in %s to be %q, not %q", when, name, from, want, got)
		})
	}
	for _, from := range []string{"client", "host"} {
		found("at the start", from, "web", web)
		found("at the start", from, "web.default.svc.cluster.local", web)
		found("at the start", from, "primary.db.default.svc.cluster.local", web)
		found("at the start", from, "www.example.com", "192.0.2.1")
		found("at the start", from, "nobody", "")
	}
	found("at the start", "prod/other", "web", "")
	found("at the start", "prod/other", "web.default.svc.cluster.local", web)

	write(t, n, "resolv.conf", resolver(node.Other4)) // as the mount has it
	found("with another resolver", "client", "www.example.com", "192.0.2.2")
	d.Kill()
	d = n.Huskd(flags)
	found("after a kill", "client", "web", web)
	found("after a kill", "client", "www2.example.com", "192.0.2.2")
	n.Must("ip", "addr", "del", own+"/32", "dev", "lo")
	found("after its address was removed", "client", "web", web)
	n.MustHusk("rm", "-f", "web")
	found("after its end", "client", "web", "")

	n.MustHusk("rm", "-f", "client", "prod/other", "plain", "host")
	d.Stop()
	if left := n.Must("ip", "-br", "addr", "show", "dev", "lo"); strings.Contains(left, "169.254.") {
		t.Errorf("left on lo: %s", left)
	}
	n.Must("umount", "/etc/resolv.conf")
	n.NothingLeft()
}

// TestNamesOff checks that pods have the node's resolvers without huskd's DNS server: if it is off,
// and if its port is taken, which husk doctor says.
func TestNamesOff(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	mountResolver(t, n, node.Other4)
	run := func(name string) string {
		n.MustHusk("run", "--wait", write(t, n, name+".yaml", fmt.Sprintf(namedPod, name, "default", "")))
		return n.MustHusk("exec", name, "--", "cat", "/etc/resolv.conf")
	}
	const want = "search corp.example\nnameserver " + node.Other4 + "\n"
	d := startHuskd(t, n, node.Flags("--dns", "off"))
	if got := run("quiet"); got != want {
		t.Errorf("dns off: %s", got)
	}
	d.Stop()
	serveNames(t, n.Net(), "192.0.2.1", "0.0.0.0:53")
	d = n.Huskd()
	if got := run("taken"); got != want {
		t.Errorf("port taken: %s", got)
	}
	if got := n.Husk("doctor").Stdout; !strings.Contains(got, "pods don't find each other by name: listen") || !strings.Contains(got, "address already in use") {
		t.Errorf("husk doctor says\n%s", got)
	}
	n.MustHusk("rm", "-f", "quiet", "taken")
	d.Stop()
	n.Must("umount", "/etc/resolv.conf")
}

// TestNamesOfIPv6 checks that pods that have only IPv6 find each other.
func TestNamesOfIPv6(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	d := startHuskd(t, n, node.Flags("--pod-subnets", "fd00:77::/64"))
	for _, name := range []string{"web", "client"} {
		n.MustHusk("run", "--wait", write(t, n, name+".yaml", fmt.Sprintf(namedPod, name, "default", "")))
	}
	if got, own := n.MustHusk("exec", "client", "--", "cat", "/etc/resolv.conf"), plan.Resolvers(n.Instance())[1].String(); !strings.Contains(got, "nameserver "+own+"\n") {
		t.Errorf("resolv.conf has not %s:\n%s", own, got)
	}
	web := inspect(t, n, "web").IPs[0]
	node.Eventually(t, 20*time.Second, func() string {
		if r := n.Husk("exec", "client", "--", "nslookup", "web"); !strings.Contains(r.Stdout, "Address: "+web+"\n") {
			return fmt.Sprintf("%s: %v", web, r)
		}
		return ""
	})
	n.MustHusk("rm", "-f", "web", "client")
	d.Stop()
}

// TestNamesFlood checks that a pod that asks for tens of thousands of names doesn't keep another
// from its answers, nor makes huskd handle more than the rate. An event, the metrics and husk
// doctor name it.
func TestNamesFlood(t *testing.T) {
	t.Parallel()
	for _, family := range []string{"10.77.0.0/24", "fd00:78::/64"} {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			n := node.New(t)
			d := startHuskd(t, n, node.Flags("--pod-subnets", family, "--metrics-listen", "127.0.0.1:9153"))
			at := map[string]string{}
			for _, name := range []string{"web", "attacker"} {
				n.MustHusk("run", "--wait", write(t, n, name+".yaml", fmt.Sprintf(namedPod, name, "default", "")))
				at[name] = n.Path(inspect(t, n, name).NetworkSettings.SandboxKey)
			}
			own := plan.Resolvers(n.Instance())[0]
			kind := dns.TypeA
			if strings.Contains(family, ":") {
				own, kind = plan.Resolvers(n.Instance())[1], dns.TypeAAAA
			}
			dial := func(pod string) *dns.Conn {
				t.Helper()
				var conn net.Conn
				if err := netns.Do(at[pod], func() (err error) {
					conn, err = net.Dial("udp", net.JoinHostPort(own.String(), "53"))
					return err
				}); err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return &dns.Conn{Conn: conn}
			}
			const asked = 40_000
			raw, err := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", kind).Pack()
			if err != nil {
				t.Fatal(err)
			}
			began, flooded, flood := time.Now(), make(chan struct{}), dial("attacker")
			go func() {
				defer close(flooded)
				// The kernel's backlog of a processor has room for 1000 packets of all pods.
				pace := time.NewTicker(time.Millisecond)
				defer pace.Stop()
				for i := range asked {
					if i%100 == 0 {
						<-pace.C
					}
					_, _ = flood.Conn.Write(raw)
				}
			}()
			other := dial("web")
			pace := time.NewTicker(5 * time.Millisecond)
			defer pace.Stop()
			answers := 0
			for after := 0; after < 50; <-pace.C {
				select {
				case <-flooded:
					after++
				default:
				}
				query := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", kind)
				_ = other.SetDeadline(time.Now().Add(10 * time.Second))
				if err := other.WriteMsg(query); err != nil {
					t.Fatal(err)
				}
				if reply, err := other.ReadMsg(); err != nil || reply.Id != query.Id || len(reply.Answer) != 1 {
					t.Fatalf("after %d answers: %v, %v", answers, reply, err)
				}
				answers++
			}
			taken := func(name string) (value float64) {
				page := n.Must("curl", "-sS", "http://127.0.0.1:9153/metrics")
				if _, line, ok := strings.Cut(page, "\n"+name+" "); ok {
					_, _ = fmt.Sscan(line, &value)
				}
				return value
			}
			// What the pods asked when they started counts as well.
			if got, most := taken("husk_dns_questions_total"), 1000*(time.Since(began).Seconds()+2)+float64(answers); got < 1000 || got > most {
				t.Errorf("huskd has taken %v questions of %d, want at most %v", got, asked, most)
			}
			if got, most := taken("husk_dns_limited_total"), 2000*(time.Since(began).Seconds()+2); got == 0 || got > most {
				t.Errorf("huskd has dropped %v questions, want at most %v: the kernel drops the others", got, most)
			}
			if out := n.Husk("doctor").Stdout; !strings.Contains(out, "default/attacker asks for more than 1000 names a second since ") {
				t.Errorf("husk doctor says\n%s", out)
			}
			if out := n.MustHusk("events"); strings.Count(out, "it asks for more than 1000 names a second; what is more gets no answer") != 1 {
				t.Errorf("the events are\n%s", out)
			}
			n.MustHusk("rm", "-f", "web", "attacker")
			d.Stop()
			n.NothingLeft()
		})
	}
}
