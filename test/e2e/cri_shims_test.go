package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/test/node"
)

// shimHandler is the name of the runtime handler for the shim.
const shimHandler = "sandboxed"

// shimConfig returns the configuration of the handler: with the shim of Debian's containerd, or
// with the one that the environment names. make test-gvisor names gVisor's.
func shimConfig() string {
	path, config := os.Getenv("HUSK_TEST_SHIM"), os.Getenv("HUSK_TEST_SHIM_CONFIG")
	if path == "" {
		path = "/usr/bin/containerd-shim-runc-v2"
	}
	return fmt.Sprintf("[runtimes.%s]\ntype = \"shim\"\npath = %q\nconfig = %q\n", shimHandler, path, config)
}

// startShim starts a node whose huskd has the handler.
func startShim(t *testing.T) *criNode {
	t.Helper()
	hosttest.Root(t)
	n := node.New(t)
	serveRegistry(t, n)
	if err := os.WriteFile(filepath.Join(n.Dir, "huskd.toml"), []byte(shimConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	c := serveCRI(t, n, node.Flags("--config", filepath.Join(n.Dir, "huskd.toml")))
	c.pull(webImage)
	return c
}

// restart starts huskd again after a stop or kill.
func (c *criNode) restart() {
	c.t.Helper()
	c.huskd = c.Huskd(node.Flags("--config", filepath.Join(c.Dir, "huskd.toml")))
	c.connect()
}

// runShimPod runs a pod with the handler and returns its ID and address.
func (c *criNode) runShimPod() (id, ip string) {
	c.t.Helper()
	r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: shimHandler})
	c.must(err)
	st, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: r.GetPodSandboxId()})
	c.must(err)
	if got := st.GetStatus().GetRuntimeHandler(); got != shimHandler {
		c.t.Errorf("the handler in its status is %q", got)
	}
	return r.GetPodSandboxId(), st.GetStatus().GetNetwork().GetIp()
}

// log returns the log of a container without the timestamps.
func (c *criNode) log(id string) string {
	c.t.Helper()
	return c.readLog(c.Path(c.status(id).GetLogPath()))
}

// readLog returns the same of the log file at path, without a call to huskd.
func (c *criNode) readLog(path string) string {
	c.t.Helper()
	raw, err := os.ReadFile(path)
	c.must(err)
	var out strings.Builder
	for line := range strings.Lines(string(raw)) {
		_, rest, _ := strings.Cut(line, " ")
		out.WriteString(rest)
	}
	return out.String()
}

// waitLog waits until a container's log contains a line.
func (c *criNode) waitLog(id, line string) {
	c.t.Helper()
	node.Eventually(c.t, 20*time.Second, func() string {
		if got := c.log(id); !strings.Contains(got, line+"\n") {
			return fmt.Sprintf("its log is %q, without %q", got, line)
		}
		return ""
	})
}

// waitWeb waits until a pod's web server answers.
func (c *criNode) waitWeb(ip string) {
	c.t.Helper()
	if body := mustGet(c.t, c.Net(), net.JoinHostPort(ip, "80")); body == "" {
		c.t.Errorf("%s returns an empty page", ip)
	}
}

