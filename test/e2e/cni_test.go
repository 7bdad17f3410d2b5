package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/test/node"
)

// cniPod is a pod with a host port.
const cniPod = `
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - {name: a, image: 'localhost/web:1', ports: [{containerPort: 80, hostPort: 8080}]}
`

// configureCNI gives the node a network of Debian's bridge, host-local and portmap plugins, and
// returns the directory of the leases. As documented, those plugins never remove the bridge and the
// base chains of portmap and masquerading: see cleanCNI.
func configureCNI(t *testing.T, n *node.Node) (leases string) {
	t.Helper()
	leases = filepath.Join(n.Dir, "leases")
	if err := os.MkdirAll(n.CNI, 0o755); err != nil {
		t.Fatal(err)
	}
	conf := `{"cniVersion":"1.0.0","name":"cluster","plugins":[
	 {"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,
	  "ipam":{"type":"host-local","dataDir":"` + leases + `","ranges":[[{"subnet":"10.77.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}},
	 {"type":"portmap","capabilities":{"portMappings":true}}]}`
	if err := os.WriteFile(filepath.Join(n.CNI, "10-cluster.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	return leases
}

// cniLeases returns host-local's leases for pods, and the iptables rules with pod addresses.
func cniLeases(t *testing.T, n *node.Node, dir string) (found []string) {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "cluster", "10.*"))
	for _, f := range files {
		found = append(found, "lease "+filepath.Base(f))
	}
	for line := range strings.Lines(n.Must("iptables-save")) {
		if strings.HasPrefix(line, "-A") && strings.Contains(line, "10.77.0.") && !strings.Contains(line, "cni0") {
			found = append(found, "rule "+strings.TrimSpace(line))
		}
	}
	return found
}

// awaitNoLeases waits until no leases, rules or links of pods are left.
func awaitNoLeases(t *testing.T, n *node.Node, dir string) {
	t.Helper()
	node.Eventually(t, 30*time.Second, func() string {
		left := cniLeases(t, n, dir)
		for line := range strings.Lines(n.Must("ip", "-o", "link", "show", "type", "veth")) {
			if !strings.Contains(line, "up0") {
				left = append(left, "link "+line)
			}
		}
		return strings.Join(left, "\n")
	})
}

// cleanCNI removes what the plugins never remove themselves.
func cleanCNI(n *node.Node) {
	n.Run("ip", "link", "delete", "cni0") // missing after a reboot
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, table := range []string{"nat", "filter"} {
			n.Run(family, "-t", table, "-F")
			n.Run(family, "-t", table, "-X")
		}
	}
	for _, family := range []string{"ip", "ip6"} {
		for _, table := range []string{"nat", "filter"} {
			n.Run("nft", "delete", "table", family, table)
		}
	}
	n.Run("sysctl", "-qw", "net.ipv4.conf.all.route_localnet=0", "net.ipv4.ip_forward=0")
}

// TestReferenceCNI checks that a pod on a network of the reference plugins is reachable, keeps its
// network over a restart of huskd, and leaves nothing behind.
func TestReferenceCNI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	d := startHuskd(t, n)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "web", 1)))
	pod := inspect(t, n, "web")
	if len(pod.IPs) != 1 || !strings.HasPrefix(pod.IPs[0], "10.77.0.") {
		t.Fatalf("addresses %v", pod.IPs)
	}
	reach := func() {
		t.Helper()
		for from, address := range map[string]string{n.Net(): pod.IPs[0] + ":80", n.OtherNet(): node.Address4 + ":8080"} {
			if answer := mustGet(t, from, address); !strings.HasPrefix(answer, "web ") {
				t.Errorf("%s answers %q", address, answer)
			}
		}
	}
	reach()
	if out := n.MustHusk("doctor"); !strings.Contains(out, "network cluster of 10-cluster.conflist, cniVersion 1.0.0") {
		t.Errorf("husk doctor says\n%s", out)
	}
	// Existing pods don't need the configuration: they keep their networks.
	if err := os.Remove(filepath.Join(n.CNI, "10-cluster.conflist")); err != nil {
		t.Fatal(err)
	}
	d.Kill()
	d = n.Huskd()
	reach()
	n.MustHusk("stop", "web")
	n.MustHusk("rm", "web")
	awaitNoLeases(t, n, leases)
	cleanCNI(n)
	d.Stop()
}

