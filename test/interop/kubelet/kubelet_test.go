// Package kubelet tests huskd with a real kubelet and a real API server. It is a module of its own,
// so that Husk doesn't require Kubernetes. `make test-kubelet` builds what it needs.
package kubelet

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) { node.Main(m) }

// image is the image of all containers: busybox with a web server.
const image = "localhost/web:1"

// another is another name of image.
const another = "localhost/web:2"

// binaries is the directory of kubelet and kube-apiserver: see the Makefile.
var binaries = cmp.Or(os.Getenv("HUSK_TEST_KUBERNETES"), "out")

// machine is a node with huskd and a kubelet.
type machine struct {
	*node.Node
	t       *testing.T
	name    string // of the Node object
	huskd   *node.Daemon
	kubelet *process
	cgroup  string // of the kubelet's pods
	gates   string // the kubelet's featureGates
	reclaim string // the part of the kubelet's configuration about garbage collection and eviction
	client  *http.Client
	logs    string // the directory for logs of programs; "" keeps the logs in memory
}

// newMachine starts a node whose huskd has the image. Its name is node.
func newMachine(t *testing.T) *machine {
	t.Helper()
	return newMachineOf(t, "node", func() *node.Node { return node.New(t) })
}

// newMachineOf is like newMachine, with a name and a node of the caller's.
func newMachineOf(t *testing.T, name string, start func() *node.Node) *machine {
	t.Helper()
	m := &machine{t: t, name: name, reclaim: roomy}
	t.Cleanup(func() {
		if m.Node != nil {
			m.removeCgroups() // they are empty once the node has stopped
		}
	})
	n := start()
	m.Node, m.cgroup = n, n.Instance().Cgroup()+"-kubelet"
	m.client = &http.Client{Transport: &http.Transport{
		DialContext:       m.dial,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // the kubelet's certificate is self-signed
		DisableKeepAlives: true,
	}}
	keepSysctls(t)
	m.boot()
	built, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: built, Names: []string{image, another}}); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("image", "load", m.write("web.tar", archive.String()))
	return m
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

// addresses returns the machine's own IPv4 and IPv6 address.
func (m *machine) addresses() (v4, v6 string) {
	if m.Uplink == nil {
		return node.Address4, node.Address6
	}
	return m.Uplink.Addresses[0].Addr().String(), m.Uplink.Addresses[1].Addr().String()
}

// boot starts huskd after a boot of the node.
func (m *machine) boot() {
	m.t.Helper()
	m.Must("mount", "-t", "tmpfs", "log", "/var/log") // the kubelet writes to /var/log/containers, which isn't configurable
	m.huskd = m.Huskd()
}

// dial connects from within the node.
func (m *machine) dial(_ context.Context, network, address string) (conn net.Conn, err error) {
	err = netns.Do(m.Net(), func() error {
		conn, err = net.DialTimeout(network, address, 5*time.Second)
		return err
	})
	return conn, err
}

// write writes a file atomically: its directory may be watched.
func (m *machine) write(name, content string) (path string) {
	m.t.Helper()
	path = filepath.Join(m.Dir, name)
	unfinished := filepath.Join(m.Dir, ".new")
	if err := os.WriteFile(unfinished, []byte(content), 0o600); err != nil {
		m.t.Fatal(err)
	}
	if err := os.Rename(unfinished, path); err != nil {
		m.t.Fatal(err)
	}
	return path
}

// config is the kubelet's configuration. Its files are in the node's directory, and its cgroups
// below one of their own.
const config = `
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://%[1]s
staticPodPath: %[2]s/manifests
podLogsDir: %[2]s/pod-logs
volumePluginDir: %[2]s/plugins
cgroupRoot: %[3]s
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
syncFrequency: 5s
oomScoreAdj: 0
makeIPTablesUtilChains: false
enforceNodeAllocatable: [pods]
%[5]s
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
featureGates: {%[4]s}
`

