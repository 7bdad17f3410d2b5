package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestCRIContainers tests the lifecycle of containers.
func TestCRIContainers(t *testing.T) {
	t.Parallel()
	c := startCRI(t)
	imageID := c.pull(webImage)
	config := c.podConfig()
	pod := c.runPod(config)
	c.subtest(t, "lifecycle", func(t *testing.T, c *criNode) { containerLife(t, c, pod, imageID) })
	c.subtest(t, "filters", func(t *testing.T, c *criNode) { containerFilters(t, c, pod) })
	c.subtest(t, "exec", func(t *testing.T, c *criNode) { execSync(t, c, pod) })
	c.subtest(t, "logs", func(t *testing.T, c *criNode) { containerLogs(t, c, pod, config) })
	c.subtest(t, "limits", func(t *testing.T, c *criNode) { containerLimits(t, c, pod) })
	c.subtest(t, "cgroup parent", cgroupParent)
	c.subtest(t, "exit", func(t *testing.T, c *criNode) { containerExits(t, c, pod) })
	c.subtest(t, "adoption by a restarted huskd", func(t *testing.T, c *criNode) { adoption(t, c, pod) })
	c.connect()
	c.end()
}

func containerLife(t *testing.T, c *criNode, pod, imageID string) {
	config := c.containerConfig(forever, func(k *runtimeapi.ContainerConfig) { k.Image.UserSpecifiedImage = webImage })
	config.Image.Image = imageID
	id := c.create(pod, config)
	if again := c.create(pod, config); again != id {
		t.Errorf("the same request returns %s the second time, %s the first", again, id)
	}
	st := c.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED || st.GetCreatedAt() == 0 || st.GetStartedAt() != 0 {
		t.Errorf("created: %v", st)
	}
	_, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	fails(t, err, codes.FailedPrecondition, "is not running")
	for range 2 {
		_, err = c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
		c.must(err)
	}
	st = c.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetStartedAt() < st.GetCreatedAt() || st.GetFinishedAt() != 0 {
		t.Errorf("started: %v", st)
	}
	if st.GetImageId() != imageID || st.GetImage().GetImage() != webImage || !strings.Contains(st.GetImageRef(), "@sha256:") {
		t.Errorf("image: %q, %q, %q", st.GetImageId(), st.GetImage(), st.GetImageRef())
	}
	byID := c.status(c.create(pod, c.containerConfig(forever, func(k *runtimeapi.ContainerConfig) { k.Image.Image = imageID[7:19] })))
	if byID.GetImageId() != imageID || byID.GetImage().GetImage() != webImage {
		t.Errorf("image, named by an ID: %q, %q", byID.GetImageId(), byID.GetImage())
	}
	_, err = c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: byID.GetId()})
	c.must(err)
	if st.GetLabels()["container"] != config.GetMetadata().GetName() || st.GetAnnotations()["hash"] != "0123" || st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGTERM {
		t.Errorf("the status differs from the request: %v", st)
	}
	verbose, err := c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id[:9], Verbose: true})
	c.must(err)
	for _, word := range []string{`"sandboxID":"` + pod, `"runtimeSpec":{`, `"snapshotKey":"/`, `"runtimeType":"`} {
		if !strings.Contains(verbose.GetInfo()["info"], word) {
			t.Errorf("info has no %s", word)
		}
	}
	c.ready(id)
	for range 2 {
		_, err = c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30})
		c.must(err)
	}
	st = c.status(id)
	if st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED || st.GetExitCode() != 0 || st.GetReason() != "Completed" || st.GetFinishedAt() < st.GetStartedAt() {
		t.Errorf("stopped: %v", st)
	}
	_, err = c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	if err == nil {
		t.Error("a container that has exited can be started again")
	}
	for range 2 {
		_, err = c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: id})
		c.must(err)
	}
	_, err = c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	fails(t, err, codes.NotFound, "not found")
	_, err = c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id})
	c.must(err)
	running := c.run(pod, forever)
	_, err = c.RemoveContainer(c.ctx, &runtimeapi.RemoveContainerRequest{ContainerId: running})
	c.must(err)
}