// TestNetworkAnnotations requests, with annotations, an address of the built-in network and a
// second CNI network, whose addresses are not listed as the pod's.
func TestNetworkAnnotations(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	d := startHuskd(t, n)
	annotated := func(name, annotations string) string {
		manifest := strings.Replace(cniPod, "{name: NAME}", "{name: "+name+", annotations: {"+annotations+"}}", 1)
		n.MustHusk("run", "--wait", write(t, n, name+".yaml", manifest))
		return strings.Join(inspect(t, n, name).IPs, " ")
	}
	if ips := annotated("chosen", "cni.husk.dev/ips: 10.201.7.7"); !strings.Contains(ips, "10.201.7.7") {
		t.Errorf("the built-in network gave %s", ips)
	}
	n.MustHusk("rm", "-f", "chosen")
	leases := configureCNI(t, n)
	second := `{"cniVersion":"1.0.0","name":"storage","plugins":[{"type":"ptp","ipam":{"type":"host-local","dataDir":"` + leases + `","ranges":[[{"subnet":"10.79.0.0/24"}]]}}]}`
	if err := os.WriteFile(filepath.Join(n.CNI, "20-storage.conflist"), []byte(second), 0o644); err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, 20*time.Second, func() string {
		if out := n.Husk("doctor").Stdout; !strings.Contains(out, "network storage") {
			return "husk doctor doesn't list the second network:\n" + out
		}
		return ""
	})
	if ips := annotated("both", "k8s.v1.cni.cncf.io/networks: storage@data0"); !strings.HasPrefix(ips, "10.77.0.") || strings.Contains(ips, " ") {
		t.Errorf("the pod's addresses are %s", ips)
	}
	document := n.MustHusk("inspect", "both")
	for _, want := range []string{`"cluster": {`, `"storage": {`, `"IFName": "data0"`, `"IPAddress": "10.79.0.`} {
		if !strings.Contains(document, want) {
			t.Errorf("husk inspect has no %s", want)
		}
	}
	n.MustHusk("rm", "-f", "both")
	awaitNoLeases(t, n, leases)
	cleanCNI(n)
	d.Stop()
}

