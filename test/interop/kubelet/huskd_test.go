package kubelet

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/test/node"
)

// huskNode is a cluster whose node is huskd itself, without a kubelet.
type huskNode struct{ *cluster }

// startNode starts huskd as the node.
func (o huskNode) startNode() {
	o.t.Helper()
	o.huskd = o.Huskd(node.Flags("--kubeconfig", o.write("kubeconfig", fmt.Sprintf(kubeconfig, nodeToken)), "--node-name", "node",
		"--node-client-ca-file", o.Dir+"/ca.crt", "--node-labels", "zone=here", "--node-taints", "dedicated=tests:NoSchedule",
		"--manifests", o.Dir+"/manifests", "--cluster-dns", "10.96.0.10",
		"--eviction-hard", "nodefs.available=0%,imagefs.available=0%")) // the host's disk may be nearly full
}

// subtest returns o for a subtest.
func (o huskNode) subtest(t *testing.T) huskNode { return huskNode{o.cluster.subtest(t)} }

// end stops everything, and checks that huskd leaves nothing.
func (o huskNode) end() {
	o.t.Helper()
	for _, p := range o.control {
		p.kill()
	}
	for _, m := range o.nodes() {
		m.huskd.Stop()
		m.Must("umount", "/var/log")
		m.NothingLeft()
	}
}

// list returns the API server's pods by name, without mirrors.
func (o huskNode) list() map[string]*corev1.Pod {
	o.t.Helper()
	list, err := o.api.CoreV1().Pods("default").List(o.t.Context(), metav1.ListOptions{})
	o.must(err)
	out := map[string]*corev1.Pod{}
	for _, p := range list.Items {
		if p.Annotations[corev1.MirrorPodAnnotationKey] == "" {
			out[p.Name] = &p
		}
	}
	return out
}

// TestHuskd tests huskd as the node of a cluster.
func TestHuskd(t *testing.T) {
	o := huskNode{newCluster(t)}
	o.huskd.Stop()
	o.Must("mkdir", "-p", o.Dir+"/manifests")
	o.startNode()
	o.awaitNodeReady()
	o.checkRegistration()
	o.createPods()

	t.Run("volumes", func(t *testing.T) { o.subtest(t).testVolumes() })
	t.Run("logs", func(t *testing.T) { o.subtest(t).testLogs() })
	t.Run("exec", func(t *testing.T) { o.subtest(t).testExec() })
	t.Run("attach", func(t *testing.T) { o.subtest(t).testAttach() })
	t.Run("port-forward", func(t *testing.T) { o.subtest(t).testPortForward() })
	t.Run("authentication", func(t *testing.T) { o.subtest(t).testAuthentication() })
	t.Run("probes", func(t *testing.T) { o.subtest(t).testProbes() })
	t.Run("resize", func(t *testing.T) { o.subtest(t).testResize() })
	t.Run("deferred resize", func(t *testing.T) { o.huskd = o.subtest(t).testDeferredResize() })
	t.Run("eviction", func(t *testing.T) { o.subtest(t).testEviction() })
	t.Run("usage", func(t *testing.T) { o.subtest(t).testUsage() })
	t.Run("debug", func(t *testing.T) { o.huskd = o.subtest(t).testDebug() })
	t.Run("statuses", func(t *testing.T) { o.subtest(t).testStatuses() })
	t.Run("rejections", func(t *testing.T) { o.subtest(t).testRejections() })
	t.Run("rejections at once", func(t *testing.T) { o.subtest(t).testRejectedAtOnce() })
	t.Run("refusals", func(t *testing.T) { o.huskd = o.subtest(t).testRefusals() })
	t.Run("mirror", func(t *testing.T) { o.subtest(t).testMirror() })
	t.Run("deletion", func(t *testing.T) { o.subtest(t).testDeletion() })
	o.awaitGone()
	o.end()
}

// checkRegistration checks how the node has registered itself.
func (o huskNode) checkRegistration() {
	n, err := o.api.CoreV1().Nodes().Get(o.t.Context(), "node", metav1.GetOptions{})
	o.must(err)
	if n.Labels["zone"] != "here" || n.Labels[corev1.LabelOSStable] != "linux" {
		o.t.Errorf("labels %v", n.Labels)
	}
	if !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.ToString() == "dedicated=tests:NoSchedule" }) {
		o.t.Errorf("taints %v", n.Spec.Taints)
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods, corev1.ResourceEphemeralStorage} {
		if q := n.Status.Allocatable[name]; q.IsZero() {
			o.t.Errorf("the node has no allocatable %s", name)
		}
	}
	var addresses []string
	for _, a := range n.Status.Addresses {
		addresses = append(addresses, a.Address)
	}
	if !slices.Contains(addresses, node.Address4) || !slices.Contains(addresses, node.Address6) {
		o.t.Errorf("addresses %v", addresses)
	}
	node.Eventually(o.t, time.Minute, func() string {
		lease, err := o.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(o.t.Context(), "node", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if time.Since(lease.Spec.RenewTime.Time) > 40*time.Second {
			return "the lease has expired"
		}
		return ""
	})
}

