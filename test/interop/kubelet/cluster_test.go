package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/test/node"
)

// cluster is a machine with an API server, which is also its first node, and mostly its only one.
type cluster struct {
	*machine
	others  []*machine
	control []*process // kube-apiserver, etcd
	flags   []string   // of kube-apiserver
	ca      *authority // of clients, unless newCluster made the cluster
	config  *rest.Config
	api     kubernetes.Interface
}

// token is the admin's, nodeToken that of the node with the name node.
const (
	token     = "letmein"
	nodeToken = tokenPrefix + "node"
)

// tokenPrefix and its name are a node's token.
const tokenPrefix = "iam-"

// nodes returns all machines of the cluster.
func (c *cluster) nodes() []*machine { return append([]*machine{c.machine}, c.others...) }

// tokens writes the tokens of the admin and the nodes, and returns the path.
func (c *cluster) tokens() string {
	c.t.Helper()
	lines := token + ",admin,admin,system:masters\n"
	for _, m := range c.nodes() {
		lines += fmt.Sprintf("%s%s,system:node:%[2]s,%[2]s,system:nodes\n", tokenPrefix, m.name)
	}
	return c.write("tokens.csv", lines)
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	m := newMachine(t)
	c := &cluster{machine: m, config: &rest.Config{
		Host: "https://" + m.forward("127.0.0.1:6443"), BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 100, Burst: 100,
	}}
	key := m.write("service-accounts.key", newKey(t))
	m.writeCertificates()
	c.flags = []string{"--etcd-servers", "http://127.0.0.1:2379", "--cert-dir", m.Dir + "/apiserver",
		"--bind-address", "127.0.0.1", "--secure-port", "6443", "--advertise-address", node.Address4, "--service-cluster-ip-range", "10.96.0.0/16",
		"--token-auth-file", c.tokens(),
		"--authorization-mode", "Node,RBAC", "--enable-admission-plugins", "NodeRestriction",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--kubelet-preferred-address-types", "InternalIP", "--endpoint-reconciler-type", "none",
		"--kubelet-client-certificate", m.Dir + "/client.crt", "--kubelet-client-key", m.Dir + "/client.key"}
	var err error
	c.api, err = kubernetes.NewForConfig(c.config)
	c.must(err)
	c.startControlPlane()
	// No controllers run that would create these.
	node.Eventually(t, time.Minute, func() string {
		_, err := c.api.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
	c.createConfigMap("kube-root-ca.crt", map[string]string{"ca.crt": "unused"})
	return c
}

// startControlPlane starts etcd, with the data that it has, and the API server.
func (c *cluster) startControlPlane() {
	c.t.Helper()
	etcd := c.start("etcd", "--data-dir", c.Dir+"/etcd", "--listen-client-urls", "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379",
		"--listen-peer-urls", "http://127.0.0.1:2380", "--log-level", "error")
	server := c.start("kube-apiserver", c.flags...)
	c.control = []*process{server, etcd}
	node.Eventually(c.t, 3*time.Minute, func() string {
		server.mustRun()
		if body, err := c.api.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(c.t.Context()); err != nil {
			return fmt.Sprintf("the API server isn't ready: %v %s", err, body)
		}
		return ""
	})
}

// writeCertificates writes ca.crt, and the API server's client certificate for nodes: client.crt
// and client.key.
func (m *machine) writeCertificates() *authority {
	m.t.Helper()
	ca := m.newAuthority("ca")
	ca.client("client", "admin", "system:masters")
	return ca
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// forward forwards a port of the host's loopback, which it returns, to an address of the node.
func (m *machine) forward(to string) string {
	m.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				conn, err := m.dial(m.t.Context(), "tcp", to)
				if err != nil {
					return
				}
				defer conn.Close()
				go func() {
					_, _ = io.Copy(conn, from)
					_ = conn.(*net.TCPConn).CloseWrite()
				}()
				_, _ = io.Copy(from, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

const kubeconfig = `
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://127.0.0.1:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: %s}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

// join starts the kubelet, which registers the node.
func (c *cluster) join() {
	c.t.Helper()
	c.startKubelet("--kubeconfig", c.write("kubeconfig", fmt.Sprintf(kubeconfig, token)))
}

func (c *cluster) createConfigMap(name string, data map[string]string) {
	c.t.Helper()
	_, err := c.api.CoreV1().ConfigMaps("default").Create(c.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
	c.must(err)
}

// create creates a pod that is bound to the node.
func (c *cluster) create(manifest string) {
	c.t.Helper()
	var pod corev1.Pod
	c.must(yaml.UnmarshalStrict([]byte(manifest), &pod))
	pod.Spec.NodeName = "node"
	_, err := c.api.CoreV1().Pods("default").Create(c.t.Context(), &pod, metav1.CreateOptions{})
	c.must(err)
}

// await waits until the API server's pod of that name meets a condition.
func (c *cluster) await(name string, condition func(*corev1.Pod) bool) (pod *corev1.Pod) {
	c.t.Helper()
	node.Eventually(c.t, 2*time.Minute, func() string {
		c.kubelet.mustRun()
		var err error
		if pod, err = c.api.CoreV1().Pods("default").Get(c.t.Context(), name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		if !condition(pod) {
			return "pod " + name + " is " + describe(pod)
		}
		return ""
	})
	return pod
}

// TestCluster tests a kubelet with an API server.
func TestCluster(t *testing.T) {
	c := newCluster(t)
	c.join()
	c.awaitNodeReady()
	c.createPods()
	for _, line := range c.kubelet.logLines("Observed pod startup duration") {
		t.Log(line)
	}

	t.Run("volumes", func(t *testing.T) { c.subtest(t).testVolumes() })
	t.Run("logs", func(t *testing.T) { c.subtest(t).testLogs() })
	t.Run("exec", func(t *testing.T) { c.subtest(t).testExec() })
	t.Run("attach", func(t *testing.T) { c.subtest(t).testAttach() })
	t.Run("port-forward", func(t *testing.T) { c.subtest(t).testPortForward() })
	t.Run("probes", func(t *testing.T) { c.subtest(t).testProbes() })
	t.Run("resize", func(t *testing.T) { c.subtest(t).testResize() })
	c.huskd.Kill()
	before := c.await("full", ready)
	c.huskd = c.Huskd()
	c.checkUnchanged(before)
	t.Run("deletion", func(t *testing.T) { c.subtest(t).testDeletion() })
	c.awaitGone()
	c.logLatencies()
	c.end()
}

// end stops the cluster, and checks that nothing is left.
func (c *cluster) end() {
	c.t.Helper()
	for _, p := range c.control {
		p.kill()
	}
	for _, m := range c.nodes() {
		m.end()
	}
}

// createConfig creates the objects that the pod configured refers to.
func (c *cluster) createConfig() {
	c.t.Helper()
	c.createConfigMap("settings", map[string]string{"colour": "green"})
	_, err := c.api.CoreV1().Secrets("default").Create(c.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "password"}, StringData: map[string]string{"password": "opensesame"},
	}, metav1.CreateOptions{})
	c.must(err)
}

// createPods creates a pod of each kind.
func (c *cluster) createPods() {
	c.t.Helper()
	c.createConfig()
	for _, manifest := range []string{full, host, configured} {
		c.create(manifest)
	}
	c.checkAnswers(c.await("full", ready), "version 1\n")
	if p := c.await("host", ready); p.Status.PodIP != node.Address4 {
		c.t.Errorf("the pod on the node's network has the address %s", p.Status.PodIP)
	}
	if got, err := c.get("http://" + node.Address4 + ":8090/hostname"); err != nil {
		c.t.Errorf("the pod on the node's network answers %q, %v", got, err)
	}
	c.await("configured", ready)
}

// subtest returns the cluster for a subtest.
func (c *cluster) subtest(t *testing.T) *cluster {
	m := *c.machine
	m.t = t
	return &cluster{machine: &m, config: c.config, api: c.api}
}

// awaitNodeReady waits until all nodes are ready, and checks what they report about huskd.
func (c *cluster) awaitNodeReady() {
	c.t.Helper()
	for _, m := range c.nodes() {
		c.awaitReady(m)
	}
}

func (c *cluster) awaitReady(m *machine) {
	c.t.Helper()
	var n *corev1.Node
	node.Eventually(c.t, 2*time.Minute, func() string {
		m.kubelet.mustRun()
		var err error
		if n, err = c.api.CoreV1().Nodes().Get(c.t.Context(), m.name, metav1.GetOptions{}); err != nil {
			return err.Error()
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == corev1.NodeReady {
				if cond.Status == corev1.ConditionTrue {
					return ""
				}
				return cond.Message
			}
		}
		return "the node has no condition"
	})
	if v := n.Status.NodeInfo.ContainerRuntimeVersion; !strings.HasPrefix(v, "husk://") || strings.HasSuffix(v, "Unknown") {
		c.t.Errorf("the node's runtime is %s", v)
	}
	if len(n.Status.RuntimeHandlers) == 0 {
		c.t.Error("the node has no runtime handlers")
	}
	if len(n.Status.Images) == 0 {
		c.t.Error("the node has no images")
	}
}

func (c *cluster) testVolumes() {
	for path, want := range map[string]string{
		"/settings/colour":  "green",
		"/secret/password":  "opensesame",
		"/projected/colour": "green",
		"/projected/name":   "configured",
	} {
		if got, _ := c.exec("configured", "web", nil, "cat", path); got != want {
			c.t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got, _ := c.exec("configured", "web", nil, "sh", "-c", "echo $COLOUR $PASSWORD"); got != "green opensesame\n" {
		c.t.Errorf("environment: %q", got)
	}
	for _, path := range []string{"/projected/token", "/var/run/secrets/kubernetes.io/serviceaccount/token"} {
		mounted, _ := c.exec("configured", "web", nil, "cat", path)
		review, err := c.api.AuthenticationV1().TokenReviews().Create(c.t.Context(), &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: mounted}}, metav1.CreateOptions{})
		c.must(err)
		if review.Status.User.Username != "system:serviceaccount:default:default" {
			c.t.Errorf("the token in %s belongs to %+v", path, review.Status)
		}
	}
	if got, _ := c.exec("configured", "web", nil, "stat", "-L", "-c", "%a", "/secret/password"); got != "400\n" {
		c.t.Errorf("the secret's mode is %s", got)
	}
	// A change of the config map reaches the running pod.
	settings, err := c.api.CoreV1().ConfigMaps("default").Get(c.t.Context(), "settings", metav1.GetOptions{})
	c.must(err)
	settings.Data["colour"] = "blue"
	_, err = c.api.CoreV1().ConfigMaps("default").Update(c.t.Context(), settings, metav1.UpdateOptions{})
	c.must(err)
	node.Eventually(c.t, 3*time.Minute, func() string {
		if got := c.run("configured", "web", "cat", "/settings/colour"); got != "blue" {
			return "colour is " + got
		}
		return ""
	})
}

func (c *cluster) testLogs() {
	for container, want := range map[string]string{"prepare": "prepared\n", "web": "serving\n"} {
		got, err := c.api.CoreV1().Pods("default").GetLogs("full", &corev1.PodLogOptions{Container: container}).DoRaw(c.t.Context())
		if err != nil || string(got) != want {
			c.t.Errorf("log of %s: %q %v", container, got, err)
		}
	}
}

// execURL returns the URL by which the API server runs a command.
func (c *cluster) execURL(pod string, options *corev1.PodExecOptions) *url.URL {
	return c.api.CoreV1().RESTClient().Get().Resource("pods").Namespace("default").Name(pod).SubResource("exec").VersionedParams(options, scheme.ParameterCodec).URL()
}

// run runs a command in a container that may end meanwhile.
func (c *cluster) run(pod, container string, command ...string) string {
	c.t.Helper()
	u := c.execURL(pod, &corev1.PodExecOptions{Container: container, Command: command, Stdout: true})
	e, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	c.must(err)
	var out bytes.Buffer
	if err := e.StreamWithContext(c.t.Context(), remotecommand.StreamOptions{Stdout: &out}); err != nil {
		c.t.Logf("%v: %v", command, err)
	}
	return out.String()
}

// exec runs a command through the API server, once by each protocol.
func (c *cluster) exec(pod, container string, stdin []byte, command ...string) (stdout string, err error) {
	c.t.Helper()
	u := c.execURL(pod, &corev1.PodExecOptions{Container: container, Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true})
	byWebSocket, err := remotecommand.NewWebSocketExecutor(c.config, http.MethodGet, u.String())
	c.must(err)
	bySPDY, err := remotecommand.NewSPDYExecutor(c.config, http.MethodPost, u)
	c.must(err)
	for i, e := range []remotecommand.Executor{byWebSocket, bySPDY} {
		var out, errs bytes.Buffer
		streams := remotecommand.StreamOptions{Stdout: &out, Stderr: &errs}
		if stdin != nil {
			streams.Stdin = bytes.NewReader(stdin)
		}
		err = e.StreamWithContext(c.t.Context(), streams)
		if i > 0 && out.String() != stdout {
			c.t.Errorf("%v: %q by WebSocket, %q by SPDY", command, stdout, out.String())
		}
		stdout = out.String()
		if errs.Len() > 0 {
			c.t.Logf("%v: %s", command, errs.String())
		}
	}
	return stdout, err
}

func (c *cluster) testExec() {
	megabyte := bytes.Repeat([]byte("0123456789abcde\n"), 1<<16)
	if got, err := c.exec("full", "web", megabyte, "cat"); err != nil || got != string(megabyte) {
		c.t.Errorf("cat returns %d of %d bytes: %v", len(got), len(megabyte), err)
	}
	_, err := c.exec("full", "web", nil, "sh", "-c", "exit 7")
	var code interface{ ExitStatus() int }
	if !errors.As(err, &code) || code.ExitStatus() != 7 {
		c.t.Errorf("exit 7: %v", err)
	}
}

// testPortForward forwards a port through the API server by both protocols.
func (c *cluster) testPortForward() {
	u := c.api.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("full").SubResource("portforward").URL()
	byWebSocket, err := portforward.NewSPDYOverWebsocketDialer(u, c.config)
	c.must(err)
	transport, upgrader, err := spdy.RoundTripperFor(c.config)
	c.must(err)
	bySPDY := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	for _, dialer := range []httpstream.Dialer{byWebSocket, bySPDY} {
		stop, isReady := make(chan struct{}), make(chan struct{})
		f, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, isReady, io.Discard, io.Discard)
		c.must(err)
		done := make(chan error, 1)
		go func() { done <- f.ForwardPorts() }()
		select {
		case <-isReady:
		case err := <-done:
			c.t.Fatal(err)
		}
		ports, err := f.GetPorts()
		c.must(err)
		answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/index.html", ports[0].Local))
		c.must(err)
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || string(body) != "version 1\n" {
			c.t.Errorf("%T: %q %v", dialer, body, err)
		}
		close(stop)
		if err := <-done; err != nil {
			c.t.Errorf("%T: %v", dialer, err)
		}
	}
}

// testResize gives containers more memory and less CPU: one that keeps running, and one that has to
// be restarted for it.
func (c *cluster) testResize() {
	c.create(simple("restarting", "", `command: [sleep, "1000"], resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], resources: {requests: {cpu: 50m, memory: 16Mi}, limits: {cpu: 500m, memory: 64Mi}}`))
	memory, cpu := resource.MustParse("96Mi"), resource.MustParse("250m")
	for name, restarted := range map[string]int32{"full": 0, "restarting": 1} {
		before := c.await(name, ready)
		pod := before.DeepCopy()
		resources := &pod.Spec.Containers[0].Resources
		resources.Limits[corev1.ResourceMemory], resources.Limits[corev1.ResourceCPU] = memory, cpu
		_, err := c.api.CoreV1().Pods("default").UpdateResize(c.t.Context(), name, pod, metav1.UpdateOptions{})
		c.must(err)
		after := c.await(name, func(p *corev1.Pod) bool {
			i := slices.IndexFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool { return s.Name == pod.Spec.Containers[0].Name })
			r := p.Status.ContainerStatuses[i].Resources
			return ready(p) && r != nil && r.Limits.Memory().Equal(memory) && r.Limits.Cpu().Equal(cpu) && restarts(p) >= restarts(before)+restarted
		})
		if got := restarts(after) - restarts(before); got != restarted {
			c.t.Errorf("pod %s was restarted %d times, not %d", name, got, restarted)
		}
		limits := "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes cpu/cpu.cfs_quota_us memory.max cpu.max 2>/dev/null"
		got, _ := c.exec(name, pod.Spec.Containers[0].Name, nil, "sh", "-c", limits)
		if want := fmt.Sprintf("%d\n25000", memory.Value()); !strings.HasPrefix(got, want) {
			c.t.Errorf("the limits of a container of %s are %q", name, got)
		}
	}
}

// testDeletion deletes all pods, and checks how their containers ended.
func (c *cluster) testDeletion() {
	c.must(os.Mkdir(c.Dir+"/steps", 0o755))
	c.create(fmt.Sprintf(graceful, c.Dir+"/steps"))
	c.create(deaf)
	c.await("graceful", ready)
	c.await("deaf", ready)
	pods := c.api.CoreV1().Pods("default")
	list, err := pods.List(c.t.Context(), metav1.ListOptions{})
	c.must(err)
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Minute)
	defer cancel()
	changes, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	c.must(err)
	defer changes.Stop()
	c.must(pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	last := map[string]*corev1.Pod{}
	for deleted := 0; deleted < len(list.Items); {
		change, ok := <-changes.ResultChan()
		if !ok {
			c.t.Fatalf("the watch ended; of %d pods, %d are deleted", len(list.Items), deleted)
		}
		p, isPod := change.Object.(*corev1.Pod)
		switch {
		case !isPod:
			c.t.Fatalf("%+v", change)
		case change.Type == watch.Deleted:
			deleted++
		case p.Name == "graceful" && p.DeletionTimestamp != nil && p.Status.ContainerStatuses[0].State.Running != nil && !ready(p):
			c.t.Errorf("graceful isn't ready while it ends: %s", describe(p))
		}
		last[p.Name] = p
	}
	if ended := last["configured"].Status.ContainerStatuses[0].State.Terminated; ended == nil || ended.ExitCode != 0 {
		c.t.Errorf("the container that handles SIGTERM ended with %+v", ended)
	}
	steps, err := os.ReadFile(c.Dir + "/steps/log")
	if want := "started\npreStop begins\npreStop ends\nSIGTERM\nSIGTERM to the sidecar\n"; err != nil || string(steps) != want {
		c.t.Errorf("the containers of graceful logged %q, %v, want %q", steps, err, want)
	}
	// The API server rounds times to seconds.
	ended, until := last["deaf"].Status.ContainerStatuses[0].State.Terminated, last["deaf"].DeletionTimestamp
	if ended == nil || ended.ExitCode != 137 || ended.FinishedAt.Time.Before(until.Add(-time.Second)) {
		c.t.Errorf("the container that ignores SIGTERM had until %v and ended with %+v", until, ended)
	}
}
