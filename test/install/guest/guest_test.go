//go:build vm

package guest

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The files of package install in the machine.
const (
	older  = "/root/older.deb"
	newer  = "/root/newer.deb"
	image  = "/root/web.tar"
	traces = "/root/traces" // what was there before the installation
	order  = "/root/order"  // names of pods, in the order in which they have ended
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

func journal(t *testing.T) {
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := exec.Command("journalctl", "--no-pager", "-o", "short-monotonic", "-n", "60", "-u", "huskd", "-u", "husk-shutdown", "-u", "systemd-logind").CombinedOutput()
			t.Logf("the journal:\n%s", out)
		}
	})
}

// manifests are two pods that write their name to the file order when they are asked to end. Each
// serves echo on port 7, which keeps a connection open.
const manifests = `
apiVersion: v1
kind: Pod
metadata: {name: critical}
spec: {priorityClassName: system-node-critical, containers: [{name: main, image: "localhost/web:1", volumeMounts: [{name: out, mountPath: /out}], command: [sh, -c, 'nc -ll -p 7 -e cat & trap "hostname >>/out/order; exit 0" TERM; while :; do sleep 0.2; done']}], volumes: [{name: out, hostPath: {path: /root}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: ordinary}
spec: {containers: [{name: main, image: "localhost/web:1", volumeMounts: [{name: out, mountPath: /out}], command: [sh, -c, 'nc -ll -p 7 -e cat & trap "hostname >>/out/order; exit 0" TERM; while :; do sleep 0.2; done']}], volumes: [{name: out, hostPath: {path: /root}}]}
`

// onlyRoot checks that other users of the machine can list nothing of huskd, and pass only through
// the directories above those of pods' user namespaces. TestOtherUsers in test/e2e tries all files.
func onlyRoot(t *testing.T) {
	t.Helper()
	for pattern, others := range map[string]fs.FileMode{
		"/var/lib/husk/*": 0, "/var/lib/husk/containers": 1, "/var/lib/husk/containers/*": 0,
		"/run/husk/*": 0, "/run/husk/sandboxes": 1, "/run/husk/sandboxes/*": 0,
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Errorf("nothing is at %s: %v", pattern, err)
		}
		for _, path := range paths {
			if base := filepath.Base(path); others == 0 && (base == "containers" && filepath.Dir(path) == "/var/lib/husk" || base == "sandboxes") {
				continue
			}
			if info, err := os.Stat(path); err != nil {
				t.Error(err)
			} else if info.Mode()&0o007 != others {
				t.Errorf("%s: %v; want %o for others", path, info.Mode(), others)
			}
		}
	}
}