// testAuthentication checks who gets access to the kubelet API.
func (o huskNode) testAuthentication() {
	for _, c := range []struct {
		token string
		want  int
	}{{"", http.StatusUnauthorized}, {"wrong", http.StatusUnauthorized}, {nodeToken, http.StatusForbidden}, {token, http.StatusOK}} {
		r, err := http.NewRequestWithContext(o.t.Context(), http.MethodGet, "https://127.0.0.1:10250/pods", nil)
		o.must(err)
		if c.token != "" {
			r.Header.Set("Authorization", "Bearer "+c.token)
		}
		answer, err := o.client.Do(r)
		o.must(err)
		_ = answer.Body.Close()
		if answer.StatusCode != c.want {
			o.t.Errorf("token %q: %s, want %d", c.token, answer.Status, c.want)
		}
	}
	conn, err := o.dial(o.t.Context(), "tcp", "127.0.0.1:10250")
	o.must(err)
	defer conn.Close()
	if err := tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}).HandshakeContext(o.t.Context()); err == nil {
		o.t.Error("TLS 1.1 is accepted")
	}
}

// simple returns the manifest of a pod with one container.
func simple(name, spec, container string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, namespace: default}\nspec:\n  terminationGracePeriodSeconds: 1\n  %s\n  containers:\n  - {name: c, image: localhost/web:1, imagePullPolicy: Never, %s}\n", name, spec, container)
}

// testStatuses checks the statuses of pods that fail in different ways.
func (o huskNode) testStatuses() {
	o.create(simple("crash", "", `command: [sh, -c, "exit 3"]`))
	o.create(simple("done", "restartPolicy: OnFailure", `command: ["true"]`))
	o.create(simple("failed", "restartPolicy: Never", `command: [sh, -c, "exit 4"]`))
	o.create(simple("late", "activeDeadlineSeconds: 1", `command: [sleep, "1000"]`))
	o.create(strings.Replace(simple("absent", "", "command: [sleep]"), "localhost/web:1", "localhost/none:1", 1))
	o.create(simple("unset", "", "envFrom: [{configMapRef: {name: nowhere}}], command: [sleep, '1000']"))
	state := func(p *corev1.Pod) corev1.ContainerState {
		if len(p.Status.ContainerStatuses) == 0 {
			return corev1.ContainerState{}
		}
		return p.Status.ContainerStatuses[0].State
	}
	waits := func(reason string) func(*corev1.Pod) bool {
		return func(p *corev1.Pod) bool { return state(p).Waiting != nil && state(p).Waiting.Reason == reason }
	}
	crash := o.await("crash", waits("CrashLoopBackOff"))
	if last := crash.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" || restarts(crash) == 0 {
		o.t.Errorf("crash: %s", describe(crash))
	}
	done := o.await("done", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if ended := state(done).Terminated; ended == nil || ended.Reason != "Completed" {
		o.t.Errorf("done: %s", describe(done))
	}
	failed := o.await("failed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if ended := state(failed).Terminated; ended == nil || ended.ExitCode != 4 || failed.Status.PodIP == "" {
		o.t.Errorf("failed: %s", describe(failed))
	}
	o.await("late", func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodFailed && p.Status.Reason == "DeadlineExceeded"
	})
	o.await("absent", waits("ErrImageNeverPull"))
	o.await("unset", waits("CreateContainerConfigError"))
	o.createConfigMap("nowhere", map[string]string{"A": "1"})
	unset := o.await("unset", ready)
	if unset.Status.QOSClass != corev1.PodQOSBestEffort || unset.Status.HostIP != node.Address4 || unset.Status.ObservedGeneration != unset.Generation {
		o.t.Errorf("unset: %s", describe(unset))
	}
	if got, _ := o.exec("unset", "c", nil, "sh", "-c", "echo $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT; cat /etc/resolv.conf"); !strings.HasPrefix(got, "10.96.0.1:443\n") ||
		!strings.Contains(got, "nameserver 10.96.0.10\n") || !strings.Contains(got, "default.svc.cluster.local") {
		o.t.Errorf("the environment and resolv.conf in the container are\n%s", got)
	}
	o.awaitWarning(crash, "BackOff")
}

