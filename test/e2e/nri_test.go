package e2e

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestNRI registers plugins of the Node Resource Interface with huskd, which follow and change what
// it does.
func TestNRI(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	c.pull(webImage)
	c.subtest(t, "lifecycle", pluginSeesLifecycle)
	c.subtest(t, "adjust", pluginAdjusts)
	c.subtest(t, "update", pluginUpdates)
	c.subtest(t, "evict", pluginEvicts)
	c.subtest(t, "refuse", pluginRefuses)
	c.subtest(t, "agent", pluginSeesManifestPods)
	c.subtest(t, "die", pluginDies)
	c.subtest(t, "restart", pluginRegistersAgain)
	c.subtest(t, "require", pluginRequired)
	c.end()
}

// memoryOf returns the memory limit of a container's cgroup, in bytes.
func (c *criNode) memoryOf(id string) string {
	c.t.Helper()
	return c.sh(id, "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max")
}

// removePod removes a sandbox.
func (c *criNode) removePod(pod string) {
	c.t.Helper()
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
}

// pluginSeesLifecycle checks that a plugin gets every event, in order and with its object.
func pluginSeesLifecycle(t *testing.T, c *criNode) {
	p := (&nriPlugin{}).register(t, c.Node, "10")
	p.reset()
	config := c.podConfig()
	pod, name := c.runPod(config), config.GetMetadata().GetName()
	id := c.run(pod, forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "main" })
	c.ready(id)
	c.must(ignore(c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 300}})))
	c.must(ignore(c.UpdatePodSandboxResources(c.ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}})))
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 10})))
	stopped := p.last
	c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})))
	short := c.run(pod, "exit 3", func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "short" })
	c.exited(short)
	node.Eventually(t, 20*time.Second, func() string {
		if !slices.Contains(p.seen(), "stop short") {
			return "no event for a container that exited by itself"
		}
		return ""
	})
	c.must(ignore(c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})))
	c.must(ignore(c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})))
	c.removePod(pod)
	want := strings.Split("run POD,create main,created main,start main,started main,update main,updated main,update POD,updated POD,stop main,remove main,"+
		"create short,created short,start short,started short,stop short,stop POD,remove short,remove POD", ",")
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "POD", name)
	}
	got := p.seen()
	// If a container exits at once, the event of its end may precede that of its start.
	slices.Sort(got[len(got)-5 : len(got)-3])
	slices.Sort(want[len(want)-5 : len(want)-3])
	if !slices.Equal(got, want) {
		t.Errorf("events\n%q, want\n%q", got, want)
	}
	if stopped.GetId() != id || stopped.GetPodSandboxId() != pod || stopped.GetState() != api.ContainerState_CONTAINER_STOPPED ||
		stopped.GetAnnotations()["hash"] != "0123" || stopped.GetLabels()["container"] == "" || stopped.GetFinishedAt() == 0 ||
		stopped.GetLinux().GetResources().GetCpu().GetShares().GetValue() != 300 {
		t.Errorf("the container in the event of its stop: %v", stopped)
	}
}

