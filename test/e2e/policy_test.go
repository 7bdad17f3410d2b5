package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

const onlyWeb = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: only-web}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: %s}}}]
    ports: [{port: www}]
`

// TestPolicyOfManifests checks that a policy in the manifests directory is in force for pods of the
// directory and of the command line: when the pods start, while huskd is dead, and until the file
// goes.
func TestPolicyOfManifests(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	if err := os.Mkdir(n.Dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	flags := node.Flags("--manifests", n.Dir+"/manifests")
	w := testEnvOn(t, n, flags)
	server := "containers: [{name: c, image: 'localhost/web:1', command: [/bin/httpd, -f, -p, '80', -h, /www], ports: [{name: www, containerPort: 80}]}]"
	labelled := func(name string) string {
		return strings.Replace(podOf(name, server), "{name: "+name+"}", "{name: "+name+", labels: {app: "+name+"}}", 1)
	}
	write(t, n, "manifests/policy.yaml", fmt.Sprintf(onlyWeb, "web"))
	write(t, n, "manifests/db.yaml", labelled("db"))
	write(t, n, "manifests/web.yaml", labelled("web"))
	for _, pod := range []string{"db", "web"} {
		w.eventually(pod, "ready", isReady)
	}
	keys, addresses := map[string]string{}, map[string]string{}
	for _, pod := range []string{"db", "web", "other"} {
		p := inspect(t, n, pod)
		keys[pod], addresses[pod] = n.Path(p.NetworkSettings.SandboxKey), p.IPs[0]
	}
	reaches := func(when, from, to string, want bool) {
		t.Helper()
		key := n.Net()
		if from != "the node" {
			key = keys[from]
		}
		if _, err := node.Get(key, addresses[to]+":80"); (err == nil) != want {
			t.Errorf("%s, %s reaches %s: %v, want %v", when, from, to, err, want)
		}
	}
	inForce := func(when string) {
		t.Helper()
		reaches(when, "the node", "db", true)
		reaches(when, "web", "db", true)
		reaches(when, "other", "db", false)
		reaches(when, "db", "other", true)
	}
	inForce("at the start")

	if got := w.MustHusk("net", "policy", "db"); !strings.Contains(got, "NetworkPolicy default/only-web") || !regexp.MustCompile(`tcp 80 default/web +1 +[1-9]\d* packets`).MatchString(got) {
		t.Errorf("husk net policy db shows\n%s", got)
	}
	if r := w.Husk("net", "explain", "web", "db", "80"); r.Code != 0 || !strings.Contains(r.Stdout, "allowed") || !strings.Contains(r.Stdout, "route to "+addresses["db"]) || strings.Contains(r.Stdout, "differs") {
		t.Errorf("husk net explain: %v", r)
	}
	if r := w.Husk("net", "explain", "other", "db", "80"); r.Code != 1 || !strings.Contains(r.Stdout, "isolated by NetworkPolicy default/only-web, of which no rule allows it") {
		t.Errorf("husk net explain: %v", r)
	}
	node.Eventually(t, 10*time.Second, func() string {
		if got := w.MustHusk("events", "db"); !strings.Contains(got, "PolicyDenied") || !strings.Contains(got, "from default/other to default/db 80/tcp denied") {
			return "an event of the denied connection: " + got
		}
		return ""
	})

	held := hold(t, keys["web"], addresses["db"]+":80")
	w.d.Kill()
	inForce("while huskd is dead")
	w.d = w.Huskd(flags)
	inForce("after a restart")
	if _, err := held.Write([]byte("GET / HTTP/1.0\r\n")); err != nil {
		t.Errorf("the connection of before: %v", err)
	}

	write(t, n, "manifests/policy.yaml", fmt.Sprintf(onlyWeb, "nobody"))
	node.Eventually(t, 10*time.Second, func() string {
		if r := w.Husk("net", "explain", "web", "db", "80"); r.Code == 0 {
			return "the new policy"
		}
		return ""
	})
	reaches("after the change", "web", "db", false)
	_, _ = held.Write([]byte("\r\n"))
	_ = held.SetReadDeadline(time.Now().Add(2 * time.Second))
	if answer, err := io.ReadAll(held); len(answer) > 0 {
		t.Errorf("a connection that is not allowed any more brings %q, %v", answer, err)
	}
	if err := os.Remove(filepath.Join(n.Dir, "manifests/policy.yaml")); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 10*time.Second, func() string {
		if tables := n.Must("nft", "list", "tables"); strings.Contains(tables, "-policy") {
			return "the removal of the rules: " + tables
		}
		return ""
	})
	reaches("without a policy", "other", "db", true)
	for _, f := range []string{"db.yaml", "web.yaml"} {
		if err := os.Remove(filepath.Join(n.Dir, "manifests", f)); err != nil {
			t.Fatal(err)
		}
	}
	w.checkUnharmed("removal of the files")
	w.end()
}

// hold opens a connection from the network namespace at path.
func hold(t *testing.T, path, address string) (conn net.Conn) {
	t.Helper()
	err := netns.Do(path, func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 3*time.Second)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
