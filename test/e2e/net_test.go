package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// TestNetStandalone tests husk net without huskd: it attaches a namespace to networks and detaches
// it.
func TestNetStandalone(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	if err := os.WriteFile(filepath.Join(n.CNI, "05-bad.conf"), []byte(`{"name":"bad"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	// A plugin of the test. It records its GC input and fails DEL while the file closed exists.
	bin := filepath.Join(n.Dir, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(path, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(bin, "modern"), `#!/bin/sh
	case $CNI_COMMAND in
	VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}';;
	STATUS) echo '{"code":50,"msg":"no address is left"}'; exit 1;;
	GC) cat > `+n.Dir+`/gc;;
	DEL) [ ! -e `+n.Dir+`/closed ] || { echo closed >&2; exit 1; };;
	ADD) echo '{"ips":[{"address":"10.78.0.5/24"}]}';;
	esac`, 0o755)
	write(filepath.Join(n.CNI, "20-modern.conflist"), `{"cniVersion":"1.1.0","name":"modern","plugins":[{"type":"modern"}]}`, 0o644)
	net := func(args ...string) node.Result {
		t.Helper()
		return n.Run(n.Binary("husk"), append([]string{"net", "--conf-dir", n.CNI, "--bin-dir", bin + ",/usr/lib/cni", "--state", filepath.Join(n.Dir, "net")}, args...)...)
	}
	must := func(args ...string) string {
		t.Helper()
		r := net(args...)
		if r.Code != 0 {
			t.Fatalf("husk net %v: %s", args, r.Stderr)
		}
		return r.Stdout
	}
	fails := func(want string, args ...string) {
		t.Helper()
		if r := net(args...); r.Code == 0 || !strings.Contains(r.Stderr, want) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("husk net %v: code %d, %q\nwant …%s…", args, r.Code, r.Stderr, want)
		}
	}
	n.Must("ip", "netns", "add", "testing")

	list := must("ls")
	for _, want := range []string{"cluster   1.0.0", "10-cluster.conflist   bridge portmap", "05-bad.conf", "skipped: names no plugin", "modern    1.1.0"} {
		if !strings.Contains(list, want) {
			t.Errorf("husk net ls does not print %q:\n%s", want, list)
		}
	}
	if got := must("validate", filepath.Join(n.CNI, "10-cluster.conflist")); got != "network cluster is valid, cniVersion 1.0.0\n" {
		t.Errorf("validate: %s", got)
	}
	fails("05-bad.conf: names no plugin", "validate", filepath.Join(n.CNI, "05-bad.conf"))
	if got := must("version", "cluster"); !strings.Contains(got, "portmap") || !strings.Contains(got, "1.0.0") {
		t.Errorf("version: %s", got)
	}
	if got := must("plan", "cluster", "testing", "--operation", "DEL"); !strings.Contains(got, "CNI_NETNS=/run/netns/testing") || strings.Index(got, "/portmap") > strings.Index(got, "/bridge") {
		t.Errorf("plan: %s", got)
	}

	ports := `portMappings=[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]`
	var result struct {
		IPs []struct{ Address string }
	}
	if err := json.Unmarshal([]byte(must("add", "cluster", "testing", "--cap", ports)), &result); err != nil || len(result.IPs) != 1 || !strings.HasPrefix(result.IPs[0].Address, "10.77.0.") {
		t.Fatalf("add: %+v, %v", result, err)
	}
	n.Must("ip", "netns", "exec", "testing", "ping", "-c", "1", "-W", "5", "10.77.0.1")
	if !strings.Contains(n.Must("iptables-save", "-t", "nat"), "8080") {
		t.Error("no iptables rule maps port 8080")
	}
	must("add", "cluster", "/run/netns/testing") // repeated, it succeeds without a change
	fails("net9 of /run/netns/testing was not attached to network cluster by husk net", "check", "cluster", "testing", "--ifname", "net9")
	if got := must("attachments"); !strings.Contains(got, "cluster   /run/netns/testing   eth0") {
		t.Errorf("attachments:\n%s", got)
	}
	fails("eth0 of /run/netns/testing is attached to network cluster: detach it first", "add", "modern", "testing")
	// DEL works from the record, which holds the configuration and the capability arguments.
	if err := os.Remove(filepath.Join(n.CNI, "10-cluster.conflist")); err != nil {
		t.Fatal(err)
	}
	must("del", "cluster", "testing")
	awaitNoLeases(t, n, leases)

	fails("network modern: plugin modern: STATUS: no address is left", "status", "modern")
	fails("give either --keep for every attachment or --keep-none", "gc", "modern")
	must("gc", "modern", "--keep", "a1/eth0,b2/eth1")
	if input, _ := os.ReadFile(filepath.Join(n.Dir, "gc")); !strings.Contains(string(input), `"cni.dev/valid-attachments":[{"containerID":"a1","ifname":"eth0"},{"containerID":"b2","ifname":"eth1"}]`) {
		t.Errorf("the input of GC was %s", input)
	}

	must("add", "modern", "testing")
	must("check", "modern", "testing")
	write(filepath.Join(n.Dir, "closed"), "", 0o600)
	fails("plugin modern: DEL: exit status 1: closed", "del", "modern", "testing")
	if got := must("debts"); !strings.Contains(got, "modern    /run/netns/testing   eth0        (by hand)   1       network modern: plugin modern: DEL: exit status 1: closed") {
		t.Errorf("debts:\n%s", got)
	}
	n.Must("ip", "netns", "delete", "testing")
	if err := os.Remove(filepath.Join(n.Dir, "closed")); err != nil {
		t.Fatal(err)
	}
	must("debts", "--retry")
	if got := must("attachments") + must("debts"); got != "" {
		t.Errorf("attachments and debts remain: %s", got)
	}

	fails("no network nowhere is configured in", "add", "nowhere", "1")
	fails("testing is neither a name in /run/netns nor a pod", "add", "modern", "testing")
	fails(`--args: "x" is not K=V`, "add", "modern", "1", "--args", "x")
	fails(`--cap: "x=}" is not KEY=JSON`, "add", "modern", "1", "--cap", "x=}")
	fails("is not a network namespace", "add", "modern", "/etc/hosts")
	cleanCNI(n)
	n.Run("umount", "/run/netns") // which ip netns has mounted
	n.Run("rmdir", "/run/netns")
}

// TestDebtsOfPods checks that husk net lists the DELs owed for removed pods and retries them.
func TestDebtsOfPods(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	bin, closed := filepath.Join(n.Dir, "bin"), filepath.Join(n.Dir, "closed")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	program := `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}';;
ADD) echo '{"cniVersion":"1.0.0"}';;
DEL) [ ! -e ` + closed + ` ] || { echo closed >&2; exit 1; };;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "failing"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.CNI, "10-cluster.conflist")
	conf, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(conf), `"plugins":[`, `"plugins":[{"type":"failing"},`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startHuskd(t, n, node.Flags("--cni-bin-dir", bin+",/usr/lib/cni"))
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "web", 1)))
	net := func(args ...string) node.Result {
		return n.Husk(append([]string{"net", "--state", filepath.Join(n.Dir, "net")}, args...)...)
	}
	key := inspect(t, n, "web").NetworkSettings.SandboxKey
	if r := net("attachments"); r.Code != 0 || !strings.Contains(r.Stdout, "cluster   "+key+"   eth0        default/web") {
		t.Errorf("attachments: %+v", r)
	}
	if r := net("debts"); r.Code != 0 || r.Stdout != "" {
		t.Errorf("debts: %+v", r)
	}
	for _, netns := range []string{"web", "default/web", filepath.Base(key), key} {
		if r := net("plan", "cluster", netns, "--conf-dir", n.CNI, "--bin-dir", bin+",/usr/lib/cni"); r.Code != 0 || !strings.Contains(r.Stdout, "CNI_NETNS="+key) {
			t.Errorf("plan %s: %+v", netns, r)
		}
	}
	if err := os.WriteFile(closed, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("rm", "-f", "web")
	why := "network cluster: plugin failing: DEL: exit status 1: closed"
	for _, args := range [][]string{{"debts"}, {"attachments", "-o", "json"}, {"debts", "-o", "yaml"}} {
		if r := net(args...); r.Code != 0 || !strings.Contains(r.Stdout, why) || !strings.Contains(r.Stdout, "default/web") {
			t.Errorf("%v: %+v", args, r)
		}
	}
	if r := net("debts", "--retry"); r.Code != 1 || !strings.Contains(r.Stderr, why) {
		t.Errorf("a retry that fails: %+v", r)
	}
	if out := n.MustHusk("doctor"); !strings.Contains(out, why) {
		t.Errorf("husk doctor does not report the debt:\n%s", out)
	}
	if err := os.Remove(closed); err != nil {
		t.Fatal(err)
	}
	if r := net("debts", "--retry"); r.Code != 0 || r.Stdout != "" {
		t.Errorf("a retry that succeeds: %+v", r)
	}
	awaitNoLeases(t, n, leases)
	cleanCNI(n)
	d.Stop()
}
