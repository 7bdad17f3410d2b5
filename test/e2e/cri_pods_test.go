package e2e

import (
	"errors"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestCRINode tests the calls about the runtime as a whole.
func TestCRINode(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	version, err := c.Version(c.ctx, &runtimeapi.VersionRequest{Version: "v1"})
	c.must(err)
	if version.GetRuntimeName() != "husk" || version.GetRuntimeApiVersion() != "v1" || version.GetVersion() != "0.1.0" {
		t.Errorf("version: %v", version)
	}
	st, err := c.Status(c.ctx, &runtimeapi.StatusRequest{Verbose: true})
	c.must(err)
	for _, kind := range []string{runtimeapi.RuntimeReady, runtimeapi.NetworkReady} {
		found := false
		for _, condition := range st.GetStatus().GetConditions() {
			found = found || condition.GetType() == kind && condition.GetStatus()
		}
		if !found {
			t.Errorf("condition %s is not true: %v", kind, st.GetStatus())
		}
	}
	if len(st.GetRuntimeHandlers()) < 2 || st.GetRuntimeHandlers()[0].GetName() != "" || !strings.Contains(st.GetInfo()["config"], `"stateDir"`) {
		t.Errorf("status: %v", st)
	}
	c.Must("sysctl", "-qw", "net.ipv4.ip_forward=0")
	st, err = c.Status(c.ctx, &runtimeapi.StatusRequest{})
	c.must(err)
	if n := st.GetStatus().GetConditions()[1]; n.GetStatus() || !strings.Contains(n.GetMessage(), "sysctl -w net.ipv4.ip_forward=1") {
		t.Errorf("without forwarding: %v", n)
	}
	c.Must("sysctl", "-qw", "net.ipv4.ip_forward=1")
	config, err := c.RuntimeConfig(c.ctx, &runtimeapi.RuntimeConfigRequest{})
	c.must(err)
	if config.GetLinux().GetCgroupDriver() != runtimeapi.CgroupDriver_CGROUPFS {
		t.Errorf("runtime config: %v", config)
	}
	_, err = c.UpdateRuntimeConfig(c.ctx, podCIDR("10.244.1.0/24,fd00::/64"))
	c.must(err)
	_, err = c.UpdateRuntimeConfig(c.ctx, podCIDR("10.244.1.0/240"))
	fails(t, err, codes.InvalidArgument, "10.244.1.0/240")
	_, err = c.CheckpointContainer(c.ctx, &runtimeapi.CheckpointContainerRequest{ContainerId: "x"})
	fails(t, err, codes.NotFound, "not found")
	_, err = c.CheckpointPod(c.ctx, &runtimeapi.CheckpointPodRequest{})
	fails(t, err, codes.Unimplemented, "checkpoint each container")
	c.end()
}

func podCIDR(cidr string) *runtimeapi.UpdateRuntimeConfigRequest {
	return &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}}}
}

// TestCRIPods tests the lifecycle of sandboxes.
func TestCRIPods(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	config := c.podConfig()
	id := c.runPod(config)

	c.subtest(t, "status", func(t *testing.T, c *criNode) { podStatus(t, c, id, config) })
	c.subtest(t, "equal requests share one sandbox", func(t *testing.T, c *criNode) {
		if again := c.runPod(config); again != id {
			t.Errorf("the same request returns %s the second time, %s the first", again, id)
		}
		other := c.podConfig()
		var ids [8]string
		var all sync.WaitGroup
		for i := range ids {
			all.Go(func() {
				r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: other})
				if err != nil {
					t.Error(err)
				}
				ids[i] = r.GetPodSandboxId()
			})
		}
		all.Wait()
		for _, got := range ids {
			if got != ids[0] || got == "" {
				t.Errorf("eight concurrent equal requests return %v", ids)
			}
		}
	})
	c.subtest(t, "filters", func(t *testing.T, c *criNode) { podFilters(t, c, id, config) })
	c.subtest(t, "stop and remove repeatedly", func(t *testing.T, c *criNode) {
		for range 2 {
			_, err := c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			c.must(err)
		}
		st, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		c.must(err)
		if st.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
			t.Errorf("the stopped sandbox is in state %s", st.GetStatus().GetState())
		}
		for range 2 {
			_, err := c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
			c.must(err)
		}
		_, err = c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id})
		fails(t, err, codes.NotFound, "not found")
		_, err = c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
		c.must(err)
	})
	c.subtest(t, "the agent's pods are not listed", agentPodsHidden)
	c.end()
}

