// Package kubeadm runs the commands of docs/kubeadm.md: two machines become a cluster, once with a
// kubelet that uses huskd, and once with huskd as the node. `make test-kubeadm` builds what it
// needs.
package kubeadm

import (
	"bytes"
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/page"
)

func TestMain(m *testing.M) { node.Main(m) }

// binaries names the directory of huskd, husk, etcd, coredns, pause and the programs of Kubernetes.
const binaries = "HUSK_TEST_KUBERNETES"

// systemctl is the machines' service manager. The machines of this test have no systemd.
//
//go:embed testdata/systemctl
var systemctl string

// machine is a machine that becomes a node of the cluster.
type machine struct {
	*node.Node
	t *testing.T
}

// newMachine starts a machine with programs in its PATH, which has its own /etc, /opt, /var/lib and
// /var/log.
func newMachine(t *testing.T, s *node.Segment, programs ...string) *machine {
	t.Helper()
	m := &machine{Node: s.Node(), t: t}
	t.Cleanup(func() {
		if t.Failed() {
			m.report()
		}
		m.removeCgroups()
	})
	for _, dir := range []string{"/etc", "/opt", "/var/lib"} {
		upper, work := m.Dir+"/upper"+dir, m.Dir+"/work"+dir
		m.Must("mkdir", "-p", upper, work)
		m.Must("mount", "-t", "overlay", "-o", "lowerdir="+dir+",upperdir="+upper+",workdir="+work, "overlay", dir)
	}
	for _, dir := range []string{"kubelet", "etcd"} {
		m.Must("mkdir", "-p", m.Dir+"/"+dir, "/var/lib/"+dir)
		m.Must("mount", "--bind", m.Dir+"/"+dir, "/var/lib/"+dir)
	}
	m.Must("mount", "-t", "tmpfs", "log", "/var/log")
	m.Must("mkdir", "-p", m.Dir+"/home", m.Dir+"/bin", m.Dir+"/logs")
	m.Must("mount", "--bind", m.Dir+"/home", "/root")
	for _, name := range programs {
		m.Must("ln", "-s", filepath.Join(os.Getenv(binaries), name), m.Dir+"/bin/"+name)
	}
	m.write(m.Dir+"/bin/huskd", "#!/bin/sh\nexec "+filepath.Join(os.Getenv(binaries), "huskd")+" --root "+m.Root+" \"$@\"\n")
	m.write(m.Dir+"/bin/systemctl", systemctl)
	m.Must("chmod", "+x", m.Dir+"/bin/huskd", m.Dir+"/bin/systemctl")
	for _, dir := range m.cgroupDirs() {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	m.write("/etc/default/kubelet", "KUBELET_EXTRA_ARGS='--cgroup-root="+m.cgroup()+"'\n")
	m.write("/etc/hosts", "127.0.0.1 localhost\n198.18.1.1 n1\n198.18.1.2 n2\n")
	m.write("/etc/resolv.conf", "nameserver 198.18.1.254\n")
	for _, host := range []string{"registry.k8s.io", "docker.io"} {
		m.write("/etc/husk/certs.d/"+host+"/hosts.toml", "[host.\"http://"+registryAddress+"\"]\ncapabilities = [\"pull\", \"resolve\"]\n")
	}
	return m
}

// end undoes what newMachine did, and checks that nothing else is left.
func (m *machine) end() {
	m.t.Helper()
	m.ended()
	for _, dir := range []string{"/etc/kubernetes/manifests", "/etc/kubernetes/pki", "/var/lib/kubelet", "/var/lib/etcd"} {
		if left := m.Run("find", dir, "-mindepth", "1").Stdout; left != "" {
			m.t.Errorf("left in %s of %s:\n%s", dir, m.Uplink.Name(), left)
		}
	}
	for _, mount := range m.Inventory().Mounts {
		if strings.HasPrefix(mount, "/var/lib/kubelet/") {
			m.t.Errorf("left mounted on %s: %s", m.Uplink.Name(), mount)
		}
	}
	m.Must("sysctl", "-qw", "net.ipv4.ip_forward=0")
	m.Must("umount", "-R", "/root", "/var/log", "/var/lib", "/opt", "/etc")
	m.removeCgroups()
	m.Must("rm", "-rf", "/run/units", m.Root+"/pki")
	m.NothingLeft()
}

// ended waits until huskd has ended and has removed its part of the firewall, which is before
// others remove theirs.
func (m *machine) ended() {
	m.t.Helper()
	node.Eventually(m.t, time.Minute, func() string {
		if m.Serves() {
			return "huskd of " + m.Uplink.Name() + " still serves"
		}
		for _, table := range m.Inventory().Tables {
			if strings.HasPrefix(table, "husk") {
				return "left on " + m.Uplink.Name() + ": nft table " + table
			}
		}
		return ""
	})
}

// report logs what the machine's daemons and containers have logged last.
func (m *machine) report() {
	m.t.Logf("pods of %s:\n%s", m.Uplink.Name(), m.shell("husk ps -a; ls /etc/kubernetes /etc/kubernetes/manifests").Stdout)
	for _, pattern := range []string{m.Dir + "/logs/*.log", m.Path("/var/log/containers/*.log")} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			out := m.shell("tail -n 25 " + strings.TrimPrefix(name, m.Path("")))
			m.t.Logf("%s of %s:\n%s", filepath.Base(name), m.Uplink.Name(), out.Stdout)
		}
	}
}

