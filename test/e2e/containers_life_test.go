package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestSharedNamespaces checks that a pod's containers share exactly the volumes and namespaces that
// they should.
func TestSharedNamespaces(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	sleep := shell("trap 'exit 0' TERM; sleep 1000 & wait")
	pair := func(name, pod string) string {
		return podOf(name, pod+"volumes: [{name: v, emptyDir: {}}, {name: h, hostPath: {path: "+n.Dir+"/made, type: DirectoryOrCreate}}], containers: ["+
			"{name: a, image: 'localhost/web:1', volumeMounts: [{name: v, mountPath: /v}, {name: h, mountPath: /h}], command: "+sleep+"},"+
			"{name: b, image: 'localhost/web:1', volumeMounts: [{name: v, mountPath: /w, readOnly: true}, {name: h, mountPath: /h}], command: "+sleep+"}]")
	}
	n.MustHusk("run", "--wait", write(t, n, "pods.yaml", strings.Join([]string{
		pair("apart", ""), pair("shared", "shareProcessNamespace: true, "), pair("host", "hostNetwork: true, hostPID: true, hostIPC: true, "),
	}, "---\n")))
	in := func(pod, container, script string) string {
		t.Helper()
		return strings.TrimSpace(n.MustHusk("exec", pod, "-c", container, "--", "sh", "-c", script))
	}
	// Volumes and /dev/shm are shared, other files are not.
	in("apart", "a", "echo one >/v/f; echo two >/h/f; echo three >/dev/shm/f; touch /tmp/own")
	if got := in("apart", "b", "cat /w/f /h/f /dev/shm/f; touch /w/g 2>&1; ls /tmp"); !strings.HasPrefix(got, "one\ntwo\nthree\n") || !strings.HasSuffix(got, "Read-only file system") {
		t.Errorf("the other container sees %q", got)
	}
	if got := in("shared", "a", "ls /v /dev/shm; cat /h/f"); got != "/dev/shm:\n\n/v:\ntwo" {
		t.Errorf("another pod sees %q", got)
	}
	// Namespaces, by their names in /proc.
	of := func(pod, container, kind string) string { return in(pod, container, "readlink /proc/self/ns/"+kind) }
	host := func(kind string) string { return strings.TrimSpace(n.Must("readlink", "/proc/self/ns/"+kind)) }
	for _, c := range []struct {
		kind   string
		pod    string
		within bool // the two containers share it
		asNode bool // the first container has the node's
	}{
		{"net", "apart", true, false}, {"ipc", "apart", true, false}, {"uts", "apart", true, false}, {"pid", "apart", false, false}, {"mnt", "apart", false, false},
		{"net", "shared", true, false}, {"ipc", "shared", true, false}, {"uts", "shared", true, false}, {"pid", "shared", true, false}, {"mnt", "shared", false, false},
		{"net", "host", true, true}, {"ipc", "host", true, true}, {"uts", "host", true, true}, {"pid", "host", true, true}, {"mnt", "host", false, false},
	} {
		a, b := of(c.pod, "a", c.kind), of(c.pod, "b", c.kind)
		if (a == b) != c.within || (a == host(c.kind)) != c.asNode {
			t.Errorf("pod %s: the %s namespaces of its containers are %s and %s; the node's is %s", c.pod, c.kind, a, b, host(c.kind))
		}
	}
	// In a shared PID namespace, PID 1 is the infra process, and containers see each other's
	// processes.
	if got := in("shared", "a", "ps -o pid,args"); strings.Count(got, "trap 'exit 0'") < 2 || !strings.Contains(got, "1 /pause") {
		t.Errorf("the processes in the shared PID namespace are\n%s", got)
	}
	n.MustHusk("rm", "-f", "apart", "shared", "host")
	if got := n.Must("cat", n.Dir+"/made/f"); got != "two\n" {
		t.Errorf("the file in the hostPath volume has %q", got)
	}
	d.Stop()
	n.NothingLeft()
}