// pluginAdjusts checks that a plugin's adjustment takes effect in the container and survives an
// update of the container and a restart of huskd.
func pluginAdjusts(t *testing.T, c *criNode) {
	given := filepath.Join(c.Dir, "given")
	c.must(os.Mkdir(given, 0o755))
	c.must(os.WriteFile(filepath.Join(given, "file"), []byte("from the plugin"), 0o644))
	p := &nriPlugin{create: func(k *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		a := &api.ContainerAdjustment{}
		a.AddEnv("ADJUSTED", "yes")
		a.RemoveEnv("REMOVED")
		a.AddAnnotation("plugin.test/was", "here")
		a.AddMount(&api.Mount{Destination: "/given", Source: given, Type: "bind", Options: []string{"rbind", "ro"}})
		a.AddDevice(&api.LinuxDevice{Path: "/dev/another-null", Type: "c", Major: 1, Minor: 3, FileMode: api.FileMode(os.FileMode(0o666))})
		a.AddRlimit("RLIMIT_NOFILE", 77, 66)
		a.SetArgs(append(k.GetArgs(), "argument"))
		a.SetLinuxMemoryLimit(48 << 20)
		a.SetLinuxCPUSetCPUs("0")
		a.SetLinuxCgroupsPath(k.GetLinux().GetCgroupsPath())
		return a, nil, nil
	}}
	p.register(t, c.Node, "10")
	pod := c.pod()
	defer c.removePod(pod)
	id := c.run(pod, "echo $0 >/tmp/argument; "+forever, func(k *runtimeapi.ContainerConfig) {
		k.Envs = []*runtimeapi.KeyValue{{Key: "REMOVED", Value: []byte("no")}, {Key: "KEPT", Value: []byte("kept")}}
		k.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512}
	})
	c.ready(id)
	p.stub.Stop()
	check := func(when, memory string) {
		t.Helper()
		for script, want := range map[string]string{
			"echo $ADJUSTED$REMOVED$KEPT": "yeskept", "cat /given/file": "from the plugin", "cat /tmp/argument": "argument",
			"touch /given/new 2>&1 || echo read-only":                     "touch: cannot touch '/given/new': Read-only file system\nread-only",
			"cat /dev/another-null && echo x >/dev/another-null; echo $?": "0",
			"grep Cpus_allowed_list /proc/1/status | tr -d ' \t'":         "Cpus_allowed_list:0",
			"grep '^Max open files' /proc/1/limits | tr -s ' '":           "Max open files 66 77 files",
		} {
			if got := c.sh(id, script); got != want && !(strings.Contains(script, "touch") && strings.HasSuffix(got, "read-only")) {
				t.Errorf("%s: %s: %q, want %q", when, script, got, want)
			}
		}
		if got := c.memoryOf(id); got != memory {
			t.Errorf("%s: memory %s, want %s", when, got, memory)
		}
	}
	check("before the restart", "50331648")
	if r := c.status(id).GetResources().GetLinux(); r.GetMemoryLimitInBytes() != 48<<20 || r.GetCpusetCpus() != "0" || r.GetCpuShares() != 512 {
		t.Errorf("the status shows the resources %v", r)
	}
	c.huskd.Kill()
	*c.huskd = *c.Huskd()
	c.connect()
	c.must(ignore(c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 56 << 20}})))
	check("after a restart without the plugin", "58720256")
}

// pluginUpdates checks that plugins can change limits: of an event's container, of other
// containers, and without an event.
func pluginUpdates(t *testing.T, c *criNode) {
	memory := func(id string, bytes int64) *api.ContainerUpdate {
		u := &api.ContainerUpdate{}
		u.SetContainerId(id)
		u.SetLinuxMemoryLimit(bytes)
		return u
	}
	p := (&nriPlugin{}).register(t, c.Node, "10")
	pod := c.pod()
	defer c.removePod(pod)
	first := c.run(pod, forever)
	c.ready(first)

	p.create = func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		return nil, []*api.ContainerUpdate{memory(first, 41<<20)}, nil
	}
	second := c.run(pod, forever)
	c.ready(second)
	if got := c.memoryOf(first); got != "42991616" {
		t.Errorf("memory limit set on another container's creation: %s", got)
	}
	p.create = nil

	p.update = func(k *api.Container, asked *api.LinuxResources) []*api.ContainerUpdate {
		return []*api.ContainerUpdate{memory(first, 42<<20), memory(k.GetId(), asked.GetMemory().GetLimit().GetValue()/2)}
	}
	c.must(ignore(c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: second, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 99}})))
	if got := c.memoryOf(second); got != "33554432" {
		t.Errorf("memory limit requested and then changed by the plugin: %s", got)
	}
	if got := c.status(second).GetResources().GetLinux().GetCpuShares(); got != 99 {
		t.Errorf("CPU shares that the plugin left alone: %d, want 99", got)
	}
	if got := c.memoryOf(first); got != "44040192" {
		t.Errorf("memory limit set on another container's update: %s", got)
	}

	bad := memory(first, 1)
	bad.SetLinuxPidLimits(5)
	forgiven := memory(strings.Repeat("2", 64), 1<<20)
	forgiven.SetIgnoreFailure()
	failed, err := p.stub.UpdateContainers([]*api.ContainerUpdate{memory(first, 43<<20), memory(strings.Repeat("1", 64), 1<<20), bad, forgiven})
	if err != nil || len(failed) != 2 || failed[0].GetContainerId() != strings.Repeat("1", 64) || failed[1].GetContainerId() != first {
		t.Errorf("unsolicited update: failed updates %v, error %v", failed, err)
	}
	if got := c.memoryOf(first); got != "45088768" {
		t.Errorf("memory limit after an unsolicited update: %s", got)
	}

	p.stop = func(*api.Container) []*api.ContainerUpdate { return []*api.ContainerUpdate{memory(first, 44<<20)} }
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: second})))
	node.Eventually(t, 20*time.Second, func() string {
		if got := c.memoryOf(first); got != "46137344" {
			return "memory limit set on another container's stop: " + got
		}
		return ""
	})
}