// TestShim tests the lifecycle of pods whose runtime is a shim, with restarts of huskd.
func TestShim(t *testing.T) {
	c := startShim(t)
	st, err := c.Status(c.ctx, &runtimeapi.StatusRequest{})
	c.must(err)
	var names []string
	for _, h := range st.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	if !strings.Contains(strings.Join(names, " "), shimHandler) {
		t.Fatalf("the handlers are %q, without the shim's", names)
	}
	pod, ip := c.runShimPod()
	web := c.run(pod, "", func(config *runtimeapi.ContainerConfig) { config.Command = nil })
	c.waitWeb(ip)
	work := c.run(pod, "echo out; echo err >&2; while :; do date +%s >/tmp/now; sleep 0.2; done & trap 'echo ended; exit 5' TERM; touch /tmp/ready; read -r line; while :; do sleep 0.1; done")
	c.waitLog(work, "stdout F out")
	c.waitLog(work, "stderr F err")
	if got := c.sh(work, "wget -qO- http://127.0.0.1/ | wc -c"); got == "0" {
		t.Error("the pod's containers don't share a network namespace")
	}
	c.ready(work)
	c.waitStats(web)

	early := c.run(pod, "touch /tmp/ready; while test ! -e /tmp/go; do sleep 0.1; done; sleep 1; echo last words; exit 7")
	c.ready(early)
	log := c.Path(c.status(early).GetLogPath())
	c.sh(early, "touch /tmp/go")
	c.huskd.Stop()
	node.Eventually(t, 20*time.Second, func() string { // the container ends while huskd is down
		if got := c.readLog(log); !strings.Contains(got, "last words") {
			return fmt.Sprintf("its log is %q", got)
		}
		return ""
	})
	c.restart()
	if got := c.exited(early); got.GetExitCode() != 7 {
		t.Errorf("it exited with %d while huskd was down, want 7", got.GetExitCode())
	}
	c.waitLog(early, "stdout F last words")
	c.waitWeb(ip)
	if got := c.sh(work, "echo again"); got != "again" {
		t.Errorf("exec after the restart: %q", got)
	}
	c.huskd.Kill()
	c.restart()
	_, err = c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: work, Timeout: 20})
	c.must(err)
	if got := c.exited(work); got.GetExitCode() != 5 {
		t.Errorf("it exited with %d, want 5", got.GetExitCode())
	}
	c.waitLog(work, "stdout F ended")
	again := c.run(pod, forever)
	c.ready(again)
	_, err = c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	c.must(err)
	c.exited(web)
	c.endShim()
}

// endShim ends the test. It first unmounts the empty network namespace that gVisor keeps.
func (c *criNode) endShim() {
	c.t.Helper()
	c.Run("umount", "--all-targets", "/run/containerd/runsc/husk/null-netns")
	c.end()
}

// waitStats waits until the stats of a container show memory and CPU use.
func (c *criNode) waitStats(id string) {
	c.t.Helper()
	node.Eventually(c.t, 20*time.Second, func() string {
		r, err := c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			return err.Error()
		}
		if memory := r.GetStats().GetMemory().GetWorkingSetBytes().GetValue(); memory == 0 {
			return "its memory use is 0"
		}
		if cpu := r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue(); cpu == 0 {
			return "its CPU time is 0"
		}
		return ""
	})
}

// TestShimKilled checks that when a pod's shim is killed, its containers exit with a message that
// says so and the pod can be removed. huskd is first running, then down.
func TestShimKilled(t *testing.T) {
	c := startShim(t)
	for _, down := range []bool{false, true} {
		pod, _ := c.runShimPod()
		id := c.run(pod, forever)
		c.ready(id)
		if down {
			c.huskd.Stop()
		}
		if killed := c.killShims(pod); killed != 1 {
			t.Fatalf("killed %d shims of the pod, want 1", killed)
		}
		if down {
			c.restart()
		}
		st := c.exited(id)
		if st.GetExitCode() != 255 || !strings.Contains(st.GetMessage(), "was killed") {
			t.Errorf("it exited with %d, %q", st.GetExitCode(), st.GetMessage())
		}
		node.Eventually(t, 20*time.Second, func() string {
			r, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil || r.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Sprintf("the sandbox is %v %v", r.GetStatus().GetState(), err)
			}
			return ""
		})
	}
	c.endShim()
}

// killShims kills the shims of a pod and returns their number.
func (c *criNode) killShims(pod string) (killed int) {
	c.t.Helper()
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		raw, _ := os.ReadFile(file)
		args := strings.Split(string(raw), "\x00")
		if !strings.HasPrefix(filepath.Base(args[0]), "containerd-shim-") || !strings.Contains(string(raw), "\x00"+pod+"\x00") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed
}

// TestShimCrash kills huskd at every state transition of a container that a shim runs, and where
// its sandbox's infra container is created and killed.
func TestShimCrash(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	config := filepath.Join(t.TempDir(), "huskd.toml")
	if err := os.WriteFile(config, []byte(shimConfig()), 0o644); err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, edge := range crashPoints() {
		of, _, _ := strings.Cut(edge, "#")
		state := strings.Split(of, "/")
		infra := state[0] == "sandbox" && (state[1] == string(sandboxstate.Starting) || state[1] == string(sandboxstate.Killing))
		if infra || state[0] == "container" && of == edge {
			list = append(list, edge)
		}
	}
	crashAtEach(t, strings.Replace(crashPod, "spec:", "spec:\n  runtimeClassName: "+shimHandler, 1), list, node.Flags("--config", config))
}