// TestNetworkAfterStart checks that the network is attached after the sandbox has started if the
// pod or its runtime handler requests that, and before otherwise.
func TestNetworkAfterStart(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	bin, found := filepath.Join(n.Dir, "bin"), filepath.Join(n.Dir, "found")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	// This plugin records the programs that run in the network namespace when it is called.
	program := `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}';;
ADD)
	own=$(stat -Lc %i $CNI_NETNS)
	for p in /proc/[0-9]*; do
		[ "$(stat -Lc %i $p/ns/net 2>/dev/null)" != $own ] || cat $p/comm
	done > ` + found + `
	echo '{"cniVersion":"1.0.0"}';;
esac
`
	if err := os.WriteFile(filepath.Join(bin, "witness"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(n.CNI, "10-cluster.conflist")
	conf, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(conf), `"plugins":[`, `"plugins":[{"type":"witness"},`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Fatal(err)
	}
	config := write(t, n, "huskd.toml", "[runtimes.late]\npath = \""+runc+"\"\nnetwork = \"after-start\"\n")
	d := startHuskd(t, n, node.Flags("--cni-bin-dir", bin+",/usr/lib/cni", "--config", config))
	for annotation, want := range map[string]struct {
		steps string
		runs  bool
	}{
		"{}":      {"pin attach start-infra", false},
		"late {}": {"pin start-infra attach", true},
		"late {cni.husk.dev/network: before-start}": {"pin attach start-infra", false},
		"{cni.husk.dev/network: after-start}":       {"pin start-infra attach", true},
		"{cni.husk.dev/network: before-start}":      {"pin attach start-infra", false},
		"{cri.sandbox.network.setup.v2: 'false'}":   {"pin start-infra attach", true},
	} {
		annotation, late := strings.CutPrefix(annotation, "late ")
		manifest := strings.Replace(cniPod, "{name: NAME}", "{name: web, annotations: "+annotation+"}", 1)
		if late {
			manifest = strings.Replace(manifest, "spec:\n", "spec:\n  runtimeClassName: late\n", 1)
		}
		n.MustHusk("run", "--wait", write(t, n, "pod.yaml", manifest))
		if answer := mustGet(t, n.OtherNet(), node.Address4+":8080"); !strings.HasPrefix(answer, "web ") {
			t.Errorf("%s: the pod answers %q", annotation, answer)
		}
		var steps []string
		for _, s := range inspect(t, n, "web").Sandbox.Steps {
			steps = append(steps, s.Name)
		}
		if got := strings.Join(steps, " "); got != want.steps {
			t.Errorf("%s: steps %s, want %s", annotation, got, want.steps)
		}
		if runs, err := os.ReadFile(found); err != nil || strings.Count(string(runs), "\n") != map[bool]int{true: 1}[want.runs] {
			t.Errorf("%s: the plugin found %q, %v", annotation, runs, err)
		}
		if first := strings.TrimSpace(n.MustHusk("exec", "web", "--", "cat", "/proc/1/comm")); first == "pause" {
			t.Errorf("%s: the container shares the infra process's PID namespace", annotation)
		}
		n.MustHusk("rm", "-f", "web")
		awaitNoLeases(t, n, leases)
	}
	bad := strings.Replace(cniPod, "{name: NAME}", "{name: web, annotations: {cni.husk.dev/network: late}}", 1)
	if r := n.Husk("run", "--wait", "--timeout", "2s", write(t, n, "pod.yaml", bad)); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, `annotation cni.husk.dev/network: "late" is neither before-start nor after-start`) {
		t.Errorf("a bad order: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	n.MustHusk("rm", "-f", "web")
	cleanCNI(n)
	d.Stop()
}

// TestUnusableCNI checks that an unusable configuration is reported, and that pods wait for a
// usable one.
func TestUnusableCNI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	file := filepath.Join(n.CNI, "10-cluster.conflist")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.Replace(string(good), `"bridge"`, `"brige"`, 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startHuskd(t, n)
	why := "no usable CNI configuration in " + n.CNI + ": 10-cluster.conflist: the program brige is in none of /opt/cni/bin, /usr/lib/cni"
	if r := n.Husk("doctor"); r.Code != 1 || !strings.Contains(r.Stdout, why) {
		t.Errorf("husk doctor ends with %d and says\n%s\nwant %s", r.Code, r.Stdout, why)
	}
	manifest := write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "web", 1))
	if r := n.Husk("run", "--wait", "--timeout", "2s", manifest); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, why) {
		t.Errorf("husk run ends with %d and says\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := os.WriteFile(file, good, 0o644); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("run", "--wait", "--timeout", "60s", manifest)
	mustGet(t, n.OtherNet(), node.Address4+":8080")
	n.MustHusk("rm", "-f", "web")
	awaitNoLeases(t, n, leases)
	cleanCNI(n)
	d.Stop()
}

// TestHuskCNIInAChain checks that huskd implements husk-cni in a configuration itself, without a
// program of that name, also in a chain with another plugin.
func TestHuskCNIInAChain(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	configureCNI(t, n)
	conf := `{"cniVersion":"1.0.0","name":"cluster","plugins":[
	 {"type":"husk-cni","subnet":"10.78.0.0/24","dataDir":"` + filepath.Join(n.Dir, "cni-data") + `","capabilities":{"portMappings":true}},
	 {"type":"tuning","sysctl":{"net.core.somaxconn":"499"}}]}`
	if err := os.WriteFile(filepath.Join(n.CNI, "10-cluster.conflist"), []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	d := startHuskd(t, n)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "web", 1)))
	pod := inspect(t, n, "web")
	if len(pod.IPs) != 1 || !strings.HasPrefix(pod.IPs[0], "10.78.0.") {
		t.Fatalf("addresses %v", pod.IPs)
	}
	for from, address := range map[string]string{n.Net(): pod.IPs[0] + ":80", n.OtherNet(): node.Address4 + ":8080"} {
		if answer := mustGet(t, from, address); !strings.HasPrefix(answer, "web ") {
			t.Errorf("%s answers %q", address, answer)
		}
	}
	if got := strings.TrimSpace(n.Must("nsenter", "--net="+pod.NetworkSettings.SandboxKey, "cat", "/proc/sys/net/core/somaxconn")); got != "499" {
		t.Errorf("the tuning plugin hasn't set the sysctl, which is %s", got)
	}
	d.Kill()
	d = n.Huskd()
	mustGet(t, n.OtherNet(), node.Address4+":8080")
	n.MustHusk("stop", "web")
	n.MustHusk("rm", "web")
	d.Stop()
	cleanHuskCNI(n)
}

