//go:build vm

package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// forever is a script that exits at once on SIGTERM.
const forever = "trap 'exit 0' TERM; while :; do sleep 3600 & wait; done"

const mebi = 1 << 20

// client is a CRI client of a huskd.
type client struct {
	runtimeapi.RuntimeServiceClient
	t   *testing.T
	dir string // of logs
	ctx context.Context
}

func dial(t *testing.T, socket, dir string) client {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{runtimeapi.NewRuntimeServiceClient(conn), t, dir, t.Context()}
}

func (c client) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// sandbox runs a pod, with the default handler unless one is given.
func (c client) sandbox(name, handler string, change ...func(*runtimeapi.PodSandboxConfig)) (string, *runtimeapi.PodSandboxConfig) {
	c.t.Helper()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		LogDirectory: filepath.Join(c.dir, "logs", name),
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	for _, fn := range change {
		fn(config)
	}
	r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: config, RuntimeHandler: handler})
	c.must(err)
	return r.GetPodSandboxId(), config
}

// create creates a container that runs a shell script, and returns its ID.
func (c client) create(pod string, config *runtimeapi.PodSandboxConfig, script string, change ...func(*runtimeapi.ContainerConfig)) (id string, err error) {
	c.t.Helper()
	container := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "counter"},
		Image:    &runtimeapi.ImageSpec{Image: "localhost/web:1"},
		Command:  []string{"/bin/sh", "-c", script},
		LogPath:  "counter.log",
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			NamespaceOptions: config.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	for _, fn := range change {
		fn(container)
	}
	r, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, SandboxConfig: config, Config: container})
	return r.GetContainerId(), err
}

func named(name string) func(*runtimeapi.ContainerConfig) {
	return func(k *runtimeapi.ContainerConfig) { k.Metadata.Name, k.LogPath = name, name+".log" }
}

func limited(cpuQuota, memory int64) func(*runtimeapi.ContainerConfig) {
	return func(k *runtimeapi.ContainerConfig) {
		k.Linux.Resources = &runtimeapi.LinuxContainerResources{CpuPeriod: 100_000, CpuQuota: cpuQuota, MemoryLimitInBytes: memory}
	}
}

func (c client) start(id string) {
	c.t.Helper()
	_, err := c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	c.must(err)
}

// says fails the test unless each shell script prints what is expected in a container. It runs them
// all in one exec, because an exec is slow under emulation.
func (c client) says(id string, want map[string]string) {
	c.t.Helper()
	const end = "-- end\n"
	var all strings.Builder
	scripts := slices.Sorted(maps.Keys(want))
	for _, script := range scripts {
		fmt.Fprintf(&all, "(%s\n) 2>&1; echo; echo %s", script, end)
	}
	r, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", all.String()}, Timeout: 60})
	c.must(err)
	said := strings.Split(string(r.GetStdout()), end)
	if len(said) != len(scripts)+1 {
		c.t.Fatalf("%d scripts said %v", len(scripts), r)
	}
	for i, script := range scripts {
		if got := strings.TrimSpace(said[i]); got != want[script] {
			c.t.Errorf("%s: got %q, want %q", script, got, want[script])
		}
	}
}

// pid returns the PID of a container's first process, in huskd's PID namespace.
func (c client) pid(id string) (pid int) {
	c.t.Helper()
	r, err := c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	c.must(err)
	var info struct{ PID int }
	if err := json.Unmarshal([]byte(r.GetInfo()["info"]), &info); err != nil || info.PID == 0 {
		c.t.Fatalf("container %s: %v: %s", id, err, r)
	}
	return info.PID
}

// exited waits until a container has ended and returns its status.
func (c client) exited(id string) (st *runtimeapi.ContainerStatus) {
	c.t.Helper()
	node.Eventually(c.t, time.Minute, func() string {
		r, err := c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
		c.must(err)
		if st = r.GetStatus(); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Sprintf("it is %s", st.GetState())
		}
		return ""
	})
	return st
}

func (c client) remove(pod string) {
	c.t.Helper()
	_, err := c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod})
	c.must(err)
}
