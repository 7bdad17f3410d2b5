package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// TestFQDN checks that a subdomain gives the pod a fully qualified domain name, which can be its
// hostname.
func TestFQDN(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const script = "hostname; hostname -f; grep -c 'name.sub.default.svc.cluster.local.name$' /etc/hosts; sleep 1000"
	w.run(podOf("plain", "hostname: name, subdomain: sub, "+only("command: "+shell(script))), "--wait")
	w.run(podOf("whole", "hostname: name, subdomain: sub, setHostnameAsFQDN: true, "+only("command: "+shell(script))), "--wait")
	const fqdn = "name.sub.default.svc.cluster.local"
	addresses := fmt.Sprint(len(inspect(t, w.Node, "plain").IPs))
	for pod, lines := range map[string][]string{"plain": {"name", fqdn, addresses}, "whole": {fqdn, fqdn, addresses}} {
		w.eventually(pod, "ready", isReady)
		if got := strings.TrimSpace(w.sh(pod, "hostname; hostname -f; grep -c 'name.sub.default.svc.cluster.local.name$' /etc/hosts")); got != strings.Join(lines, "\n") {
			t.Errorf("in pod %s, the commands print %q, want %q", pod, got, lines)
		}
	}
	w.run(podOf("long", "subdomain: "+strings.Repeat("s", 63)+", setHostnameAsFQDN: true, "+only("command: [sleep, '1000']")))
	w.awaitStatus(map[string]string{"long": `CreatePodSandboxError: .*hostname "long\.s+\.default.* has \d+ characters: at most 64`})
	w.remove("plain", "whole", "long")
	w.end()
}

// TestImageVolume mounts the files of an image into a container that runs another image.
func TestImageVolume(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	volume := func(ref, policy string) string {
		return "volumes: [{name: v, image: {reference: '" + ref + "', pullPolicy: " + policy + "}}], " +
			only("volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /part, subPath: www/cgi-bin}], command: [sleep, '1000']")
	}
	w.run(podOf("has", volume("localhost/web:1", "Never")), "--wait")
	if got := w.sh("has", "set +e; cat /v/etc/passwd | head -n 1; ls /part; touch /v/x 2>&1; true"); got != "root:x:0:0:root:/root:/bin/sh\nindex.cgi\ntouch: /v/x: Read-only file system" {
		t.Errorf("the volume has %q", got)
	}
	w.run(podOf("lacks", volume("localhost/none:1", "Never")))
	w.awaitStatus(map[string]string{"lacks": `CreateContainerConfigError: volume v: .*localhost/none:1.*, and pullPolicy is Never: load it with husk image load`})
	w.remove("has", "lacks")
	w.end()
}

// TestTerminationMessage checks that a container's message comes from its termination message file
// or the end of its log.
func TestTerminationMessage(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const fallback = "terminationMessagePolicy: FallbackToLogsOnError, "
	for name, c := range map[string]struct{ spec, script, want string }{
		"file":     {"", "echo -n gone fishing >/dev/termination-log; exit 3", "gone fishing"},
		"else":     {"terminationMessagePath: /tmp/why, securityContext: {runAsUser: 1000, readOnlyRootFilesystem: true}, ", "echo -n no fish >/tmp/why; exit 3", "no fish"},
		"log":      {fallback, "echo one; echo two >&2; exit 3", "one\ntwo\n"},
		"no-end":   {fallback, "echo one; echo -n two; exit 3", "one\ntwo"},
		"both":     {fallback, "echo one; echo -n rather this >/dev/termination-log; exit 3", "rather this"},
		"well":     {fallback, "echo one; exit 0", ""},
		"without":  {"", "echo one; exit 3", ""},
		"too-long": {"", "(yes | head -c 9998; echo .) >/dev/termination-log; exit 3", strings.Repeat("y\n", 2047) + ".\n"},
	} {
		w.run(podOf(name, "restartPolicy: Never, "+only(c.spec+"command: "+shell(c.script))), "--wait")
		if p := w.pod(name); p.Containers[0].Message != c.want {
			t.Errorf("%s: the message is %q, want %q", name, p.Containers[0].Message, c.want)
		}
		w.remove(name)
	}
	// A container starts with an empty file, and a restarted huskd still has the message.
	w.run(podOf("again", "restartPolicy: Never, "+only("command: "+shell("cat /dev/termination-log; echo -n bye >/dev/termination-log"))), "--wait")
	w.d.Kill()
	w.d = w.Huskd()
	w.eventually("again", "ended with its message", func(p listed) bool { return p.Containers[0].Message == "bye" })
	if text := w.MustHusk("logs", "again"); text != "" {
		t.Errorf("the new container found %q in the file", text)
	}
	w.remove("again")
	w.end()
}

