package kubelet

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/test/node"
)

// testProbes makes probes of each kind fail.
func (c *cluster) testProbes() {
	c.testReadiness()
	c.testLiveness()
	c.testStartup()
}

// testReadiness makes a readiness probe fail: the pod becomes unready and isn't restarted.
func (c *cluster) testReadiness() {
	before := c.await("full", ready)
	c.run("full", "web", "rm", "/data/index.html")
	c.await("full", func(p *corev1.Pod) bool { return !ready(p) })
	c.run("full", "web", "sh", "-c", "echo version 1 > /data/index.html")
	after := c.await("full", ready)
	if restarts(after) != restarts(before) {
		c.t.Errorf("a container that wasn't ready was restarted: %s", describe(after))
	}
}

// testLiveness makes a liveness probe fail: only its container is restarted.
func (c *cluster) testLiveness() {
	before := c.await("full", ready)
	c.run("full", "web", "touch", "/tmp/sick")
	after := c.await("full", func(p *corev1.Pod) bool { return ready(p) && restarts(p) > restarts(before) })
	for i, s := range after.Status.ContainerStatuses {
		want := before.Status.ContainerStatuses[i].RestartCount
		if s.Name == "web" {
			want++
		}
		if s.RestartCount != want {
			c.t.Errorf("container %s has %d restarts, want %d", s.Name, s.RestartCount, want)
		}
	}
	if after.Status.PodIP != before.Status.PodIP {
		c.t.Errorf("the address has changed from %s to %s", before.Status.PodIP, after.Status.PodIP)
	}
	c.checkAnswers(after, "version 1\n")
}

// testStartup makes startup take long, during which there are no liveness probes; and makes it
// never succeed, so that the container is restarted.
func (c *cluster) testStartup() {
	c.create(starting)
	c.create(unstarted)
	node.Eventually(c.t, 2*time.Minute, func() string {
		if n := c.probeFailures("starting", "startup probe failed"); n < 3 {
			return fmt.Sprintf("the probe has failed %d times", n)
		}
		return ""
	})
	p := c.await("starting", func(p *corev1.Pod) bool { return len(containers(p)) == 1 })
	if s := p.Status.ContainerStatuses[0]; s.Ready || s.Started == nil || *s.Started || s.RestartCount > 0 {
		c.t.Errorf("before its startup probe succeeds, the container is %+v", s)
	}
	c.run("starting", "c", "touch", "/tmp/started")
	p = c.await("starting", ready)
	if s := p.Status.ContainerStatuses[0]; s.Started == nil || !*s.Started || s.RestartCount > 0 {
		c.t.Errorf("after its startup probe has succeeded, the container is %+v", s)
	}
	c.await("unstarted", func(p *corev1.Pod) bool { return restarts(p) > 0 && !ready(p) })
	for _, name := range []string{"starting", "unstarted"} {
		c.must(c.api.CoreV1().Pods("default").Delete(c.t.Context(), name, metav1.DeleteOptions{}))
	}
}

// probeFailures returns how often a probe has failed, by the pod's events.
func (c *cluster) probeFailures(pod, message string) (times int32) {
	c.t.Helper()
	list, err := c.api.CoreV1().Events("default").List(c.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	c.must(err)
	for _, e := range list.Items {
		if e.Reason == "Unhealthy" && strings.Contains(strings.ToLower(e.Message), message) {
			times += e.Count
		}
	}
	return times
}