// testRejections creates pods that the node must reject.
func (o huskNode) testRejections() {
	for name, c := range map[string]struct{ spec, container, reason string }{
		"greedy":    {"", `command: [sleep], resources: {requests: {cpu: "1000"}}`, "OutOfcpu"},
		"elsewhere": {"nodeSelector: {zone: there}", "command: [sleep]", "NodeAffinity"},
		"taken":     {"", "command: [sleep], ports: [{containerPort: 80, hostPort: 8080}]", "NodePorts"},
		"windows":   {"os: {name: windows}", "command: [sleep]", "PodOSNotSupported"},
		"enormous":  {"", `command: [sleep], resources: {requests: {cpu: "1000000000000"}}`, "OutOfcpu"},
		"unsafe":    {"securityContext: {sysctls: [{name: kernel.msgmax, value: '8192'}]}", "command: [sleep]", "SysctlForbidden"},
	} {
		o.create(simple(name, c.spec, c.container))
		p := o.await(name, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != c.reason || p.Status.Message == "" {
			o.t.Errorf("%s: %s", name, describe(p))
		}
		o.awaitWarning(p, c.reason)
	}
}

// awaitWarning waits for a Warning event about a pod.
func (o huskNode) awaitWarning(p *corev1.Pod, reason string) {
	o.t.Helper()
	node.Eventually(o.t, time.Minute, func() string {
		list, err := o.api.CoreV1().Events("default").List(o.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
		if err != nil {
			return err.Error()
		}
		if !slices.ContainsFunc(list.Items, func(e corev1.Event) bool { return e.Type == corev1.EventTypeWarning && e.Reason == reason }) {
			return fmt.Sprintf("the events of %s are %+v", p.Name, list.Items)
		}
		return ""
	})
}

// testMirror declares a pod in a file, and checks its mirror on the API server.
func (o huskNode) testMirror() {
	path := o.write("manifests/static.yaml", simple("static", "", "command: [sleep, '1000'], envFrom: [{configMapRef: {name: x, optional: true}}]"))
	p := o.await("static-node", ready)
	if p.Annotations[corev1.MirrorPodAnnotationKey] == "" || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].Kind != "Node" {
		o.t.Errorf("the mirror is %+v", p.ObjectMeta)
	}
	if got, _ := o.exec("static-node", "c", nil, "echo", "hello"); got != "hello\n" {
		o.t.Errorf("exec by the mirror's name: %q", got)
	}
	// A mirror that is deleted comes back, and the pod is not affected.
	o.must(o.api.CoreV1().Pods("default").Delete(o.t.Context(), "static-node", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}))
	again := o.await("static-node", func(q *corev1.Pod) bool { return q.UID != p.UID && ready(q) })
	if !slices.Equal(containers(again), containers(p)) {
		o.t.Error("the pod was recreated with its mirror")
	}
	o.Must("rm", path)
	o.awaitDeleted("static-node", again.UID)
}

// awaitDeleted waits until the API server no longer has a pod.
func (o huskNode) awaitDeleted(name string, uid types.UID) {
	o.t.Helper()
	node.Eventually(o.t, time.Minute, func() string {
		p, err := o.api.CoreV1().Pods("default").Get(o.t.Context(), name, metav1.GetOptions{})
		if err == nil && p.UID == uid {
			return "pod " + name + " is " + describe(p)
		}
		return ""
	})
}

const (
	many    = 50
	changed = 10 // pods for each kind of change
)

