//go:build vm

package guest

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
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

// TestInstall runs at the first boot. It ends with a reboot.
func TestInstall(t *testing.T) {
	journal(t)
	save(t)
	began := time.Now()
	run(t, "apt-get", "install", "-y", older)
	run(t, "husk", "image", "load", image)
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
	eventually(t, "the pods run again", func() bool { return strings.Count(run(t, "husk", "ps"), "1/1") == 2 })
	if got := run(t, "systemd-inhibit", "--list"); !strings.Contains(got, "huskd") {
		t.Errorf("the inhibitor locks are %s", got)
	}
	if !t.Failed() {
		write(t, "/root/rebooted", time.Now().Format(time.RFC3339Nano))
	}
}

// TestReboot runs at the second boot.
func TestReboot(t *testing.T) {
	journal(t)
	if got, err := os.ReadFile(order); string(got) != "ordinary\ncritical\n" {
		t.Errorf("at the reboot the pods ended in the order %q, %v", got, err)
	}
	eventually(t, "the pods run again", func() bool {
		out, _ := exec.Command("husk", "ps").CombinedOutput()
		return strings.Count(string(out), "1/1") == 2
	})
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
	for _, one := range inventory(t) {
		if !slices.Contains(strings.Split(string(had), "\n"), one) {
			t.Errorf("left after the purge: %s", one)
		}
	}
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

// inventory lists what packages, pods and huskd may leave: files, mounts, cgroups, links, routes,
// rules, namespaces and sysctls.
func inventory(t *testing.T) (all []string) {
	t.Helper()
	ignored := regexp.MustCompile(`^/(etc/ld.so.cache|var/(lib/(dpkg|apt|systemd)|cache|log|tmp)|run/(agetty.reload|systemd|udev|dbus|log|utmp|user|lock|mount|credentials|initramfs)|root|proc|sys|dev|tmp)`)
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
		if _, err := os.Stat(path); err == nil && !strings.HasSuffix(path, ".scope") {
			all = append(all, "file "+path)
		}
	}
	numbers := regexp.MustCompile(`(?m)^\d+: `)
	for _, command := range []string{"ip -o link | cut -d' ' -f1-3", "ip route", "ip -6 route", "ip rule", "ip netns", "nft list tables", "cut -d' ' -f5 /proc/mounts /proc/self/mountinfo", "systemctl list-unit-files --no-legend --plain | cut -d' ' -f1,2", "sysctl -n net.ipv4.ip_forward"} {
		for line := range strings.Lines(run(t, "sh", "-c", command)) {
			all = append(all, command+": "+strings.TrimSpace(numbers.ReplaceAllString(line, "")))
		}
	}
	return all
}
