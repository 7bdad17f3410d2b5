package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/test/node"
)

// namedServices has a Service of each kind that the specification of names tells apart.
const namedServices = `apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  clusterIP: 10.203.0.200
  selector: {app: db}
  ports: [{name: https, port: 443, targetPort: 80}, {name: dns, port: 53, protocol: UDP}]
---
apiVersion: v1
kind: Service
metadata: {name: dual, namespace: shop}
spec:
  clusterIPs: [10.203.0.201, 'fd68:7573:6b80::c9']
  ipFamilyPolicy: RequireDualStack
  ports: [{name: http, port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: db}
spec: {clusterIP: None, ipFamilyPolicy: RequireDualStack, selector: {app: db}, ports: [{name: sql, port: 5432, targetPort: sql}]}
---
apiVersion: v1
kind: Service
metadata: {name: each}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {clusterIP: None, ports: [{name: ldap, port: 389}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside}
subsets: [{addresses: [{ip: 192.0.2.7, hostname: seven}, {ip: 192.0.2.8}], ports: [{name: ldap, port: 1389}]}]
---
apiVersion: v1
kind: Service
metadata: {name: empty}
spec: {clusterIP: None, selector: {app: nobody}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: waiting}
spec: {clusterIP: None, selector: {app: late}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: early}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: late}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: alias}
spec: {type: ExternalName, externalName: www.example.com}
---
apiVersion: v1
kind: Service
metadata: {name: near}
spec: {type: ExternalName, externalName: web.default.svc.cluster.local}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/web:1', ports: [{name: sql, containerPort: 5433}]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      containers: [{name: c, image: 'localhost/web:1'}]
`

const latePodOfServices = `apiVersion: v1
kind: Pod
metadata: {name: late, labels: {app: late}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: 'localhost/web:1', readinessProbe: {exec: {command: [test, -e, /ready]}, periodSeconds: 1}}]
`