// pluginEvicts checks that a plugin can evict containers, in a request of its own or in an answer.
func pluginEvicts(t *testing.T, c *criNode) {
	p := (&nriPlugin{}).register(t, c.Node, "10")
	pod := c.pod()
	defer c.removePod(pod)
	first, second := c.run(pod, forever), c.run(pod, forever)
	p.evict.Store(&first)
	c.must(ignore(p.stub.UpdateContainers(nil)))
	if st := c.exited(first); st.GetExitCode() != 137 {
		t.Errorf("evicted in a request: %v", st)
	}
	p.evict.Store(&second)
	c.run(pod, forever)
	if st := c.exited(second); st.GetExitCode() != 137 {
		t.Errorf("evicted in the answer for another container: %v", st)
	}
}

// pluginRefuses checks that an object that a plugin refuses leaves nothing behind, and can be
// created once the plugin allows it.
func pluginRefuses(t *testing.T, c *criNode) {
	refuse := true
	no := func() error {
		if refuse {
			return errors.New("no such thing here")
		}
		return nil
	}
	p := &nriPlugin{
		run: func(*api.PodSandbox) error { return no() },
		create: func(k *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
			a := &api.ContainerAdjustment{}
			if k.GetName() == "policy" {
				a.SetLinuxMemoryPolicy(api.MpolMode_MPOL_BIND, "0")
			}
			if k.GetName() == "unstarted" {
				return nil, nil, nil
			}
			return a, nil, no()
		},
		start: func(*api.Container) error { return no() },
	}
	p.register(t, c.Node, "10")
	p.reset()
	config := c.podConfig()
	name := config.GetMetadata().GetName()
	_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	fails(t, err, codes.FailedPrecondition, "an NRI plugin refuses: no such thing here")
	if list := must(c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})).GetItems(); len(list) > 0 {
		t.Errorf("the refused request left %v", list)
	}
	refuse = false
	pod := c.runPod(config)
	defer c.removePod(pod)
	want := []string{"run " + name, "stop " + name, "remove " + name, "run " + name}
	if got := p.seen(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
	refuse = true
	_, err = c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever)})
	fails(t, err, codes.FailedPrecondition, "an NRI plugin refuses: no such thing here")
	id := c.create(pod, c.containerConfig(forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "unstarted" }))
	_, err = c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	fails(t, err, codes.FailedPrecondition, "an NRI plugin refuses: no such thing here")
	c.must(ignore(c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})))
	refuse = false
	_, err = c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "policy" })})
	fails(t, err, codes.FailedPrecondition, "adjustment of memory_policy: the container's runtime does not know")
	if list := must(c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{})).GetContainers(); len(list) > 0 {
		t.Errorf("the refused request left %v", list)
	}
	c.run(pod, forever)
}

// pluginSeesManifestPods checks that plugins also see and adjust pods of manifests.
func pluginSeesManifestPods(t *testing.T, c *criNode) {
	p := &nriPlugin{create: func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		a := &api.ContainerAdjustment{}
		a.AddEnv("ADJUSTED", "yes")
		return a, nil, nil
	}}
	p.register(t, c.Node, "10")
	p.reset()
	manifest := strings.ReplaceAll(string(must(os.ReadFile(example))), "localhost/web:1", webImage)
	c.MustHusk("run", "--wait", write(t, c.Node, "web.yaml", manifest))
	if got := c.MustHusk("exec", "-c", "server", "web", "--", "sh", "-c", "echo $ADJUSTED"); got != "yes\n" {
		t.Errorf("the variable in the container: %q", got)
	}
	c.MustHusk("stop", "web")
	c.MustHusk("rm", "web")
	seen := p.seen()
	for _, want := range []string{"run web", "create server", "created server", "start server", "started server", "stop server", "stop web", "remove server", "remove web"} {
		if !slices.Contains(seen, want) {
			t.Errorf("no event %q in %q", want, seen)
		}
	}
}