func containerFilters(t *testing.T, c *criNode, pod string) {
	other := c.pod()
	id := c.run(pod, forever)
	stopped := c.run(pod, "true")
	c.exited(stopped)
	state := func(s runtimeapi.ContainerState) *runtimeapi.ContainerStateValue {
		return &runtimeapi.ContainerStateValue{State: s}
	}
	for _, f := range []struct {
		name   string
		filter *runtimeapi.ContainerFilter
		want   bool
	}{
		{"none", nil, true},
		{"id", &runtimeapi.ContainerFilter{Id: id}, true},
		{"prefix of the id", &runtimeapi.ContainerFilter{Id: id[:13]}, true},
		{"another id", &runtimeapi.ContainerFilter{Id: stopped}, false},
		{"id and sandbox", &runtimeapi.ContainerFilter{Id: id, PodSandboxId: pod}, true},
		{"id and another sandbox", &runtimeapi.ContainerFilter{Id: id, PodSandboxId: other}, false},
		{"sandbox", &runtimeapi.ContainerFilter{PodSandboxId: pod}, true},
		{"no such sandbox", &runtimeapi.ContainerFilter{PodSandboxId: "none"}, false},
		{"running", &runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_RUNNING)}, true},
		{"exited", &runtimeapi.ContainerFilter{State: state(runtimeapi.ContainerState_CONTAINER_EXITED)}, false},
		{"label", &runtimeapi.ContainerFilter{LabelSelector: c.status(id).GetLabels()}, true},
		{"another label", &runtimeapi.ContainerFilter{LabelSelector: map[string]string{"container": "x"}}, false},
	} {
		r, err := c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{Filter: f.filter})
		c.must(err)
		found := false
		for _, k := range r.GetContainers() {
			found = found || k.GetId() == id && k.GetPodSandboxId() == pod
		}
		if found != f.want {
			t.Errorf("filter %s: listed %v, want %v", f.name, found, f.want)
		}
		stream, err := c.StreamContainers(c.ctx, &runtimeapi.StreamContainersRequest{Filter: f.filter})
		c.must(err)
		streamed := 0
		for part, err := stream.Recv(); err == nil; part, err = stream.Recv() {
			streamed += len(part.GetContainers())
		}
		if streamed != len(r.GetContainers()) {
			t.Errorf("filter %s: %d listed, %d streamed", f.name, len(r.GetContainers()), streamed)
		}
	}
	st, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
	c.must(err)
	if len(st.GetContainersStatuses()) != 2 {
		t.Errorf("the sandbox's status has %d containers, want 2", len(st.GetContainersStatuses()))
	}
	_, err = c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: other})
	c.must(err)
}

func execSync(t *testing.T, c *criNode, pod string) {
	id := c.run(pod, forever)
	run := func(timeout int64, args ...string) (*runtimeapi.ExecSyncResponse, error) {
		return c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: args, Timeout: timeout})
	}
	r, err := run(0, "/bin/sh", "-c", "echo out; echo err >&2; exit 7")
	c.must(err)
	if string(r.GetStdout()) != "out\n" || string(r.GetStderr()) != "err\n" || r.GetExitCode() != 7 {
		t.Errorf("exec: %v", r)
	}
	_, err = run(1, "/bin/sh", "-c", "sleep 3601 & sleep 3601")
	fails(t, err, codes.DeadlineExceeded, "timed out")
	if left := c.sh(id, "ps -o args | grep -c '[s]leep 3601' || true"); left != "0" {
		t.Errorf("%s processes remain of a program that timed out", left)
	}
	_, err = run(0, "/no/such/program")
	fails(t, err, codes.FailedPrecondition, "/no/such/program")
	// Output beyond the limit is dropped without disturbing the program.
	r, err = run(0, "/bin/sh", "-c", "head -c 20000000 /dev/zero; head -c 20000000 /dev/zero >&2; exit 3")
	c.must(err)
	if total := len(r.GetStdout()) + len(r.GetStderr()); r.GetExitCode() != 3 || total > 16<<20 || total < 15<<20 {
		t.Errorf("40 MB of output: it returns %d bytes and exit code %d", total, r.GetExitCode())
	}
	_, err = run(0)
	fails(t, err, codes.InvalidArgument, "needs a command")
	_, err = run(-1, "true")
	fails(t, err, codes.InvalidArgument, "negative")
}