// TestInstall runs at the first boot. It ends with a reboot.
func TestInstall(t *testing.T) {
	journal(t)
	save(t)
	began := time.Now()
	run(t, "apt-get", "install", "-y", older)
	run(t, "husk", "image", "load", image)
	run(t, "husk", "run", "-d", "-p", "8080:80", "--name", "first", "localhost/web:1")
	eventually(t, "127.0.0.1:8080 answers", func() bool {
		answer, err := http.Get("http://127.0.0.1:8080/")
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	t.Logf("a pod of husk run -p 8080:80 answers %v after the start of apt-get install", time.Since(began).Round(time.Second))
	run(t, "husk", "rm", "-f", "first")
	write(t, "/root/pods.yaml", manifests)
	run(t, "husk", "run", "--wait", "/root/pods.yaml")
	t.Logf("pods run %v after the start of apt-get install", time.Since(began).Round(time.Second))
	if got := run(t, "systemctl", "is-enabled", "huskd"); got != "enabled" {
		t.Errorf("huskd is %s", got)
	}
	for path, want := range map[string]fs.FileMode{"/run/husk": fs.ModeDir | 0o711, "/run/husk/husk.sock": fs.ModeSocket | 0o600, "/var/lib/husk": fs.ModeDir | 0o711, "/etc/husk": fs.ModeDir | 0o755} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", path, info, err, want)
		}
	}
	onlyRoot(t)
	before := containers(t)
	echo := connect(t, "ordinary")
	for _, step := range []struct{ what, deb, version string }{
		{"upgrade", newer, "1.1.0"},
		{"downgrade", older, "1.0.0"},
		{"upgrade again", newer, "1.1.0"},
	} {
		began := time.Now()
		run(t, "apt-get", "install", "-y", "--allow-downgrades", step.deb)
		took := time.Since(began)
		if got := run(t, "husk", "version"); strings.Count(got, step.version) < 2 {
			t.Errorf("after the %s: %s", step.what, got)
		}
		onlyRoot(t)
		if now := containers(t); now != before {
			t.Errorf("after the %s the containers are\n%s\nbefore\n%s", step.what, now, before)
		}
		t.Logf("%s in %v; the longest an answer took on the open connection is %v", step.what, took.Round(time.Millisecond), echo.longest().Round(time.Millisecond))
	}
	echo.end(t)

	// A reload, a failure, and a shutdown that lasts.
	run(t, "systemctl", "reload", "huskd")
	pid := run(t, "systemctl", "show", "-P", "MainPID", "huskd")
	run(t, "systemctl", "kill", "--kill-whom=main", "-s", "KILL", "huskd")
	eventually(t, "systemd starts huskd again", func() bool {
		now := run(t, "systemctl", "show", "-P", "MainPID", "huskd")
		return now != pid && now != "0" && run(t, "systemctl", "show", "-P", "ActiveState", "huskd") == "active"
	})
	if now := containers(t); now != before {
		t.Errorf("after huskd was killed the containers are\n%s\nbefore\n%s", now, before)
	}
	running := func() bool {
		out, _ := exec.Command("husk", "ps").CombinedOutput()
		return strings.Count(string(out), "1/1") == 2
	}
	run(t, "sh", "-c", "husk shutdown && systemctl start huskd")
	eventually(t, "the pods run again after a start right after the shutdown", running)
	run(t, "husk", "shutdown")
	eventually(t, "huskd ends", func() bool { return run(t, "systemctl", "show", "-P", "ActiveState", "huskd") == "inactive" })
	time.Sleep(3 * time.Second) // RestartSec is 1
	if got := run(t, "systemctl", "show", "-P", "ActiveState", "huskd"); got != "inactive" {
		t.Errorf("after husk shutdown and 3 s, huskd is %s", got)
	}
	if err := os.Remove(order); err != nil {
		t.Error(err)
	}
	run(t, "systemctl", "start", "huskd")
	eventually(t, "the pods run again", running)
	if got := run(t, "systemd-inhibit", "--list"); !strings.Contains(got, "huskd") {
		t.Errorf("the inhibitor locks are %s", got)
	}
	if got := strings.TrimSpace(run(t, "cat", "/sys/fs/cgroup/system.slice/huskd.service/cgroup.procs")); got != run(t, "systemctl", "show", "-P", "MainPID", "huskd") {
		t.Errorf("huskd.service has the processes\n%s", run(t, "ps", "-o", "pid,args", strings.ReplaceAll(got, "\n", ",")))
	}
	out := run(t, "journalctl", "--no-pager", "-b", "-o", "cat")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "remains running after unit stopped") || strings.Contains(line, "left-over process") {
			t.Errorf("systemd says: %s", line)
		}
	}
	runScoped(t)
	next(t, "TestReboot")
}

// next names the test of the next boot.
func next(t *testing.T, name string) {
	t.Helper()
	if !t.Failed() {
		write(t, "/root/next", name)
	}
}

// endedInOrder checks in which order pods ended when the machine went down, and that the pods of
// manifests run again. Without systemd-logind, systemd ends the kubelet's pods, which are in
// scopes, while husk-shutdown.service ends those of manifests.
func endedInOrder(t *testing.T, logind bool) {
	t.Helper()
	got, err := os.ReadFile(order)
	text := string(got)
	if !logind {
		text = strings.Replace(text, "scoped\n", "", 1) + "scoped\n"
	}
	if text != "ordinary\ncritical\nscoped\n" || !strings.Contains(string(got), "scoped") {
		log, _ := exec.Command("journalctl", "--no-pager", "-b", "-1", "-o", "short-monotonic", "-n", "150").CombinedOutput()
		t.Errorf("when the machine went down, the pods ended in the order %q, %v\n%s", got, err, log)
	}
	if err := os.Remove(order); err != nil {
		t.Error(err)
	}
	eventually(t, "the pods run again", func() bool {
		out, _ := exec.Command("husk", "ps").CombinedOutput()
		return strings.Count(string(out), "1/1") == 2
	})
}

