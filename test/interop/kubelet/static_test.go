package kubelet

import (
	"encoding/json"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/test/node"
)

// TestStaticPods tests a kubelet without an API server, with a directory of manifests.
func TestStaticPods(t *testing.T) {
	m := newMachine(t)
	m.startKubelet()
	m.write("manifests/host.yaml", host)
	m.write("manifests/full.yaml", full)
	pod := m.eventually("full-node", ready)
	m.eventually("host-node", ready)
	if len(pod.Status.PodIPs) != 2 {
		t.Errorf("the pod has the addresses %v", pod.Status.PodIPs)
	}
	m.checkAnswers(pod, "version 1\n")
	if got, err := m.get("http://" + node.Address4 + ":8090/hostname"); err != nil {
		t.Errorf("the pod on the node's network answers %q %v", got, err)
	}
	m.testSessions()

	m.testLivenessRestart(pod)
	m.testHuskdKill()
	m.testKubeletRestart()

	m.write("manifests/full.yaml", strings.ReplaceAll(full, `version: "1"`, `version: "2"`))
	pod = m.eventually("full-node", func(p *corev1.Pod) bool { return ready(p) && p.Labels["version"] == "2" })
	m.checkAnswers(pod, "version 2\n")

	m.testStaticReboot(pod)

	m.Must("rm", m.Dir+"/manifests/full.yaml", m.Dir+"/manifests/host.yaml")
	m.awaitGone()
	m.logLatencies()
	m.end()
}

// TestStatsAndEvents makes the kubelet use huskd's events and stats, instead of listing containers
// and reading cgroups itself.
func TestStatsAndEvents(t *testing.T) {
	m := newMachine(t)
	m.gates = "EventedPLEG: true, PodAndContainerStatsFromCRI: true"
	m.startKubelet()
	m.write("manifests/full.yaml", full)
	m.checkAnswers(m.eventually("full-node", ready), "version 1\n")
	var stats struct {
		Pods []struct {
			PodRef     struct{ Name string }
			Containers []struct {
				Name   string
				Memory struct{ WorkingSetBytes int }
			}
			Network struct{ RxBytes int }
		}
	}
	node.Eventually(t, time.Minute, func() string {
		text, err := m.get("https://127.0.0.1:10250/stats/summary")
		if err != nil {
			return err.Error()
		}
		if err := json.Unmarshal([]byte(text), &stats); err != nil {
			return err.Error()
		}
		if len(stats.Pods) != 1 || len(stats.Pods[0].Containers) != 3 || stats.Pods[0].Network.RxBytes == 0 || stats.Pods[0].Containers[0].Memory.WorkingSetBytes == 0 {
			return "stats are " + text
		}
		return ""
	})
	node.Eventually(t, time.Minute, func() string {
		metrics, err := m.get("https://127.0.0.1:10250/metrics/cadvisor")
		if err != nil {
			return err.Error()
		}
		for _, want := range []string{`container_memory_working_set_bytes{container="web"`, `container_cpu_usage_seconds_total{container="web"`, `container_network_receive_bytes_total{`} {
			if !strings.Contains(metrics, want) {
				return "metrics lack " + want
			}
		}
		return ""
	})
	if metrics, err := m.get("https://127.0.0.1:10250/metrics"); err != nil || !strings.Contains(metrics, "\nkubelet_evented_pleg_connection_success_count 1\n") {
		t.Errorf("the kubelet has not subscribed to events exactly once: %v", err)
	}
	m.Must("rm", m.Dir+"/manifests/full.yaml")
	m.end()
}

// testStaticReboot reboots the node. The pods must come back.
func (m *machine) testStaticReboot(before *corev1.Pod) {
	m.t.Helper()
	m.kubelet.kill() // first, so that it doesn't see the pods die
	m.Reboot()
	m.removeCgroups()
	m.boot()
	m.startKubelet()
	after := m.eventually("full-node", func(p *corev1.Pod) bool { return ready(p) && restarts(p) > restarts(before) })
	m.eventually("host-node", ready)
	m.checkAnswers(after, "version 2\n")
}

// logLatencies logs how long the kubelet waited for huskd, by operation.
func (m *machine) logLatencies() {
	m.t.Helper()
	metrics, err := m.get("https://127.0.0.1:10250/metrics")
	if err != nil {
		m.t.Fatal(err)
	}
	value := func(name, operation string) (v float64) {
		_, rest, _ := strings.Cut(metrics, fmt.Sprintf("\nkubelet_runtime_operations_%s{operation_type=%q} ", name, operation))
		_, _ = fmt.Sscan(rest, &v)
		return v
	}
	for _, operation := range []string{"run_podsandbox", "create_container", "start_container", "exec_sync", "stop_container", "stop_podsandbox", "remove_container", "remove_podsandbox", "list_containers", "container_status", "podsandbox_status"} {
		if count := value("duration_seconds_count", operation); count > 0 {
			m.t.Logf("%-18s %4.0f times, %6.1f ms each, %.0f errors", operation, count, 1000*value("duration_seconds_sum", operation)/count, value("errors_total", operation))
		}
	}
}