// roomy is a configuration with which the kubelet neither evicts pods nor removes images.
const roomy = "imageGCHighThresholdPercent: 100\nevictionHard: {memory.available: 1Mi}"

// startKubelet starts the kubelet and waits until it is healthy.
func (m *machine) startKubelet(flags ...string) {
	m.t.Helper()
	for _, cgroup := range m.cgroupDirs() {
		if err := os.MkdirAll(cgroup, 0o755); err != nil {
			m.t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(m.Dir, "manifests"), 0o755); err != nil {
		m.t.Fatal(err)
	}
	path := m.write("kubelet.yaml", fmt.Sprintf(config, m.State+"/husk.sock", m.Dir, m.cgroup, m.gates, m.reclaim))
	v4, v6 := m.addresses()
	m.kubelet = m.start("kubelet", append([]string{
		"--config", path, "--root-dir", m.Dir + "/kubelet", "--cert-dir", m.Dir + "/pki", "--hostname-override", m.name,
		"--node-ip", v4 + "," + v6, "--v", "2",
	}, flags...)...)
	node.Eventually(m.t, time.Minute, func() string {
		m.kubelet.mustRun()
		answer, err := m.get("https://127.0.0.1:10250/healthz")
		if answer != "ok" {
			return fmt.Sprintf("kubelet: %q %v", answer, err)
		}
		return ""
	})
}

// get sends a GET request from within the node.
func (m *machine) get(url string) (string, error) { return m.request(http.MethodGet, url) }

func (m *machine) request(method, url string) (string, error) {
	r, err := http.NewRequestWithContext(m.t.Context(), method, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := m.client.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, answer.Status, body)
	}
	return string(body), err
}

// pod returns the kubelet's pod of that name, or nil.
func (m *machine) pod(name string) *corev1.Pod {
	m.t.Helper()
	text, err := m.get("https://127.0.0.1:10250/pods")
	if err != nil {
		return nil
	}
	var list corev1.PodList
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		m.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Name == name {
			return &p
		}
	}
	return nil
}

// eventually waits until the kubelet's pod of that name meets a condition.
func (m *machine) eventually(name string, condition func(*corev1.Pod) bool) (pod *corev1.Pod) {
	m.t.Helper()
	node.Eventually(m.t, 2*time.Minute, func() string {
		m.kubelet.mustRun()
		if pod = m.pod(name); pod != nil && condition(pod) {
			return ""
		}
		return "pod " + name + " is " + describe(pod)
	})
	return pod
}

func describe(p *corev1.Pod) string {
	if p == nil {
		return "not there"
	}
	text, _ := json.Marshal(p.Status)
	return string(text)
}

// ready reports whether a pod is running and ready.
func ready(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodRunning && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// restarts returns how often the containers of a pod were restarted.
func restarts(p *corev1.Pod) (times int32) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		times += c.RestartCount
	}
	return times
}

// containers returns the IDs of a pod's running containers.
func containers(p *corev1.Pod) (ids []string) {
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Running != nil {
			ids = append(ids, c.ContainerID)
		}
	}
	return ids
}

// awaitGone waits until kubelet and huskd have nothing left of any pod.
func (m *machine) awaitGone() {
	m.t.Helper()
	node.Eventually(m.t, 2*time.Minute, func() string {
		m.kubelet.mustRun()
		if rows := strings.Split(strings.TrimSpace(m.MustHusk("ps", "-a")), "\n"); len(rows) > 1 {
			return "huskd has\n" + strings.Join(rows, "\n")
		}
		if r := m.runtime(); len(r.sandboxes)+len(r.containers) > 0 {
			return "huskd has\n" + r.String()
		}
		if dirs, _ := filepath.Glob(filepath.Join(m.Dir, "kubelet/pods/*")); len(dirs) > 0 {
			return "the kubelet has " + strings.Join(dirs, " ")
		}
		if left := m.podCgroups(); len(left) > 0 {
			return "cgroups " + strings.Join(left, " ")
		}
		return ""
	})
}