// TestReboot runs at the second boot. At its end the machine goes down without systemd-logind, so
// that only husk-shutdown.service stops the pods.
func TestReboot(t *testing.T) {
	journal(t)
	endedInOrder(t, true)
	runScoped(t)
	run(t, "systemctl", "mask", "--now", "--runtime", "systemd-logind")
	next(t, "TestPurge")
}

// TestPurge runs at the third boot.
func TestPurge(t *testing.T) {
	journal(t)
	endedInOrder(t, false)
	run(t, "apt-get", "remove", "-y", "husk")
	if out, err := exec.Command("pgrep", "-l", "conmon|husk").CombinedOutput(); err == nil {
		t.Errorf("after the removal there run %s", out)
	}
	run(t, "apt-get", "purge", "-y", "husk")
	write(t, "/root/traces.now", strings.Join(inventory(t), "\n"))
	had, err := os.ReadFile(traces)
	if err != nil {
		t.Fatal(err)
	}
	before, now, left := strings.Split(string(had), "\n"), inventory(t), 0
	for _, one := range now {
		if !slices.Contains(before, one) {
			t.Errorf("left after the purge: %s", one)
			left++
		}
	}
	t.Logf("%d files, mounts, links, rules and sysctls before the installation, %d after the purge: %d are left", len(before), len(now), left)
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not so: %s", what)
		}
	}
}

// containers returns the containers' processes, and how often they have restarted.
func containers(t *testing.T) string {
	t.Helper()
	var lines []string
	age := regexp.MustCompile(`\s+[0-9hms]+\s+(10\.\S+)`)
	_, pods, _ := strings.Cut(run(t, "husk", "ps"), "\n") // without the headings
	for line := range strings.Lines(pods) {
		lines = append(lines, age.ReplaceAllString(strings.TrimSpace(line), " $1"))
	}
	return strings.Join(lines, "\n") + "\n" + run(t, "pgrep", "-f", "^nc -ll|^sh -c nc")
}

// echo is an open connection to a pod.
type echo struct {
	conn net.Conn
	done chan error
	slow chan time.Duration
}