// pluginDies checks that a plugin that dies or hangs during a call is disconnected, and that the
// call goes on without it.
func pluginDies(t *testing.T, c *criNode) {
	dies := &nriPlugin{}
	dies.run = func(*api.PodSandbox) error { dies.disconnect(); return nil }
	dies.register(t, c.Node, "10")
	other := (&nriPlugin{}).register(t, c.Node, "20")
	other.reset()
	config := c.podConfig()
	c.removePod(c.runPod(config))
	if got := other.seen(); !slices.Contains(got, "run "+config.GetMetadata().GetName()) {
		t.Errorf("the other plugin's events: %q", got)
	}

	release := make(chan struct{})
	hangs := &nriPlugin{create: func(*api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
		<-release
		return nil, nil, nil
	}}
	hangs.register(t, c.Node, "10")
	defer close(release)
	pod := c.pod()
	defer c.removePod(pod)
	c.ready(c.run(pod, forever))
	<-hangs.closed // huskd disconnects it
}

// pluginRequired checks that no container is created while a required plugin is missing.
func pluginRequired(t *testing.T, c *criNode) {
	c.huskd.Kill()
	*c.huskd = *c.Huskd(node.Flags("--nri-required-plugins", "test"))
	c.connect()
	pod := c.pod()
	defer c.removePod(pod)
	_, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: c.containerConfig(forever)})
	fails(t, err, codes.FailedPrecondition, `required plugin`)
	(&nriPlugin{}).register(t, c.Node, "10")
	c.ready(c.run(pod, forever))
}

// pluginRegistersAgain checks that after a restart of huskd, plugins are synchronized and get the
// following events, and that those in the plugin directory are started again.
func pluginRegistersAgain(t *testing.T, c *criNode) {
	plugins := filepath.Join(c.Dir, "nri-plugins")
	c.must(os.Mkdir(plugins, 0o755))
	c.must(os.Symlink(must(os.Executable()), filepath.Join(plugins, "05-launched")))
	restart := func() {
		t.Helper()
		c.huskd.Kill()
		*c.huskd = *c.Huskd(node.Flags("--nri-plugin-dir", plugins))
		c.connect()
	}
	restart()
	config := c.podConfig()
	pod := c.runPod(config)
	id := c.run(pod, forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "main" })
	c.ready(id)
	if got := c.sh(id, "echo $LAUNCHED"); got != "yes" {
		t.Errorf("the plugin that huskd started did not mark the container: %q", got)
	}
	fatal := c.run(pod, forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "fatal" })
	c.ready(fatal)
	if got := c.sh(fatal, "echo $LAUNCHED"); got != "" {
		t.Errorf("the plugin died, but the container is marked: %q", got)
	}
	ended := c.run(pod, "true")
	c.exited(ended)

	restart()
	p := (&nriPlugin{}).register(t, c.Node, "10")
	var there []string
	for _, s := range p.pods {
		there = append(there, s.GetId())
	}
	for _, k := range p.containers {
		there = append(there, k.GetId())
		if k.GetId() == id && (k.GetState() != api.ContainerState_CONTAINER_RUNNING || !slices.Contains(k.GetEnv(), "LAUNCHED=yes") || k.GetPid() == 0) {
			t.Errorf("the container when it was synchronized: %v", k)
		}
	}
	slices.Sort(there)
	if want := slices.Sorted(slices.Values([]string{pod, id, fatal})); !slices.Equal(there, want) {
		t.Errorf("synchronized objects %q, want %q", there, want)
	}
	again := c.run(pod, forever, func(k *runtimeapi.ContainerConfig) { k.Metadata.Name = "again" })
	if got := c.sh(again, "echo $LAUNCHED"); got != "yes" {
		t.Errorf("the plugin was not started again: %q", got)
	}
	p.reset()
	c.removePod(pod)
	seen := p.seen()
	name := config.GetMetadata().GetName()
	if len(seen) != 8 || seen[3] != "stop "+name || seen[7] != "remove "+name || !slices.Contains(seen[:3], "stop main") || !slices.Contains(seen[4:7], "remove main") {
		t.Errorf("events %q", seen)
	}
}