// TestHuskdManyPods runs 50 pods through kills of huskd, an outage of the API server and a reboot.
func TestHuskdManyPods(t *testing.T) {
	o := huskNode{newCluster(t)}
	o.huskd.Stop()
	o.Must("mkdir", "-p", o.Dir+"/manifests")
	o.startNode()
	o.awaitNodeReady()
	pod := func(i int) string { return fmt.Sprintf("pod-%02d", i) }
	began := time.Now()
	for i := range many {
		o.create(simple(pod(i), "", `command: [sh, -c, "trap 'exit 0' TERM; while :; do sleep 1000 & wait; done"], resources: {limits: {memory: 32Mi}}`))
		if i == many/2 {
			o.huskd.Kill()
			o.startNode()
		}
	}
	before := o.allReady(many)
	t.Logf("%d pods ready %v after the first was created, huskd killed in between", many, time.Since(began).Round(time.Millisecond))
	o.checkInSync(before)

	// Some pods are resized, some get another image, some are deleted, while huskd is killed. The
	// others must not be affected.
	pods := o.api.CoreV1().Pods("default")
	for i := range changed {
		p := before[pod(i)].DeepCopy()
		p.Spec.Containers[0].Resources.Limits[corev1.ResourceMemory] = resource.MustParse("48Mi")
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceMemory] = resource.MustParse("48Mi")
		_, err := pods.UpdateResize(t.Context(), p.Name, p, metav1.UpdateOptions{})
		o.must(err)
		_, err = pods.Patch(t.Context(), pod(changed+i), types.StrategicMergePatchType, []byte(`{"metadata":{"labels":{"new":"yes"}},"spec":{"containers":[{"name":"c","image":"`+another+`"}]}}`), metav1.PatchOptions{})
		o.must(err)
		o.must(pods.Delete(t.Context(), pod(2*changed+i), metav1.DeleteOptions{}))
		if i == changed/2 {
			o.huskd.Kill()
			o.startNode()
		}
	}
	for i := range changed {
		o.await(pod(i), func(p *corev1.Pod) bool {
			r := p.Status.ContainerStatuses[0].Resources
			return ready(p) && restarts(p) == 0 && r != nil && r.Limits.Memory().String() == "48Mi"
		})
		o.await(pod(changed+i), func(p *corev1.Pod) bool {
			return ready(p) && restarts(p) == 1 && p.Status.ContainerStatuses[0].Image == another
		})
		o.awaitDeleted(pod(2*changed+i), before[pod(2*changed+i)].UID)
	}
	after := o.allReady(many - changed)
	for i := 3 * changed; i < many; i++ {
		if got, want := containers(after[pod(i)]), containers(before[pod(i)]); !slices.Equal(got, want) {
			t.Errorf("%s: containers %v are running, before %v were", pod(i), got, want)
		}
	}
	o.checkInSync(after)

	// Without an API server, the pods keep running, also when huskd is killed, and a container that
	// ends is restarted.
	for _, p := range o.control {
		p.kill()
	}
	o.huskd.Kill()
	o.startNode()
	o.Husk("exec", pod(0), "--", "kill", "1")
	node.Eventually(t, time.Minute, func() string {
		if running := strings.Count(o.MustHusk("ps"), "1/1"); running != many-changed {
			return fmt.Sprintf("%d pods run:\n%s", running, o.MustHusk("ps"))
		}
		return ""
	})
	o.startControlPlane()
	o.await(pod(0), func(p *corev1.Pod) bool { return ready(p) && restarts(p) == 1 })
	last := o.allReady(many - changed)
	for name, p := range last {
		if got, want := containers(p), containers(after[name]); name != pod(0) && !slices.Equal(got, want) {
			t.Errorf("%s: containers %v are running, before the outage %v were", name, got, want)
		}
	}

	// After a reboot, the pods come back before the API server does.
	for _, p := range o.control {
		p.kill()
	}
	o.Reboot()
	o.Must("mount", "-t", "tmpfs", "log", "/var/log")
	o.startNode()
	node.Eventually(t, 2*time.Minute, func() string {
		if running := strings.Count(o.MustHusk("ps"), "1/1"); running != many-changed {
			return fmt.Sprintf("%d pods run:\n%s", running, o.MustHusk("ps"))
		}
		return ""
	})
	o.startControlPlane()
	for name, p := range last { // at first the API server has the statuses from before the reboot
		o.await(name, func(q *corev1.Pod) bool { return ready(q) && !slices.Equal(containers(q), containers(p)) })
	}
	o.checkInSync(o.allReady(many - changed))

	o.must(pods.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	node.Eventually(t, 2*time.Minute, func() string {
		if left := o.list(); len(left) > 0 {
			return fmt.Sprintf("%d pods are left", len(left))
		}
		return ""
	})
	o.end()
}

// allReady waits until there are n pods, all of them ready.
func (o huskNode) allReady(n int) (pods map[string]*corev1.Pod) {
	o.t.Helper()
	node.Eventually(o.t, 3*time.Minute, func() string {
		pods = o.list()
		if len(pods) != n {
			return fmt.Sprintf("there are %d pods, not %d", len(pods), n)
		}
		for name, p := range pods {
			if !ready(p) {
				return "pod " + name + " is " + describe(p)
			}
		}
		return ""
	})
	return pods
}

// checkInSync checks that huskd has exactly the API server's pods, each with an address of its own,
// and no other containers.
func (o huskNode) checkInSync(pods map[string]*corev1.Pod) {
	o.t.Helper()
	rows := strings.Split(strings.TrimSpace(o.MustHusk("ps", "-a")), "\n")[1:]
	if len(rows) != len(pods) {
		o.t.Errorf("huskd has %d pods, the API server %d", len(rows), len(pods))
	}
	addresses := map[string]string{}
	for name, p := range pods {
		if other := addresses[p.Status.PodIP]; other != "" {
			o.t.Errorf("%s and %s have the address %s", name, other, p.Status.PodIP)
		}
		addresses[p.Status.PodIP] = name
	}
	running := 0
	for _, line := range o.Inventory().Processes {
		if strings.Contains(line, "/conmon --sync") {
			running++
		}
	}
	if running != len(pods) {
		o.t.Errorf("%d containers run for %d pods", running, len(pods))
	}
}