// checkAnswers checks the response of a pod's web server at all its addresses.
func (m *machine) checkAnswers(pod *corev1.Pod, want string) {
	m.t.Helper()
	urls := []string{"http://" + node.Address4 + ":8080"}
	for _, ip := range pod.Status.PodIPs {
		urls = append(urls, "http://"+net.JoinHostPort(ip.IP, "80"), "http://"+net.JoinHostPort(ip.IP, "81"))
	}
	for _, u := range urls {
		if got, err := m.get(u + "/index.html"); err != nil || got != want {
			m.t.Errorf("%s answers %q %v, want %q", u, got, err, want)
		}
	}
	for _, ip := range []string{node.Address4, node.Address6} {
		if got, err := node.Get(m.OtherNet(), net.JoinHostPort(ip, "8080")); err != nil || got != want {
			m.t.Errorf("the host port at %s answers another host with %q %v, want %q", ip, got, err, want)
		}
	}
	if got, err := m.get(urls[0] + "/labels"); err != nil || !strings.Contains(got, `app="full"`) {
		m.t.Errorf("downward API: %q %v", got, err)
	}
}

// run runs a command in a container through the kubelet's API.
func (m *machine) run(path, command string) string {
	m.t.Helper()
	out, err := m.request("POST", "https://127.0.0.1:10250/run/default/"+path+"?cmd="+url.QueryEscape(command))
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// testSessions reads logs and runs commands through the kubelet.
func (m *machine) testSessions() {
	m.t.Helper()
	for container, want := range map[string]string{"prepare": "prepared\n", "web": "serving\n"} {
		if got, err := m.get("https://127.0.0.1:10250/containerLogs/default/full-node/" + container); err != nil || got != want {
			m.t.Errorf("log of %s: %q %v, want %q", container, got, err, want)
		}
	}
	if got := m.run("full-node/web", "cat /host/hostname"); got == "" {
		m.t.Error("the volume of the host's /etc is empty")
	}
	if got := m.run("full-node/web", "hostname"); got != "full-node\n" {
		m.t.Errorf("hostname %q", got)
	}
	if got := m.run("full-node/web", "df /memory"); !strings.Contains(got, "tmpfs") || !strings.Contains(got, "1024") {
		m.t.Errorf("the volume in memory is %s", got)
	}
}

// testLivenessRestart makes a liveness probe fail.
func (m *machine) testLivenessRestart(pod *corev1.Pod) {
	m.t.Helper()
	m.run("full-node/web", "touch /tmp/sick")
	after := m.eventually("full-node", func(p *corev1.Pod) bool { return ready(p) && restarts(p) == 1 })
	if after.Status.PodIP != pod.Status.PodIP {
		m.t.Errorf("the address has changed from %s to %s", pod.Status.PodIP, after.Status.PodIP)
	}
	last := after.Status.ContainerStatuses
	i := slices.IndexFunc(last, func(c corev1.ContainerStatus) bool { return c.LastTerminationState.Terminated != nil })
	if i < 0 {
		m.t.Fatalf("no container has a last state: %s", describe(after))
	}
	if last[i].Name != "web" {
		m.t.Errorf("%s was restarted", last[i].Name)
	}
}

// testHuskdKill kills huskd. The pods must not be affected.
func (m *machine) testHuskdKill() {
	m.t.Helper()
	before := m.eventually("full-node", ready)
	m.huskd.Kill()
	m.checkAnswers(before, "version 1\n")
	m.huskd = m.Huskd()
	m.checkUnchanged(before)
}

// testKubeletRestart restarts the kubelet. The pods must not be affected.
func (m *machine) testKubeletRestart() {
	m.t.Helper()
	before := m.eventually("full-node", ready)
	m.kubelet.stop()
	m.checkAnswers(before, "version 1\n")
	m.startKubelet()
	m.checkUnchanged(before)
}

// checkUnchanged checks that the same containers run as before, after the kubelet has listed them
// again.
func (m *machine) checkUnchanged(before *corev1.Pod) {
	m.t.Helper()
	began := time.Now()
	m.eventually(before.Name, func(p *corev1.Pod) bool { return ready(p) && m.relisted(began) })
	after := m.eventually(before.Name, ready)
	if got, want := containers(after), containers(before); !slices.Equal(got, want) {
		m.t.Errorf("containers %v are running, before %v were", got, want)
	}
	if got, want := restarts(after), restarts(before); got != want {
		m.t.Errorf("%d restarts, before %d", got, want)
	}
	m.checkAnswers(after, "version 1\n")
}

// relisted reports whether the kubelet has listed huskd's containers several times since then.
func (m *machine) relisted(then time.Time) bool {
	metrics, err := m.get("https://127.0.0.1:10250/metrics")
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(metrics, "\nkubelet_pleg_last_seen_seconds ")
	var seen float64
	_, err = fmt.Sscan(rest, &seen)
	return err == nil && seen > float64(then.Add(5*time.Second).Unix())
}