// TestServiceNames checks the records of Kubernetes' DNS-based service discovery, version 1.1.0,
// for the Services of a manifest, section by section. Package zone checks more of its own records.
func TestServiceNames(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	serveNames(t, n.Net(), "192.0.2.1", "127.0.0.1:53")
	mountResolver(t, n, "127.0.0.1")
	d := startHuskd(t, n)
	file, late := write(t, n, "services.yaml", namedServices), write(t, n, "late.yaml", latePodOfServices)
	n.MustHusk("run", late)
	n.MustHusk("run", "--wait", "--timeout", "60s", file)
	node.Eventually(t, 30*time.Second, func() string {
		if len(inspect(t, n, "late").IPs) == 0 {
			return "the pod late to have addresses"
		}
		return ""
	})
	env := &testEnv{Node: n, t: t}
	pods := map[string]string{"WEB": env.podsOf("deployment/default/web")[0].Name, "DB0": "db-0", "DB1": "db-1", "LATE": "late"}
	var words []string
	for word, pod := range pods {
		ips := inspect(t, n, pod).IPs
		reverse4, err4 := dns.ReverseAddr(ips[0])
		reverse6, err6 := dns.ReverseAddr(ips[1])
		if err4 != nil || err6 != nil {
			t.Fatal(err4, err6)
		}
		words = append(words, "$"+word+"-4", ips[0], "$"+word+"-6", ips[1], "$"+word+"-R4", reverse4, "$"+word+"-R6", reverse6, "$"+word+"-D", strings.ReplaceAll(ips[0], ".", "-"))
	}
	replace := strings.NewReplacer(append(words, "~", "svc.cluster.local.")...)
	server := plan.Resolvers(n.Instance())[0].String() + ":53"
	check := func(section, question, want string) {
		t.Helper()
		question, want = replace.Replace(question), replace.Replace(want)
		node.Eventually(t, 20*time.Second, func() string {
			if got := answerTo(n, server, question); got != want {
				return fmt.Sprintf("%s: %s:\n got %s\nwant %s", section, question, got, want)
			}
			return ""
		})
	}
	for _, c := range [][3]string{
		{"2.2", "dns-version.cluster.local. TXT", `TXT "1.1.0"`},
		{"2.3.1", "web.default.~ A", "A 10.203.0.200"},
		{"2.3.1", "web.default.~ AAAA", "nodata"},
		{"2.3.1", "dual.shop.~ A", "A 10.203.0.201"},
		{"2.3.1", "dual.shop.~ AAAA", "AAAA fd68:7573:6b80::c9"},
		{"2.3.1", "dual.default.~ A", "nxdomain"},
		{"2.3.2", "_https._tcp.web.default.~ SRV", "SRV 0 100 443 web.default.~ | A 10.203.0.200"},
		{"2.3.2", "_dns._udp.web.default.~ SRV", "SRV 0 100 53 web.default.~ | A 10.203.0.200"},
		{"2.3.2", "_https._udp.web.default.~ SRV", "nxdomain"},
		{"2.3.2", "_http._tcp.dual.shop.~ SRV", "SRV 0 100 80 dual.shop.~ | A 10.203.0.201 AAAA fd68:7573:6b80::c9"},
		{"2.3.3", "200.0.203.10.in-addr.arpa. PTR", "PTR web.default.~"},
		{"2.3.3", "9.c.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.6.3.7.5.7.8.6.d.f.ip6.arpa. PTR", "PTR dual.shop.~"},
		{"2.4.1", "db.default.~ A", "A $DB0-4 A $DB1-4"},
		{"2.4.1", "db.default.~ AAAA", "AAAA $DB0-6 AAAA $DB1-6"},
		{"2.4.1", "db-1.db.default.~ A", "A $DB1-4"},
		{"2.4.1", "db-1.db.default.~ AAAA", "AAAA $DB1-6"},
		{"2.4.1", "db-2.db.default.~ A", "nxdomain"},
		{"2.4.1", "each.default.~ A", "A $WEB-4"},
		{"2.4.1", "each.default.~ AAAA", "nodata"},
		{"2.4.1", "$WEB-D.each.default.~ A", "A $WEB-4"},
		{"2.4.1", "outside.default.~ A", "A 192.0.2.7 A 192.0.2.8"},
		{"2.4.1", "seven.outside.default.~ A", "A 192.0.2.7"},
		{"2.4.1", "192-0-2-8.outside.default.~ A", "A 192.0.2.8"},
		{"2.4.1", "empty.default.~ A", "nxdomain"},
		{"2.4.1", "waiting.default.~ A", "nxdomain"},
		{"2.4.1", "early.default.~ A", "A $LATE-4"},
		{"2.4.2", "_sql._tcp.db.default.~ SRV", "SRV 0 100 5433 db-0.db.default.~ SRV 0 100 5433 db-1.db.default.~ | A $DB0-4 A $DB1-4 AAAA $DB0-6 AAAA $DB1-6"},
		{"2.4.2", "_ldap._tcp.outside.default.~ SRV", "SRV 0 100 1389 192-0-2-8.outside.default.~ SRV 0 100 1389 seven.outside.default.~ | A 192.0.2.7 A 192.0.2.8"},
		{"2.4.2", "_none._tcp.db.default.~ SRV", "nxdomain"},
		{"2.4.3", "$DB1-R4 PTR", "PTR db-1.db.default.~"},
		{"2.4.3", "$DB0-R6 PTR", "PTR db-0.db.default.~"},
		{"2.4.3", "$WEB-R4 PTR", "PTR $WEB-D.each.default.~"},
		{"2.5", "alias.default.~ A", "A 192.0.2.1 CNAME www.example.com."},
		{"2.5", "near.default.~ A", "A 10.203.0.200 CNAME web.default.~"},
		{"pods", "late.default.~ A", "A $LATE-4"},
		{"pods", "$WEB-D.default.pod.cluster.local. A", "A $WEB-4"},
	} {
		check(c[0], c[1], c[2])
	}
	n.MustHusk("exec", "late", "--", "touch", "/ready")
	check("2.4.1, ready", "waiting.default.~ A", "A $LATE-4")
	n.MustHusk("rm", "-f", "late")
	check("2.4.1, gone", "early.default.~ A", "nxdomain")
	n.MustHusk("scale", "statefulset/db", "1")
	check("2.4.1, scaled down", "db.default.~ A", "A $DB0-4")
	n.MustHusk("rm", "-f", file)
	check("2.3.1, gone", "web.default.~ A", "nxdomain")
	check("2.4.1, gone", "db.default.~ A", "nxdomain")
	d.Stop()
	n.Must("umount", "/etc/resolv.conf")
	n.NothingLeft()
}

// answerTo returns the sorted records of the answer to "NAME TYPE" without names and TTLs, after a
// bar those beside the answer. A program in the node's network asks.
func answerTo(n *node.Node, server, question string) string {
	name, kind, _ := strings.Cut(question, " ")
	m := new(dns.Msg).SetQuestion(name, dns.StringToType[kind]).SetEdns0(4096, false)
	var reply *dns.Msg
	if err := netns.Do(n.Net(), func() (err error) {
		reply, _, err = (&dns.Client{Timeout: 5 * time.Second, UDPSize: 4096}).Exchange(m, server)
		return err
	}); err != nil {
		return err.Error()
	}
	switch {
	case reply.Rcode == dns.RcodeNameError:
		return "nxdomain"
	case reply.Rcode != dns.RcodeSuccess:
		return dns.RcodeToString[reply.Rcode]
	case len(reply.Answer) == 0:
		return "nodata"
	}
	out := records(reply.Answer)
	if extra := records(reply.Extra); extra != "" {
		out += " | " + extra
	}
	return out
}

func records(list []dns.RR) string {
	var out []string
	for _, rr := range list {
		if h := rr.Header(); h.Rrtype != dns.TypeOPT {
			out = append(out, dns.TypeToString[h.Rrtype]+" "+strings.TrimPrefix(rr.String(), h.String()))
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}