// end stops kubelet and huskd, and checks that nothing is left.
func (m *machine) end() {
	m.t.Helper()
	m.awaitGone()
	m.kubelet.stop()
	m.huskd.Stop()
	m.Must("umount", "/var/log", m.Dir+"/kubelet") // the kubelet bind-mounts the latter on itself
	m.removeCgroups()
	m.NothingLeft()
}

// cgroupDirs returns the directories of the kubelet's cgroup, one per hierarchy.
func (m *machine) cgroupDirs() (dirs []string) {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/cgroup.procs")
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.procs"); err == nil {
		hierarchies = []string{"/sys/fs/cgroup/cgroup.procs"}
	}
	for _, h := range hierarchies {
		dirs = append(dirs, filepath.Dir(h)+m.cgroup)
	}
	return dirs
}

// podCgroups returns the cgroups that the kubelet has made for pods.
func (m *machine) podCgroups() (pods []string) {
	for _, root := range m.cgroupDirs() {
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "pod") {
				pods = append(pods, path)
			}
			return nil
		})
	}
	return pods
}

// removeCgroups removes the cgroups that the kubelet keeps for future pods.
func (m *machine) removeCgroups() {
	for _, root := range m.cgroupDirs() {
		var all []string
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, path := range slices.Backward(all) {
			if err := syscall.Rmdir(path); err != nil {
				m.t.Errorf("cgroup %s: %v", path, err)
			}
		}
	}
}

// program returns the path of one of the binaries, or else of the host's program of that name.
func (m *machine) program(name string) string {
	m.t.Helper()
	path, err := exec.LookPath(filepath.Join(binaries, name))
	if err != nil {
		path, err = exec.LookPath(name)
	} else {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		m.t.Fatalf("%v: run make test-kubelet or test-conformance, which build it", err)
	}
	return path
}

// log creates the file for the log of a program in the directory logs. It is closed when the test
// ends.
func (m *machine) log(name string) *os.File {
	m.t.Helper()
	log, err := os.Create(filepath.Join(m.logs, name+".log"))
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = log.Close() })
	return log
}

// process is a program on the node.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	mu   sync.Mutex
	log  bytes.Buffer
}

// start starts one of the binaries on the node, until the test ends.
func (m *machine) start(name string, args ...string) *process {
	m.t.Helper()
	return m.startLogged(name, name, args...)
}

// startLogged is like start, and names the log.
func (m *machine) startLogged(log, name string, args ...string) *process {
	m.t.Helper()
	p := &process{t: m.t, cmd: m.Command(context.Background(), m.program(name), args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	if m.logs != "" {
		file := m.log(log)
		p.cmd.Stdout, p.cmd.Stderr = file, file
	}
	if err := p.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	m.t.Cleanup(func() {
		p.kill()
		if m.t.Failed() && m.logs == "" {
			m.t.Logf("log of %s:\n%s", log, p.text())
		}
	})
	return p
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// logLines returns the lines of the log that a pattern matches.
func (p *process) logLines(pattern string) (lines []string) {
	re := regexp.MustCompile(pattern)
	for s := bufio.NewScanner(strings.NewReader(p.text())); s.Scan(); {
		if re.MatchString(s.Text()) {
			lines = append(lines, s.Text())
		}
	}
	return lines
}

// kill kills the program and waits for it.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// signal sends a signal to the program and its nsenter, unless they have ended: their PIDs may be
// reused by now.
func (p *process) signal(sig syscall.Signal) {
	select {
	case <-p.done:
	default:
		_ = syscall.Kill(-p.cmd.Process.Pid, sig)
	}
}

// mustRun fails the test if the program has ended. P is nil where huskd itself is the node.
func (p *process) mustRun() {
	if p == nil {
		return
	}
	p.t.Helper()
	select {
	case <-p.done:
		p.t.Fatalf("%s has ended", p.cmd.Args)
	default:
	}
}

func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		p.t.Fatalf("%s doesn't end on SIGTERM", p.cmd.Args)
	}
}