// TestRestartPolicy checks which containers are restarted when they end.
func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	// The container fails at first, and runs the given command after a restart.
	second := "volumes: [{name: v, emptyDir: {}}], restartPolicy: %s, containers: [{name: c, image: 'localhost/web:1', volumeMounts: [{name: v, mountPath: /v}], command: " +
		shell("test -e /v/ran && %s; touch /v/ran; exit 3") + "}]"
	var names []string
	for _, c := range []struct {
		name, spec string
		phase      string
		code       int // of the last container; not checked if -1
		restarts   int
	}{
		{"never-succeeds", "restartPolicy: Never, " + only("command: [/bin/true]"), "Succeeded", 0, 0},
		{"never-fails", "restartPolicy: Never, " + only("command: "+shell("exit 3")), "Failed", 3, 0},
		{"never-killed", "shareProcessNamespace: true, restartPolicy: Never, " + only("command: "+shell("kill -9 $$$$")), "Failed", 137, 0},
		{"on-failure", fmt.Sprintf(second, "OnFailure", "exit 0"), "Succeeded", 0, 1},
		{"always", fmt.Sprintf(second, "Always", "sleep 1000"), "Running", 0, 1},
		{"init-fails", "restartPolicy: Never, initContainers: [{name: i, image: 'localhost/web:1', command: " + shell("exit 4") + "}], " + only("tty: false"), "Failed", -1, 0},
		{"too-long", "activeDeadlineSeconds: 1, " + only("command: [/bin/sleep, '1000']"), "Failed", 137, 0},
	} {
		names = append(names, c.name)
		w.run(podOf(c.name, c.spec))
		node.Eventually(t, 20*time.Second, func() string {
			p := w.pod(c.name)
			last := p.Containers[len(p.Containers)-1]
			if p.Phase == c.phase && last.Restarts == c.restarts && (last.ExitCode == c.code || c.code < 0) && p.Ready == (c.phase == "Running") {
				return ""
			}
			return fmt.Sprintf("pod %+v", p)
		})
	}
	w.remove(names...)
	w.end()
}

// TestGracePeriod stops containers that end on SIGTERM, and ones that ignore it.
func TestGracePeriod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	polite := shell("trap 'echo bye; exit 9' TERM; echo up; while :; do sleep 1000 & wait; done")
	deaf := shell("trap '' TERM; echo up; while :; do sleep 1000 & wait; done")
	for _, c := range []struct {
		name, command string
		grace         int // the pod's
		flags         []string
		code          int
		least, most   time.Duration
		log           string
	}{
		{"polite", polite, 30, nil, 9, 0, 15 * time.Second, "up\nbye\n"},
		{"deaf", deaf, 1, nil, 137, time.Second, 15 * time.Second, "up\n"},
		{"deaf-hurried", deaf, 30, []string{"--time", "1s"}, 137, time.Second, 15 * time.Second, "up\n"},
		{"deaf-killed", deaf, 30, []string{"--time", "0"}, 137, 0, 15 * time.Second, "up\n"},
	} {
		manifest := strings.Replace(podOf(c.name, only("command: "+c.command)), "PeriodSeconds: 1", fmt.Sprintf("PeriodSeconds: %d", c.grace), 1)
		w.run(manifest, "--wait")
		node.Eventually(t, 10*time.Second, func() string { return strings.TrimPrefix("waiting"+w.MustHusk("logs", c.name), "waitingup\n") })
		began := time.Now()
		w.MustHusk(append([]string{"stop", c.name}, c.flags...)...)
		if took := time.Since(began); took < c.least || took > c.most {
			t.Errorf("%s: stopping took %v", c.name, took)
		}
		if p := w.pod(c.name); p.Phase != "Stopped" || p.Containers[0].ExitCode != c.code {
			t.Errorf("%s: the pod is %+v", c.name, p)
		}
		if log := w.MustHusk("logs", c.name); log != c.log {
			t.Errorf("%s: the log is %q", c.name, log)
		}
		w.remove(c.name)
	}
	w.end()
}