// cgroupFile returns the content of the first of the named files that exists in the directory rel
// below a pod's cgroup.
func (w *testEnv) cgroupFile(pod, rel string, names ...string) string {
	w.t.Helper()
	var about struct{ Sandbox struct{ Cgroup string } }
	if err := json.Unmarshal([]byte(w.MustHusk("inspect", pod)), &about); err != nil {
		w.t.Fatal(err)
	}
	for _, name := range names {
		for _, mount := range []string{"", "cpu", "memory", "pids", "cpu,cpuacct"} {
			raw, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", mount, about.Sandbox.Cgroup, rel, name))
			if err == nil {
				return strings.TrimSpace(string(raw))
			}
		}
	}
	w.t.Fatalf("cgroup %s of pod %s has none of the files %v", about.Sandbox.Cgroup, pod, names)
	return ""
}

// TestQOSClasses checks that pods are in the cgroup of their QoS class, whose weight follows their
// requests, and that limits of a pod hold for its containers together.
func TestQOSClasses(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	pod := func(name, spec, resources string) {
		w.run(podOf(name, spec+only(resources+"command: [sleep, '1000']")), "--wait")
	}
	shares := func(pod, rel string) string { return w.cgroupFile(pod, rel, "cpu.shares", "cpu.weight") }
	v2 := func(v1, v2 string) string {
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			return v2
		}
		return v1
	}
	same := func(what, got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("%s is %s, want %s", what, got, want)
		}
	}
	pod("guaranteed", "", "resources: {limits: {cpu: 100m, memory: 64Mi}}, ")
	pod("burst", "", "resources: {requests: {cpu: 250m, memory: 16Mi}}, ")
	pod("whole", "resources: {requests: {cpu: 500m}, limits: {cpu: '1', memory: 32Mi}}, overhead: {cpu: 250m, memory: 32Mi}, ", "")
	pod("nothing", "", "")
	same("a guaranteed pod's weight", shares("guaranteed", ""), v2("102", "4"))
	same("a burstable pod's weight", shares("burst", ""), v2("256", "10"))
	same("the weight of a pod with pod-level resources", shares("whole", ""), v2("768", "30"))
	same("its memory limit", w.cgroupFile("whole", "", "memory.limit_in_bytes", "memory.max"), fmt.Sprint(64<<20))
	if quota := w.cgroupFile("whole", "", "cpu.cfs_quota_us", "cpu.max"); !strings.HasPrefix(quota, "125000") {
		t.Errorf("its CPU quota is %s", quota)
	}
	same("the weight of the burstable class", shares("burst", ".."), v2("1024", "39"))
	same("the weight of the best-effort class", shares("nothing", ".."), v2("2", "1"))
	score := func(pod string) string {
		raw, err := os.ReadFile(w.Path(fmt.Sprintf("/proc/%d/oom_score_adj", w.pod(pod).Containers[0].Pid)))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(raw))
	}
	same("the oom_score_adj of a best-effort pod", score("nothing"), "1000")
	if burst := score("burst"); burst == "1000" || len(burst) != 3 {
		t.Errorf("the oom_score_adj of a burstable pod is %s", burst)
	}
	// huskd can't go below its own score if it lacks CAP_SYS_RESOURCE. The pod then gets that score.
	if best := score("guaranteed"); best != "-997" && best > score("burst") {
		t.Errorf("the oom_score_adj of a guaranteed pod is %s", best)
	}
	w.d.Kill()
	w.d = w.Huskd()
	w.MustHusk("rm", "-f", "burst")
	same("after a restart of huskd, the weight of the class", shares("whole", ".."), v2("768", "30"))
	pod("more", "", "resources: {requests: {cpu: 250m}}, ")
	same("with another pod, the weight of the class", shares("more", ".."), v2("1024", "39"))
	// The pod's memory limit holds though the container has none.
	w.run(podOf("greedy", "restartPolicy: Never, resources: {limits: {memory: 16Mi}}, "+only("command: "+shell("a=$(yes | head -c 40000000); echo $a | wc -c"))), "--wait")
	if p := w.pod("greedy"); p.Phase != "Failed" {
		t.Errorf("the container exceeded its pod's memory limit, and the pod is %+v", p)
	}
	w.remove("guaranteed", "whole", "nothing", "more", "greedy")
	w.end()
}