func podStatus(t *testing.T, c *criNode, id string, config *runtimeapi.PodSandboxConfig) {
	r, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: id[:10], Verbose: true})
	c.must(err)
	st := r.GetStatus()
	if st.GetId() != id || st.GetState() != runtimeapi.PodSandboxState_SANDBOX_READY || st.GetCreatedAt() == 0 || r.GetTimestamp() == 0 {
		t.Errorf("status: %v", r)
	}
	if st.GetMetadata().String() != config.GetMetadata().String() || st.GetAnnotations()["note"] != config.GetAnnotations()["note"] || st.GetLabels()["suite"] != "cri" {
		t.Errorf("the status differs from the request: %v", st)
	}
	if mode := st.GetLinux().GetNamespaces().GetOptions().GetPid(); mode != runtimeapi.NamespaceMode_CONTAINER {
		t.Errorf("pid namespace: %s", mode)
	}
	ip4, err := netip.ParseAddr(st.GetNetwork().GetIp())
	if err != nil || !ip4.Is4() || len(st.GetNetwork().GetAdditionalIps()) != 1 {
		t.Errorf("network: %v", st.GetNetwork())
	}
	for _, word := range []string{`"sandboxKey":"/run/netns/`, `"SandboxKey":"/run/netns/`, `"networkSettings"`, `"pid":0`,
		`{"type":"network","path":"/run/netns/`, `"processStatus":"running"`, `"cniResult":{"Interfaces":{"eth0":`} {
		if !strings.Contains(r.GetInfo()["info"], word) {
			t.Errorf("info has no %s: %s", word, r.GetInfo()["info"])
		}
	}
}

func podFilters(t *testing.T, c *criNode, id string, config *runtimeapi.PodSandboxConfig) {
	ready := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY}
	notReady := &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_NOTREADY}
	for _, f := range []struct {
		name   string
		filter *runtimeapi.PodSandboxFilter
		want   bool
	}{
		{"none", nil, true},
		{"id", &runtimeapi.PodSandboxFilter{Id: id}, true},
		{"prefix of the id", &runtimeapi.PodSandboxFilter{Id: id[:13]}, true},
		{"another id", &runtimeapi.PodSandboxFilter{Id: strings.Repeat("0", 64)}, false},
		{"label", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"pod": config.GetLabels()["pod"]}}, true},
		{"labels", &runtimeapi.PodSandboxFilter{LabelSelector: config.GetLabels()}, true},
		{"another label", &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"pod": "x"}}, false},
		{"ready", &runtimeapi.PodSandboxFilter{State: ready}, true},
		{"not ready", &runtimeapi.PodSandboxFilter{State: notReady}, false},
	} {
		r, err := c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{Filter: f.filter})
		c.must(err)
		listed := false
		for _, p := range r.GetItems() {
			listed = listed || p.GetId() == id
		}
		stream, err := c.StreamPodSandboxes(c.ctx, &runtimeapi.StreamPodSandboxesRequest{Filter: f.filter})
		c.must(err)
		streamed := 0
		for {
			part, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			c.must(err)
			streamed += len(part.GetPodSandboxes())
		}
		if listed != f.want || streamed != len(r.GetItems()) {
			t.Errorf("filter %s: listed %v, want %v; %d listed and %d streamed", f.name, listed, f.want, len(r.GetItems()), streamed)
		}
	}
}

