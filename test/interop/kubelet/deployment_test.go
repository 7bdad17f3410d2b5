package kubelet

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/test/node"
)

// TestDeployments tests Deployments in a complete cluster of one node, with controllers and a
// scheduler.
func TestDeployments(t *testing.T) {
	c := newCluster(t)
	c.startControllers()
	c.join()
	c.awaitNodeReady()
	c.createConfig()

	// Full and configured use many features in one pod; web has several replicas.
	c.deploy("full", full, 1)
	c.deploy("configured", configured, 1)
	c.deploy("web", web, 3)
	c.checkAnswers(&c.awaitRollout("full")[0], "version 1\n")
	c.checkServes("web", "version 1\n")
	c.awaitRollout("configured")

	c.scale("web", 6)
	c.checkServes("web", "version 1\n")
	c.testRollout()
	c.testRollback()
	c.testRecreate()
	c.scale("web", 2)
	c.checkServes("web", "version 2\n")

	c.testReboot()
	c.checkAnswers(&c.awaitRollout("full")[0], "version 2\n")
	c.checkServes("web", "version 2\n")

	for _, name := range []string{"full", "configured", "web"} {
		c.undeploy(name)
	}
	c.awaitGone()
	c.logLatencies()
	c.end()
}

// web is a pod that can have replicas. It serves the version in its template.
const web = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
spec:
  terminationGracePeriodSeconds: 10
  initContainers:
  - name: prepare
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "echo version $VERSION > /data/index.html"]
    env: [{name: VERSION, value: "1"}]
    volumeMounts: [{name: data, mountPath: /data}]
  containers:
  - name: web
    image: localhost/web:1
    imagePullPolicy: Never
    command: [sh, -c, "trap 'exit 0' TERM; httpd -f -p 80 -h /data & wait"]
    readinessProbe: {httpGet: {path: /index.html, port: 80}, periodSeconds: 1}
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, emptyDir: {}}
`

// startControllers starts the controllers and the scheduler.
func (c *cluster) startControllers() {
	c.t.Helper()
	path := c.write("admin.kubeconfig", fmt.Sprintf(kubeconfig, token))
	for name, flags := range map[string][]string{
		"kube-controller-manager": {"--service-account-private-key-file", c.Dir + "/service-accounts.key"},
		"kube-scheduler":          {},
	} {
		c.control = append(c.control, c.start(name, append(flags, "--kubeconfig", path, "--leader-elect=false", "--secure-port", "0")...))
	}
}

// deploy creates a Deployment of a pod's manifest, whose pods have its name as the label app. A
// single replica may have a host port, so it is recreated rather than rolled over.
func (c *cluster) deploy(name, manifest string, replicas int32) {
	c.t.Helper()
	var pod corev1.Pod
	c.must(yaml.UnmarshalStrict([]byte(manifest), &pod))
	labels := map[string]string{}
	maps.Copy(labels, pod.Labels)
	labels["app"] = name
	strategy := appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	if replicas != 1 {
		strategy = appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: new(intstr.FromInt32(0)), MaxSurge: new(intstr.FromInt32(2))}}
	}
	_, err := c.api.AppsV1().Deployments("default").Create(c.t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Strategy: strategy,
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	c.must(err)
}

// update changes a Deployment. It retries after conflicting changes.
func (c *cluster) update(name string, edit func(*appsv1.Deployment)) {
	c.t.Helper()
	deployments := c.api.AppsV1().Deployments("default")
	node.Eventually(c.t, time.Minute, func() string {
		d, err := deployments.Get(c.t.Context(), name, metav1.GetOptions{})
		c.must(err)
		edit(d)
		if _, err = deployments.Update(c.t.Context(), d, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
			return err.Error()
		}
		c.must(err)
		return ""
	})
}

func (c *cluster) scale(name string, replicas int32) {
	c.t.Helper()
	c.update(name, func(d *appsv1.Deployment) { d.Spec.Replicas = &replicas })
}

// pods returns an application's pods, including those that are terminating.
func (c *cluster) pods(app string) []corev1.Pod {
	c.t.Helper()
	list, err := c.api.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	c.must(err)
	return list.Items
}

// awaitRollout waits until a Deployment has exactly its number of pods, all ready and of the
// current template.
func (c *cluster) awaitRollout(name string) (pods []corev1.Pod) {
	c.t.Helper()
	node.Eventually(c.t, 4*time.Minute, func() string {
		c.checkRunning()
		d, err := c.api.AppsV1().Deployments("default").Get(c.t.Context(), name, metav1.GetOptions{})
		c.must(err)
		s, want := d.Status, *d.Spec.Replicas
		if s.ObservedGeneration < d.Generation || s.Replicas != want || s.UpdatedReplicas != want || s.AvailableReplicas != want {
			return fmt.Sprintf("deployment %s should have %d pods, its status is %+v", name, want, s)
		}
		if pods = c.pods(name); len(pods) != int(want) {
			return fmt.Sprintf("deployment %s has %d pods, not %d", name, len(pods), want)
		}
		for _, p := range pods {
			if !ready(&p) {
				return "pod " + p.Name + " is " + describe(&p)
			}
		}
		return ""
	})
	return pods
}

// checkRunning fails the test if a program of the cluster has ended by itself.
func (c *cluster) checkRunning() {
	c.t.Helper()
	c.kubelet.mustRun()
	for _, p := range c.control {
		p.mustRun()
	}
}

// checkServes checks that each pod of a Deployment serves want at an address of its own.
func (c *cluster) checkServes(name, want string) {
	c.t.Helper()
	seen := map[string]bool{}
	for _, p := range c.awaitRollout(name) {
		for _, ip := range p.Status.PodIPs {
			if seen[ip.IP] {
				c.t.Errorf("two pods have the address %s", ip.IP)
			}
			seen[ip.IP] = true
			if got, err := c.get("http://" + net.JoinHostPort(ip.IP, "80") + "/index.html"); err != nil || got != want {
				c.t.Errorf("pod %s at %s answers %q %v, want %q", p.Name, ip.IP, got, err, want)
			}
		}
	}
}

// testRollout gives the web servers a new template. Meanwhile, no fewer may be available than
// before.
func (c *cluster) testRollout() {
	c.t.Helper()
	before := c.awaitRollout("web")
	c.update("web", func(d *appsv1.Deployment) {
		d.Spec.Template.Spec.Containers[0].Image = another
		d.Spec.Template.Spec.InitContainers[0].Env[0].Value = "2"
	})
	node.Eventually(c.t, 4*time.Minute, func() string {
		c.checkRunning()
		fresh, available := 0, 0
		pods := c.pods("web")
		for _, p := range pods {
			if ready(&p) && p.DeletionTimestamp == nil {
				available++
			}
			if p.Spec.Containers[0].Image == another && ready(&p) {
				fresh++
			}
		}
		if available < len(before) {
			c.t.Fatalf("only %d of %d pods are available during the rollout", available, len(before))
		}
		if fresh < len(before) || len(pods) > fresh {
			return fmt.Sprintf("%d of %d pods are of the new template", fresh, len(pods))
		}
		return ""
	})
	c.checkServes("web", "version 2\n")
	for _, p := range c.awaitRollout("web") {
		if slices.ContainsFunc(before, func(q corev1.Pod) bool { return q.UID == p.UID }) {
			c.t.Errorf("pod %s is of the old template", p.Name)
		}
		if restarts(&p) > 0 {
			c.t.Errorf("pod %s was restarted: %s", p.Name, describe(&p))
		}
	}
}

// testRollback gives the web servers a template that can't run, and reverts it. The running pods
// must not be affected.
func (c *cluster) testRollback() {
	c.t.Helper()
	before := c.awaitRollout("web")
	c.update("web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = "localhost/none:1" })
	node.Eventually(c.t, 2*time.Minute, func() string {
		c.checkRunning()
		for _, p := range c.pods("web") {
			for _, s := range p.Status.ContainerStatuses {
				if s.State.Waiting != nil && s.State.Waiting.Reason == "ErrImageNeverPull" {
					return ""
				}
			}
		}
		return "no pod reports its missing image"
	})
	c.update("web", func(d *appsv1.Deployment) { d.Spec.Template.Spec.Containers[0].Image = another })
	after := c.awaitRollout("web")
	if got, want := instances(after), instances(before); !slices.Equal(got, want) {
		c.t.Errorf("containers %v are running, before %v were", got, want)
	}
}

// instances returns the sorted IDs of the pods' running containers.
func instances(pods []corev1.Pod) (ids []string) {
	for _, p := range pods {
		ids = append(ids, containers(&p)...)
	}
	slices.Sort(ids)
	return ids
}

// testRecreate gives the pod with a host port a new template. The new pod gets the port once the
// old one is gone.
func (c *cluster) testRecreate() {
	c.t.Helper()
	c.update("full", func(d *appsv1.Deployment) { d.Spec.Template.Labels["version"] = "2" })
	c.checkAnswers(&c.awaitRollout("full")[0], "version 2\n")
}

// undeploy deletes a Deployment, whose pods the garbage collector deletes.
func (c *cluster) undeploy(name string) {
	c.t.Helper()
	first := metav1.DeletePropagationForeground
	c.must(c.api.AppsV1().Deployments("default").Delete(c.t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &first}))
	node.Eventually(c.t, 2*time.Minute, func() string {
		c.checkRunning()
		if left := c.pods(name); len(left) > 0 {
			return fmt.Sprintf("%d pods of %s are left, the first %s", len(left), name, describe(&left[0]))
		}
		_, err := c.api.AppsV1().Deployments("default").Get(c.t.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Sprintf("deployment %s is still there: %v", name, err)
		}
		return ""
	})
}

// testReboot kills everything at once, as a power loss does, and boots the node again. The same
// pods must come back, in new containers.
func (c *cluster) testReboot() {
	c.t.Helper()
	before := map[string]corev1.Pod{}
	for _, p := range c.allPods() {
		before[p.Name] = p
	}
	boot := c.bootID()
	c.Reboot() // it kills the control plane and the kubelet too
	c.removeCgroups()
	c.boot()
	c.startControlPlane()
	c.startControllers()
	c.join()
	node.Eventually(c.t, 2*time.Minute, func() string {
		c.checkRunning()
		if now := c.bootID(); now == boot {
			return "the kubelet hasn't reported the new boot"
		}
		return ""
	})
	c.awaitNodeReady()
	for name, p := range before {
		// Until the kubelet reports them, the API server has the statuses from before the reboot.
		after := c.await(name, func(q *corev1.Pod) bool {
			return ready(q) && len(containers(q)) == len(containers(&p)) && !slices.ContainsFunc(containers(q), func(id string) bool { return slices.Contains(containers(&p), id) })
		})
		if after.UID != p.UID {
			c.t.Errorf("pod %s was recreated", name)
		}
		for i, s := range after.Status.ContainerStatuses {
			if was := p.Status.ContainerStatuses[i].RestartCount; s.RestartCount <= was {
				c.t.Errorf("container %s of %s: %d restarts, before the reboot %d", s.Name, name, s.RestartCount, was)
			}
		}
	}
	c.checkInSync()
}

func (c *cluster) bootID() string {
	c.t.Helper()
	n, err := c.api.CoreV1().Nodes().Get(c.t.Context(), "node", metav1.GetOptions{})
	c.must(err)
	return n.Status.NodeInfo.BootID
}

// allPods lists all pods.
func (c *cluster) allPods() []corev1.Pod {
	c.t.Helper()
	list, err := c.api.CoreV1().Pods("default").List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	return list.Items
}

// checkInSync waits until huskd runs exactly the API server's pods, with one monitor per container.
func (c *cluster) checkInSync() {
	c.t.Helper()
	node.Eventually(c.t, 2*time.Minute, func() string {
		c.checkRunning()
		pods := c.allPods()
		if what := c.runtime().diff(pods); what != "" {
			return what
		}
		monitors := 0
		for _, line := range c.Inventory().Processes {
			if strings.Contains(line, "/conmon --sync") {
				monitors++
			}
		}
		if want := len(instances(pods)); monitors != want {
			return fmt.Sprintf("%d monitors run for %d containers", monitors, want)
		}
		return ""
	})
}