// containerLogs tests CRI's log format, the splitting of long lines, and rotation.
func containerLogs(t *testing.T, c *criNode, pod string, config *runtimeapi.PodSandboxConfig) {
	id := c.run(pod, "echo one; echo two >&2; head -c 20000 /dev/zero | tr '\\0' x; echo; while [ ! -e /go ]; do sleep 0.05; done; echo three; "+forever)
	st := c.status(id)
	if want := filepath.Join(config.GetLogDirectory(), st.GetMetadata().GetName()+".log"); st.GetLogPath() != want {
		t.Errorf("log path %q, want %q", st.GetLogPath(), want)
	}
	read := func() string { return string(must(os.ReadFile(st.GetLogPath()))) }
	node.Eventually(t, 20*time.Second, func() string {
		if text := read(); !strings.Contains(text, " stdout F one\n") || !strings.Contains(text, " stderr F two\n") || !strings.Contains(text, " stdout P xxx") {
			return fmt.Sprintf("the log is %.300q", text)
		}
		return ""
	})
	c.must(os.Rename(st.GetLogPath(), st.GetLogPath()+".1"))
	_, err := c.ReopenContainerLog(c.ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	c.must(err)
	c.sh(id, "touch /go")
	node.Eventually(t, 20*time.Second, func() string {
		if text := read(); !strings.HasSuffix(text, " stdout F three\n") || strings.Contains(text, "one") {
			return fmt.Sprintf("the new log is %.300q", text)
		}
		return ""
	})
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id})))
	_, err = c.ReopenContainerLog(c.ctx, &runtimeapi.ReopenContainerLogRequest{ContainerId: id})
	fails(t, err, codes.FailedPrecondition, "is not running")
}

func ignore[T any](_ T, err error) error { return err }

func containerLimits(t *testing.T, c *criNode, pod string) {
	id := c.run(pod, forever, func(k *runtimeapi.ContainerConfig) {
		k.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuShares: 512, CpuQuota: 20000, CpuPeriod: 100000, MemoryLimitInBytes: 64 << 20}
	})
	memory := func() string {
		return c.sh(id, "cd /sys/fs/cgroup; cat memory/memory.limit_in_bytes 2>/dev/null || cat memory.max")
	}
	if got := memory(); got != "67108864" {
		t.Errorf("memory limit: %s", got)
	}
	_, err := c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 32 << 20, CpuShares: 256}})
	c.must(err)
	if got := memory(); got != "33554432" {
		t.Errorf("memory limit after an update: %s", got)
	}
	res := c.status(id).GetResources().GetLinux()
	if res.GetMemoryLimitInBytes() != 32<<20 || res.GetCpuShares() != 256 || res.GetCpuQuota() != 20000 {
		t.Errorf("the status shows the resources %v", res)
	}
	verbose, err := c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	c.must(err)
	if info := verbose.GetInfo()["info"]; !strings.Contains(info, `"limit":33554432`) || !strings.Contains(info, `"quota":20000`) {
		t.Errorf("the runtime spec of the verbose status has other limits: %s", info)
	}
	c.sh(id, "head -c 20971520 /dev/zero >/dev/shm/x")
	if _, err = c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 8 << 20}}); err == nil {
		t.Error("a memory limit below the usage is accepted")
	}
	if got, st := memory(), c.status(id); got != "33554432" || st.GetState() != runtimeapi.ContainerState_CONTAINER_RUNNING || st.GetResources().GetLinux().GetMemoryLimitInBytes() != 32<<20 {
		t.Errorf("after the refusal the memory limit is %s, and the status %v", got, st)
	}
	_, err = c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id})
	fails(t, err, codes.InvalidArgument, "linux resources are missing")
	_, err = c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpusetCpus: "x"}})
	fails(t, err, codes.InvalidArgument, "cpuset_cpus")
	_, err = c.UpdatePodSandboxResources(c.ctx, &runtimeapi.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 128 << 20}})
	c.must(err)
	limit := "cat /sys/fs/cgroup/memory" + string(c.Instance().Cgroup()) + "/pod*-" + pod[:12] + "/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup" + string(c.Instance().Cgroup()) + "/pod*-" + pod[:12] + "/memory.max"
	if got := strings.TrimSpace(c.Must("sh", "-c", limit)); got != "134217728" {
		t.Errorf("memory limit of the pod: %s", got)
	}
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id})))
	_, err = c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{CpuShares: 2}})
	fails(t, err, codes.FailedPrecondition, "can't be changed")
}