// agentPodsHidden checks that lists leave out the agent's pods, because a kubelet would kill pods
// that it doesn't know.
func agentPodsHidden(t *testing.T, c *criNode) {
	manifest := strings.ReplaceAll(string(must(os.ReadFile(example))), "localhost/web:1", webImage)
	c.MustHusk("run", "--wait", write(t, c.Node, "web.yaml", manifest))
	defer func() { c.MustHusk("stop", "web"); c.MustHusk("rm", "web") }()
	for filter, want := range map[*runtimeapi.PodSandboxFilter]bool{
		{}: false,
		{LabelSelector: map[string]string{"io.kubernetes.pod.name": "web"}}: false,
		{LabelSelector: map[string]string{"huskd.github.io/agent": "true"}}: true,
	} {
		r, err := c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{Filter: filter})
		c.must(err)
		found := false
		for _, p := range r.GetItems() {
			if found = found || p.GetMetadata().GetName() == "web"; found {
				_, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: p.GetId()})
				c.must(err)
			}
		}
		if found != want {
			t.Errorf("filter %v: listed: %v, want %v", filter, found, want)
		}
	}
	containers, err := c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{})
	c.must(err)
	for _, k := range containers.GetContainers() {
		if k.GetLabels()["io.kubernetes.pod.name"] == "web" {
			t.Errorf("a container of the agent's pod is listed: %v", k)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestCRINamespaces tests every namespace mode.
func TestCRINamespaces(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	c.pull(webImage)
	podOptions := func(o *runtimeapi.NamespaceOption) func(*runtimeapi.PodSandboxConfig) {
		return func(p *runtimeapi.PodSandboxConfig) { p.Linux.SecurityContext.NamespaceOptions = o }
	}
	containerOptions := func(o *runtimeapi.NamespaceOption) func(*runtimeapi.ContainerConfig) {
		return func(k *runtimeapi.ContainerConfig) {
			k.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{NamespaceOptions: o}
		}
	}
	inode := func(kind string) string { return strings.TrimSpace(c.Must("readlink", "/proc/self/ns/"+kind)) }
	read := func(id, kind string) string { return c.sh(id, "readlink /proc/self/ns/"+kind) }

	node := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE, Pid: runtimeapi.NamespaceMode_NODE, Ipc: runtimeapi.NamespaceMode_NODE}
	host := c.run(c.pod(podOptions(node)), forever, containerOptions(node))
	for _, kind := range []string{"net", "pid", "ipc", "uts"} {
		if got, want := read(host, kind), inode(kind); got != want {
			t.Errorf("NODE: the container's %s namespace is %s, the node's %s", kind, got, want)
		}
	}
	shared := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD}
	pod := c.pod(podOptions(shared))
	a, b := c.run(pod, forever, containerOptions(shared)), c.run(pod, forever, containerOptions(shared))
	for _, kind := range []string{"net", "pid", "ipc", "uts"} {
		if read(a, kind) != read(b, kind) || read(a, kind) == inode(kind) {
			t.Errorf("POD: %s namespaces: %s, %s, the node's %s", kind, read(a, kind), read(b, kind), inode(kind))
		}
	}
	if first := c.sh(a, "cat /proc/1/comm"); first != "pause" {
		t.Errorf("POD: process 1 is %q, want pause", first)
	}
	own := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	pod = c.pod(podOptions(own))
	a, b = c.run(pod, forever, containerOptions(own)), c.run(pod, forever, containerOptions(own))
	if read(a, "pid") == read(b, "pid") || read(a, "net") != read(b, "net") {
		t.Error("CONTAINER: the containers share a PID namespace or don't share the network namespace")
	}
	target := c.run(pod, forever, containerOptions(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: a}))
	if read(target, "pid") != read(a, "pid") {
		t.Error("TARGET: the container is not in the PID namespace of its target")
	}
	_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever,
		containerOptions(&runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_TARGET, TargetId: strings.Repeat("0", 64)}))})
	fails(t, err, codes.NotFound, "not found")
	c.end()
}