// connect sends a line every 20 ms on one connection, until it ends.
func connect(t *testing.T, pod string) *echo {
	t.Helper()
	fields := strings.Fields(run(t, "sh", "-c", "husk ps | grep ^"+pod))
	address, _, _ := strings.Cut(fields[len(fields)-1], ",")
	var conn net.Conn
	eventually(t, pod+" listens", func() (ok bool) {
		var err error
		conn, err = net.Dial("tcp", address+":7")
		return err == nil
	})
	e := &echo{conn: conn, done: make(chan error, 1), slow: make(chan time.Duration, 1)}
	e.slow <- 0
	go func() {
		answers := bufio.NewReader(conn)
		for n := 0; ; n++ {
			began := time.Now()
			_, err := fmt.Fprintf(conn, "%d\n", n)
			if err == nil {
				var answer string
				if answer, err = answers.ReadString('\n'); err == nil && answer != fmt.Sprintf("%d\n", n) {
					err = fmt.Errorf("%q is the answer to %d", answer, n)
				}
			}
			if err != nil {
				e.done <- err
				return
			}
			e.slow <- max(<-e.slow, time.Since(began))
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return e
}

// longest returns the longest time of an answer so far.
func (e *echo) longest() time.Duration {
	d := <-e.slow
	e.slow <- 0
	return d
}

// end checks that the connection hasn't broken.
func (e *echo) end(t *testing.T) {
	t.Helper()
	select {
	case err := <-e.done:
		t.Errorf("the open connection broke: %v", err)
	default:
		_ = e.conn.Close()
		<-e.done
	}
}

func save(t *testing.T) {
	t.Helper()
	write(t, traces, strings.Join(inventory(t), "\n"))
}

// runScoped runs a pod as a kubelet does whose cgroup driver is systemd: in slices that the kubelet
// has made.
func runScoped(t *testing.T) {
	t.Helper()
	config, err := os.ReadFile("/etc/husk/huskd.toml")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), "cgroup-driver") {
		write(t, "/etc/husk/huskd.toml", "cgroup-driver = \"systemd\"\n"+string(config))
		run(t, "systemctl", "restart", "huskd")
	}
	const slice = "kubepods-burstable-pod0f3c.slice"
	for _, name := range []string{"kubepods.slice", "kubepods-burstable.slice", slice} {
		run(t, "busctl", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager",
			"StartTransientUnit", "ssa(sv)a(sa(sv))", name, "fail", "1", "DefaultDependencies", "b", "false", "0")
	}
	conn, err := grpc.NewClient("unix:///run/husk/husk.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := runtimeapi.NewRuntimeServiceClient(conn)
	pod := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: "scoped", Namespace: "default", Uid: time.Now().String()}, Hostname: "scoped",
		Linux: &runtimeapi.LinuxPodSandboxConfig{
			CgroupParent: "/kubepods.slice/kubepods-burstable.slice/" + slice,
			// Otherwise the container would be killed as soon as the sandbox's process ends.
			SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}},
		},
	}
	sandbox, err := client.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	if err != nil {
		t.Fatal(err)
	}
	container, err := client.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox.PodSandboxId, SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"}, Image: &runtimeapi.ImageSpec{Image: "localhost/web:1"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}}},
		// systemd signals every process of the scope, also one that the trap starts.
		Command: []string{"sh", "-c", `trap "echo scoped >>/out/order; exit 0" TERM; while :; do sleep 0.2; done`},
		Mounts:  []*runtimeapi.Mount{{ContainerPath: "/out", HostPath: "/root"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: container.ContainerId}); err != nil {
		t.Fatal(err)
	}
	if got := run(t, "systemctl", "list-units", "--plain", "--no-legend", "*"+container.ContainerId+".scope"); !strings.Contains(got, "active running") {
		t.Errorf("the scope of the container: %q", got)
	}
}

// inventory lists what packages, pods and huskd may leave: files, mounts, cgroups, links, routes,
// rules, namespaces and sysctls.
func inventory(t *testing.T) (all []string) {
	t.Helper()
	ignored := regexp.MustCompile(`^/(etc/ld.so.cache|var/(lib/(dpkg|apt|systemd)|cache|log/(journal|apt|dpkg.log|alternatives.log|wtmp|btmp|lastlog)|tmp)|run/(agetty.reload|systemd|udev|dbus|log|utmp|user|lock|mount|credentials|initramfs)|root|proc|sys|dev|tmp)`)
	err := filepath.WalkDir("/", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil
		case ignored.MatchString(path):
			if d.IsDir() {
				return filepath.SkipDir
			}
		default:
			all = append(all, "file "+path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	cgroups, _ := filepath.Glob("/sys/fs/cgroup/*")
	for _, path := range append(cgroups, "/run/systemd/logind.conf.d/90-husk.conf") {
		if _, err := os.Stat(path); err == nil && !strings.HasSuffix(path, ".scope") && !strings.HasSuffix(path, ".mount") { // systemd's own
			all = append(all, "file "+path)
		}
	}
	numbers := regexp.MustCompile(`(?m)^\d+: `)
	for _, command := range []string{"ip -o link | cut -d' ' -f1-3", "ip route", "ip -6 route", "ip rule", "ip netns", "nft list tables", "cut -d' ' -f5 /proc/mounts /proc/self/mountinfo", "systemctl list-unit-files --no-legend --plain | cut -d' ' -f1,2", "sysctl -e -a -r '^net[.]ipv[46][.]' 2>/dev/null",
		"systemctl list-units --all --plain --no-legend | grep -i husk || :", "find /var/lib/dpkg /var/lib/systemd /var/cache /run -xdev -name '*husk*'"} {
		for line := range strings.Lines(run(t, "sh", "-c", command)) {
			all = append(all, command+": "+strings.TrimSpace(numbers.ReplaceAllString(line, "")))
		}
	}
	return all
}