// cleanHuskCNI removes the network 10.78.0.0/24, which husk-cni never removes itself.
func cleanHuskCNI(n *node.Node) {
	for line := range strings.Lines(n.Must("nft", "list", "tables")) {
		if table := strings.Fields(line); strings.HasPrefix(table[2], "husk-") {
			n.Must("nft", "delete", "table", table[1], table[2])
		}
	}
	n.Must("ip", "route", "delete", "unreachable", "10.78.0.0/24")
	n.Must("sysctl", "-qw", "net.ipv4.ip_forward=0", "net.ipv6.conf.all.forwarding=0")
}

// TestCrashInCNI kills huskd before and after every plugin, in ADD and in DEL. The next huskd must
// finish the work, and nothing may be left.
func TestCrashInCNI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	startHuskd(t, n).Stop()
	points := []string{"cni.attached", "cni.deleted"}
	for i := range 2 {
		for _, op := range []string{"add", "del"} {
			points = append(points, fmt.Sprintf("cni.%s.%d.begin", op, i), fmt.Sprintf("cni.%s.%d.end", op, i))
		}
	}
	slices.Sort(points)
	for _, point := range points {
		manifest := write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "victim", 1))
		d := n.Huskd(node.Env(crashpoint.Env, point))
		up := n.Husk("run", "--wait", "--timeout", "30s", manifest)
		if up.Code == 0 {
			n.Husk("stop", "victim")
		}
		if !d.Wait(10 * time.Second) {
			t.Fatalf("%s: huskd was not killed at this point: husk run ended with %d %s", point, up.Code, up.Stderr)
		}
		d = n.Huskd()
		if up.Code != 0 { // the pod is still declared
			n.MustHusk("run", "--wait", "--timeout", "60s", manifest)
			if answer := mustGet(t, n.OtherNet(), node.Address4+":8080"); !strings.HasPrefix(answer, "victim ") {
				t.Errorf("%s: the pod answers %q", point, answer)
			}
			if left := cniLeases(t, n, leases); len(slices.DeleteFunc(left, func(s string) bool { return !strings.HasPrefix(s, "lease") })) != 1 {
				t.Errorf("%s: one pod has %v", point, left)
			}
		}
		n.MustHusk("stop", "victim")
		n.MustHusk("rm", "victim")
		awaitNoLeases(t, n, leases)
		d.Stop()
	}
	cleanCNI(n)
}

// TestRebootWithCNI checks that the leases on disk are released after a reboot, though no namespace
// is left.
func TestRebootWithCNI(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	leases := configureCNI(t, n)
	startHuskd(t, n)
	n.MustHusk("run", "--wait", write(t, n, "pod.yaml", strings.Replace(cniPod, "NAME", "web", 1)))
	if len(cniLeases(t, n, leases)) == 0 {
		t.Fatal("the pod has no lease")
	}
	n.Reboot()
	d := n.Huskd()
	n.Husk("stop", "web")
	n.Husk("rm", "-f", "web")
	awaitNoLeases(t, n, leases)
	cleanCNI(n)
	d.Stop()
}