// TestRestartRules has a container whose exit code restarts all containers of the pod, in the same
// sandbox and with its volumes, and one whose own policy is not the pod's.
func TestRestartRules(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const mount = ", volumeMounts: [{name: v, mountPath: /v}]}"
	w.run(podOf("rules", "restartPolicy: Never, volumes: [{name: v}], initContainers: [{name: i, restartPolicy: OnFailure, image: 'localhost/web:1', command: "+
		shell("echo i >>/v/f; test $(grep -c i /v/f) -gt 1")+mount+"], containers: ["+
		"{name: a, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [9]}}], image: 'localhost/web:1', command: "+
		shell("until grep -q b /v/f && grep -q c /v/f; do sleep 0.1; done; echo a >>/v/f; test $(grep -c a /v/f) -gt 1 || exit 9; sleep 1000")+mount+", "+
		"{name: b, image: 'localhost/web:1', command: "+shell("trap '' TERM; hostname -i >>/v/ip; echo b >>/v/f; sleep 1000")+mount+", "+
		"{name: c, restartPolicy: OnFailure, image: 'localhost/web:1', command: "+shell("echo c >>/v/f; exit 0")+mount+"]"))
	w.eventually("rules", "restarted", func(p listed) bool {
		return len(p.Containers) == 4 && p.Containers[1].Restarts == 1 && p.Containers[1].State == "Running" && p.Containers[3].State == "Terminated"
	})
	got := w.MustHusk("exec", "rules", "-c", "b", "--", "sh", "-c", "until test $(grep -c [abc] /v/f) -gt 5; do sleep 0.1; done; sort /v/f | tr -d '\\n'; sort -u /v/ip | wc -l")
	if strings.TrimSpace(got) != "aabbcciii1" {
		t.Errorf("the containers ran as %q, want each twice, the init container once more, and one address", got)
	}
	w.d.Kill()
	w.d = w.Huskd()
	if p := w.pod("rules"); p.Containers[1].Restarts != 1 || p.Containers[2].Restarts != 1 || p.Containers[1].State != "Running" {
		t.Errorf("after a restart of huskd: %+v", p)
	}
	w.remove("rules")
	w.end()
}

// TestSeccompDefault checks that seccomp-default decides about containers whose pod names no
// seccomp profile, and about no others. What it is by default is in TestContainers.
func TestSeccompDefault(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t, node.Flags("--seccomp-default=false"))
	w.run(podOf("plain", only("command: [sleep, '1000']")), "--wait")
	w.run(podOf("named", "securityContext: {seccompProfile: {type: RuntimeDefault}}, "+only("command: [sleep, '1000']")), "--wait")
	for pod, want := range map[string]string{"plain": "Seccomp:\t0", "named": "Seccomp:\t2"} {
		if got := w.sh(pod, "grep Seccomp: /proc/self/status"); got != want {
			t.Errorf("pod %s has %q, want %q", pod, got, want)
		}
	}
	w.remove("plain", "named")
	w.end()
}