// cgroupParent tests pods below a cgroup that the client names, as a kubelet does. Husk doesn't
// remove it.
func cgroupParent(t *testing.T, c *criNode) {
	parent := "/husk-kubelet-" + string(c.Instance()) + "/pod1"
	directories := func(of string) (found []string) {
		for _, pattern := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			found = append(found, must(filepath.Glob(pattern+of))...)
		}
		return found
	}
	t.Cleanup(func() {
		for _, of := range []string{parent, filepath.Dir(parent)} {
			for _, dir := range directories(of) {
				if err := os.Remove(dir); err != nil {
					t.Error(err)
				}
			}
		}
	})
	pod := c.pod(func(p *runtimeapi.PodSandboxConfig) {
		p.Linux.CgroupParent = parent
		p.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	})
	id := c.run(pod, forever)
	c.ready(id)
	if len(directories(parent+"/"+id)) == 0 {
		t.Errorf("the container is not in a cgroup below %s", parent)
	}
	r, err := c.PodSandboxStats(c.ctx, &runtimeapi.PodSandboxStatsRequest{PodSandboxId: pod})
	c.must(err)
	if l := r.GetStats().GetLinux(); l.GetMemory().GetUsageBytes().GetValue() == 0 || len(l.GetContainers()) != 1 || l.GetContainers()[0].GetMemory().GetUsageBytes().GetValue() == 0 {
		t.Errorf("stats: %v", l)
	}
	c.must(ignore(c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})))
	if left := directories(parent + "/*/cgroup.procs"); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
	if len(directories(parent)) == 0 {
		t.Error("the parent cgroup, which belongs to the client, was removed")
	}
}

func containerExits(t *testing.T, c *criNode, pod string) {
	for script, want := range map[string]struct {
		code   int32
		reason string
	}{
		"exit 0": {0, "Completed"},
		"exit 3": {3, "Error"},
		"exec dd if=/dev/zero of=/dev/null bs=40M": {137, "OOMKilled"},
	} {
		id := c.run(pod, script, func(k *runtimeapi.ContainerConfig) {
			k.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 24 << 20, MemorySwapLimitInBytes: 24 << 20}
		})
		if st := c.exited(id); st.GetExitCode() != want.code || st.GetReason() != want.reason {
			t.Errorf("%s: exit code %d, %s", script, st.GetExitCode(), st.GetReason())
		}
	}
	for program, code := range map[string]int32{"/no/such/program": 127, "absent": 127, "/etc/passwd": 126} {
		absent := c.create(pod, c.containerConfig("", func(k *runtimeapi.ContainerConfig) { k.Command = []string{program} }))
		if st := c.status(absent); st.GetState() != runtimeapi.ContainerState_CONTAINER_CREATED {
			t.Errorf("%s: the created container is in state %v", program, st)
		}
		_, err := c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: absent})
		fails(t, err, codes.FailedPrecondition, program)
		st := c.exited(absent)
		if st.GetExitCode() != code || st.GetReason() != "StartError" || !strings.Contains(st.GetMessage(), program) || st.GetStartedAt() != 0 || st.GetFinishedAt() == 0 {
			t.Errorf("%s: %v", program, st)
		}
		_, err = c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: absent})
		fails(t, err, codes.FailedPrecondition, "has ended: create another")
	}
	// A container that ignores its stop signal is killed after the grace period.
	id := c.run(pod, "trap '' TERM; touch /tmp/ready; while :; do sleep 1; done")
	c.ready(id)
	began := time.Now()
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 2})))
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("it was killed after %v of a grace period of 2 s", took)
	}
	if st := c.exited(id); st.GetExitCode() != 137 {
		t.Errorf("killed: exit code %d", st.GetExitCode())
	}
	id = c.run(pod, "trap 'exit 9' USR1; touch /tmp/ready; while :; do sleep 3600 & wait; done", func(k *runtimeapi.ContainerConfig) { k.StopSignal = runtimeapi.Signal_SIGNAL_SIGUSR1 })
	c.ready(id)
	c.must(ignore(c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: id, Timeout: 30})))
	if st := c.exited(id); st.GetExitCode() != 9 || st.GetStopSignal() != runtimeapi.Signal_SIGNAL_SIGUSR1 {
		t.Errorf("stop signal: exit code %d, %s", st.GetExitCode(), st.GetStopSignal())
	}
}

// adoption checks that a restarted huskd reports the same about a running container.
func adoption(t *testing.T, c *criNode, pod string) {
	id := c.run(pod, forever)
	_, err := c.UpdateContainerResources(c.ctx, &runtimeapi.UpdateContainerResourcesRequest{ContainerId: id, Linux: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 48 << 20}})
	c.must(err)
	before, list := c.status(id), must(c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{})).String()
	c.huskd.Kill()
	*c.huskd = *c.Huskd()
	c.connect()
	if after := c.status(id); after.String() != before.String() {
		t.Errorf("before: %v\nafter:  %v", before, after)
	}
	if now := must(c.ListContainers(c.ctx, &runtimeapi.ListContainersRequest{})).String(); now != list {
		t.Errorf("list before: %s\nafter: %s", list, now)
	}
	c.sh(id, "true")
}
