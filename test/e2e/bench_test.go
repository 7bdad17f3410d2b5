package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// median returns the median in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return float64(all[len(all)/2].Microseconds()) / 1000
}

// stages maps the steps of a pod's start, as husk inspect names them, to names of metrics.
var stages = map[string]string{"pin": "namespace", "attach": "network", "mount": "image-mount", "create": "create", "start": "start"}

// BenchmarkManifestToAnswer measures the time from the exec of `husk run examples/web.yaml` to the
// first answer of its web server, with the image present. It reports medians: of the whole, of the
// command, and of the stages. The stages of different containers overlap.
func BenchmarkManifestToAnswer(b *testing.B) {
	b.Run("runc", func(b *testing.B) { benchmarkAnswer(b, "/usr/bin/crun") })
	b.Run("crun", func(b *testing.B) { benchmarkAnswer(b, "/usr/sbin/runc") })
}

// benchmarkAnswer runs the benchmark on a node on which one of the OCI runtimes is hidden.
func benchmarkAnswer(b *testing.B, hidden string) {
	n := node.New(b)
	hide(n, hidden)
	n.Run("umount", "/sys/fs/cgroup/unified") // crun refuses the hybrid layout of cgroups
	d := startHuskd(b, n)
	path, err := filepath.Abs(example)
	if err != nil {
		b.Fatal(err)
	}
	var whole, ready []time.Duration
	steps := map[string][]time.Duration{}
	for b.Loop() {
		began := time.Now()
		n.MustHusk("run", "--wait", path)
		ready = append(ready, time.Since(began))
		pod := inspect(b, n, "web")
		// Looking up the address is not measured.
		asked := time.Now()
		address := net.JoinHostPort(pod.IPs[0], "80")
		for {
			if _, err := node.Get(n.Net(), address); err == nil {
				break
			}
		}
		whole = append(whole, ready[len(ready)-1]+time.Since(asked))
		for _, step := range pod.Sandbox.Steps {
			steps[step.Name] = append(steps[step.Name], step.Nanoseconds)
		}
		for _, c := range pod.Containers {
			for _, step := range c.Steps {
				steps[step.Name] = append(steps[step.Name], step.Nanoseconds)
			}
		}
		n.MustHusk("stop", "web")
		n.MustHusk("rm", "web")
	}
	b.ReportMetric(median(whole), "ms/answer")
	b.ReportMetric(median(ready), "ms/ready")
	for step, name := range stages {
		b.ReportMetric(median(steps[step]), "ms/"+name)
	}
	d.Stop()
	show(n, hidden)
}

// BenchmarkAdopt measures a restart of huskd with 100 running pods, from its exec until it lists
// all of them.
func BenchmarkAdopt(b *testing.B) {
	const pods = 100
	n, d := start(b)
	manifest := ""
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%d", i))
		manifest += "---" + fmt.Sprintf(sleeper, names[i])
	}
	n.MustHusk("run", "--wait", write(b, n, "pods.yaml", manifest))
	var took []time.Duration
	for b.Loop() {
		d.Kill()
		began := time.Now()
		d = n.Huskd()
		if len(processes(b, n)) != pods {
			b.Fatal("not all pods are running")
		}
		took = append(took, time.Since(began))
	}
	b.ReportMetric(median(took), "ms/adopt-100")
	n.MustHusk(append([]string{"rm", "-f"}, names...)...)
	d.Stop()
}

// inspected holds the parts of husk inspect's output that tests read.
type inspected struct {
	IPs             []string
	NetworkSettings struct{ SandboxKey string }
	Sandbox         struct{ Steps []inspectedStep }
	Containers      []struct {
		Pid   int
		Steps []inspectedStep
	}
}

type inspectedStep struct {
	Name        string
	Nanoseconds time.Duration
}

func inspect(t testing.TB, n *node.Node, name string) (out inspected) {
	t.Helper()
	if err := json.Unmarshal([]byte(n.MustHusk("inspect", name)), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// BenchmarkFailingProbes reports the processor time that huskd needs for a failing HTTP probe. In
// half of the pods nothing listens, in the others the server doesn't know the path.
func BenchmarkFailingProbes(b *testing.B) {
	const pods = 50
	n, d := start(b)
	manifest := ""
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%d", i))
		text := fmt.Sprintf(sleeper, names[i])
		if i%2 == 0 {
			text = strings.ReplaceAll(text, ", command: [/bin/sh, -c, 'trap \"exit 0\" TERM; while :; do sleep 1000 & wait; done']", "")
		}
		manifest += "---" + strings.TrimSuffix(text, "}\n") + ", readinessProbe: {periodSeconds: 1, httpGet: {path: /missing, port: 80}}}\n"
	}
	n.MustHusk("run", write(b, n, "pods.yaml", manifest))
	node.Eventually(b, time.Minute, func() string {
		if running := strings.Count(n.MustHusk("ps"), "Running"); running < pods {
			return fmt.Sprintf("%d pods are running", running)
		}
		return ""
	})
	const seconds = 10
	for b.Loop() {
		before := cpuTime(b, d.Pid())
		time.Sleep(seconds * time.Second)
		b.ReportMetric(float64((cpuTime(b, d.Pid())-before).Microseconds())/(seconds*pods), "cpu-µs/probe")
	}
	n.MustHusk(append([]string{"rm", "-f"}, names...)...)
	d.Stop()
}

// cpuTime returns the processor time of a process so far.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	ticks := 0
	for _, field := range fields[11:13] { // utime and stime, in hundredths of a second
		n, _ := strconv.Atoi(field)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