// write writes a file on the machine.
func (m *machine) write(path, content string) {
	m.t.Helper()
	cmd := m.Command(m.t.Context(), "sh", "-c", `mkdir -p "$(dirname "$0")" && cat >"$0"`, path)
	cmd.Stdin = strings.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		m.t.Fatalf("%s: %v: %s", path, err, out)
	}
}

// shell runs a script of sh(1), as the machine's administrator does.
func (m *machine) shell(script string) node.Result {
	ctx, cancel := context.WithTimeout(context.Background(), 12*time.Minute)
	defer cancel()
	cmd := m.Command(ctx, "sh", "-ec", script)
	cmd.Env = []string{"PATH=" + m.Dir + "/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LOGS=" + m.Dir + "/logs", "KUBECONFIG=/etc/kubernetes/admin.conf"}
	// A file, because the daemons that the script starts keep its output open.
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	r := node.Result{Stdout: out.String(), Stderr: errs.String(), Code: cmd.ProcessState.ExitCode()}
	if err != nil && r.Code == 0 {
		r.Code = 1
	}
	return r
}

// run runs a script and fails the test if a command fails.
func (m *machine) run(script string) string {
	m.t.Helper()
	began := time.Now()
	r := m.shell(script)
	if r.Code != 0 {
		m.t.Fatalf("%s on %s: exit code %d\n%s%s", script, m.Uplink.Name(), r.Code, r.Stdout, r.Stderr)
	}
	m.t.Logf("%s, %v:\n%s", m.Uplink.Name(), time.Since(began).Round(time.Second), script)
	return r.Stdout
}

// follow does what sections of the page say: first it writes their files, then it runs their
// commands, in which replace has pairs of words that the page leaves to its reader.
func (m *machine) follow(p *page.Page, replace []string, sections ...string) {
	m.t.Helper()
	var commands []string
	for _, s := range sections {
		for _, f := range p.Section(s).Files {
			m.write(f.Path, m.adapt(f.Path, f.Content))
		}
		commands = append(commands, p.Section(s).Commands...)
	}
	// kubeadm warns of old cgroups in the words of an error.
	replace = append(replace, "kubeadm init ", "kubeadm init --ignore-preflight-errors SystemVerification ", "kubeadm join ", "kubeadm join --ignore-preflight-errors SystemVerification ")
	for _, c := range commands {
		m.run(strings.NewReplacer(replace...).Replace(c))
	}
}

// adapt adds what this machine needs because it consists of namespaces, shares a disk and has old
// cgroups.
func (m *machine) adapt(path, content string) string {
	switch path {
	case "/etc/husk/huskd.toml":
		content += "image-gc-high = 100\n[eviction-hard]\n\"nodefs.available\" = \"0%\"\n\"imagefs.available\" = \"0%\"\n"
	case "/root/kubeadm.yaml":
		content = strings.Replace(content, "kind: KubeletConfiguration\n", "kind: KubeletConfiguration\n"+
			"failCgroupV1: false\nfailSwapOn: false\nimageGCHighThresholdPercent: 100\nevictionHard: {memory.available: 1Mi}\n", 1)
		content = strings.Replace(content, "kind: KubeProxyConfiguration\n", "kind: KubeProxyConfiguration\n"+
			"conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}\n", 1)
		content = strings.ReplaceAll(content, "kind: InitConfiguration\n", "kind: InitConfiguration\n"+
			"timeouts: {controlPlaneComponentHealthCheck: 8m, kubeletHealthCheck: 8m}\n")
	}
	return content
}

// cgroup is that of the kubelet's pods.
func (m *machine) cgroup() string { return m.Instance().Cgroup() + "-kubelet" }

// cgroupDirs returns the directories of the kubelet's cgroup, one per hierarchy.
func (m *machine) cgroupDirs() (dirs []string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		hierarchies = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, h := range hierarchies {
		dirs = append(dirs, filepath.Dir(h)+m.cgroup())
	}
	return dirs
}

// removeCgroups removes the cgroups that a kubelet keeps for future pods.
func (m *machine) removeCgroups() {
	for _, dir := range m.cgroupDirs() {
		// Files of cgroups can't be removed, and needn't be.
		_ = exec.Command("find", dir, "-depth", "-type", "d", "-exec", "rmdir", "{}", ";").Run()
	}
}

// joining returns the token and the hash of the authority that kubeadm prints for other machines.
func (m *machine) joining() []string {
	m.t.Helper()
	words := strings.Fields(m.run("kubeadm token create --print-join-command"))
	found := map[string]string{}
	for i := range len(words) - 1 {
		found[words[i]] = words[i+1]
	}
	token, hash := found["--token"], found["--discovery-token-ca-cert-hash"]
	if token == "" || hash == "" {
		m.t.Fatalf("kubeadm prints %q", words)
	}
	return []string{"TOKEN", token, "HASH", hash}
}

// web is a Deployment with a pod on each node.
const web = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      tolerations: [{operator: Exists}]
      terminationGracePeriodSeconds: 1
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - {name: web, image: nginx}
`

// testPods runs a pod on each node, each of which must reach the other one by its address and by
// the name of a Service.
func (m *machine) testPods() {
	m.t.Helper()
	m.write("/root/web.yaml", web)
	m.run("kubectl apply -f /root/web.yaml; kubectl expose deployment web --port 80; kubectl rollout status deployment web --timeout=5m")
	rows := strings.Split(strings.TrimSpace(m.run(`kubectl get pods -l app=web -o jsonpath='{range .items[*]}{.metadata.name} {.status.podIP} {.spec.nodeName}{"\n"}{end}'`)), "\n")
	if len(rows) != 2 {
		m.t.Fatalf("the pods are %q", rows)
	}
	var pods [2][]string
	for i, row := range rows {
		if pods[i] = strings.Fields(row); len(pods[i]) != 3 {
			m.t.Fatalf("the pods are %q", rows)
		}
	}
	if pods[0][2] == pods[1][2] {
		m.t.Errorf("both pods are on one node: %q", rows)
	}
	for i, from := range pods {
		for _, to := range []string{pods[1-i][1], "web.default.svc.cluster.local"} {
			node.Eventually(m.t, time.Minute, func() string {
				r := m.shell(fmt.Sprintf("kubectl exec %s -- timeout 5 wget -qO- http://%s/", from[0], to))
				if r.Code != 0 || !strings.Contains(r.Stdout, "web-") {
					return fmt.Sprintf("%s in %s says %q %s", to, from[0], r.Stdout, r.Stderr)
				}
				return ""
			})
		}
	}
	m.run("kubectl delete deployment,service web; kubectl wait --for=delete pod -l app=web --timeout=3m")
}

// TestKubelet makes a cluster of two machines with kubelets that use huskd.
func TestKubelet(t *testing.T) {
	first, second, p := newMachines(t, "husk", "husk-wireguard", "kubeadm", "kubectl", "kubelet")
	for _, m := range []*machine{first, second} {
		m.follow(p, nil, "A cluster by kubeadm", "Each machine")
		m.run("systemctl enable --now kubelet") // as its package does
	}
	first.follow(p, nil, "The first node")
	second.follow(p, first.joining(), "Join")
	first.run(p.Section("Ready").Commands[0])
	first.testPods()
	for _, m := range []*machine{second, first} {
		first.follow(p, []string{"NODE", m.Uplink.Name()}, "Drain")
		m.follow(p, nil, "Remove")
		m.ended()
		m.follow(p, nil, "The firewall")
		if m != first {
			first.run("kubectl delete node " + m.Uplink.Name())
		}
		m.end()
	}
}

// TestHuskd makes a cluster of two machines whose nodes are huskd.
func TestHuskd(t *testing.T) {
	first, second, p := newMachines(t, "husk", "husk-wireguard", "kubeadm", "kubectl")
	for _, m := range []*machine{first, second} {
		m.follow(p, nil, "A cluster by kubeadm", "Each machine of huskd")
	}
	for _, f := range p.Section("The first node").Files {
		first.write(f.Path, first.adapt(f.Path, f.Content))
	}
	first.follow(p, nil, "The first node of huskd")
	second.follow(p, first.joining(), "Join huskd")
	first.run(p.Section("Ready").Commands[0])
	first.testPods()
	for _, m := range []*machine{second, first} {
		first.follow(p, []string{"NODE", m.Uplink.Name()}, "Drain")
		m.follow(p, nil, "Remove huskd")
		if m != first {
			first.run("kubectl delete node " + m.Uplink.Name())
		}
		m.end()
	}
}

// newMachines starts the machines n1 and n2, with a registry beside them, and reads the page.
func newMachines(t *testing.T, programs ...string) (first, second *machine, p *page.Page) {
	t.Helper()
	if os.Getenv(binaries) == "" {
		t.Skip("needs Kubernetes: run make test-kubeadm")
	}
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{NoIPv6: true})
	serveImages(t, u)
	keepSysctls(t)
	first, second = newMachine(t, s, programs...), newMachine(t, s, programs...)
	return first, second, page.Read(t, "../../../docs/kubeadm.md")
}

// keepSysctls restores, after the test, the sysctls that a kubelet sets for the whole machine.
func keepSysctls(t *testing.T) {
	t.Helper()
	for _, name := range []string{"kernel/panic", "kernel/panic_on_oops", "vm/overcommit_memory"} {
		path := "/proc/sys/" + name
		was, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.WriteFile(path, was, 0); err != nil {
				t.Error(err)
			}
		})
	}
}
