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

// boxed is the handler of the shim that is tested.
const boxed = "boxed"

// shimConfig is the configuration of a handler with the shim of Debian's
// containerd, or the one that the variables name: make test-gvisor has gVisor's.
func shimConfig() string {
	path, config := os.Getenv("HUSK_TEST_SHIM"), os.Getenv("HUSK_TEST_SHIM_CONFIG")
	if path == "" {
		path = "/usr/bin/containerd-shim-runc-v2"
	}
	return fmt.Sprintf("[runtimes.%s]\ntype = \"shim\"\npath = %q\nconfig = %q\n", boxed, path, config)
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

// restart starts huskd again after it was stopped or killed.
func (c *criNode) restart() {
	c.t.Helper()
	c.huskd = c.Huskd(node.Flags("--config", filepath.Join(c.Dir, "huskd.toml")))
	c.connect()
}

// box runs a pod with the handler and returns its ID and address.
func (c *criNode) box() (id, ip string) {
	c.t.Helper()
	r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: boxed})
	c.must(err)
	st, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: r.GetPodSandboxId()})
	c.must(err)
	if got := st.GetStatus().GetRuntimeHandler(); got != boxed {
		c.t.Errorf("its handler is %q", got)
	}
	return r.GetPodSandboxId(), st.GetStatus().GetNetwork().GetIp()
}

// log returns what a container has written, without the times.
func (c *criNode) log(id string) string {
	c.t.Helper()
	return c.readLog(c.Path(c.status(id).GetLogPath()))
}

// readLog does the same for the log file at path, without asking huskd.
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

// says waits until a container's log has a line.
func (c *criNode) says(id, line string) {
	c.t.Helper()
	node.Eventually(c.t, 20*time.Second, func() string {
		if got := c.log(id); !strings.Contains(got, line+"\n") {
			return fmt.Sprintf("its log has %q, not %q", got, line)
		}
		return ""
	})
}

// answers waits until a pod's web server does.
func (c *criNode) answers(ip string) {
	c.t.Helper()
	if body := mustGet(c.t, c.Net(), net.JoinHostPort(ip, "80")); body == "" {
		c.t.Errorf("%s answers with nothing", ip)
	}
}

// TestShim is the life of pods whose runtime is a shim.
func TestShim(t *testing.T) {
	c := startShim(t)
	st, err := c.Status(c.ctx, &runtimeapi.StatusRequest{})
	c.must(err)
	var names []string
	for _, h := range st.GetRuntimeHandlers() {
		names = append(names, h.GetName())
	}
	if !strings.Contains(strings.Join(names, " "), boxed) {
		t.Fatalf("the handlers are %q", names)
	}
	pod, ip := c.box()
	web := c.run(pod, "", func(config *runtimeapi.ContainerConfig) { config.Command = nil })
	c.answers(ip)
	work := c.run(pod, "echo out; echo err >&2; while :; do date +%s >/tmp/now; sleep 0.2; done & trap 'echo ended; exit 5' TERM; touch /tmp/ready; read -r line; while :; do sleep 0.1; done")
	c.says(work, "stdout F out")
	c.says(work, "stderr F err")
	if got := c.sh(work, "wget -qO- http://127.0.0.1/ | wc -c"); got == "0" {
		t.Error("the pod's containers don't share its network")
	}
	c.ready(work)
	c.measured(web)

	early := c.run(pod, "touch /tmp/ready; while test ! -e /tmp/go; do sleep 0.1; done; sleep 1; echo last words; exit 7")
	c.ready(early)
	log := c.Path(c.status(early).GetLogPath())
	c.sh(early, "touch /tmp/go")
	c.huskd.Stop()
	node.Eventually(t, 20*time.Second, func() string { // the container ends while huskd is down
		if got := c.readLog(log); !strings.Contains(got, "last words") {
			return fmt.Sprintf("its log has %q", got)
		}
		return ""
	})
	c.restart()
	if got := c.exited(early); got.GetExitCode() != 7 {
		t.Errorf("it ended with %d while huskd was away, want 7", got.GetExitCode())
	}
	c.says(early, "stdout F last words")
	c.answers(ip)
	if got := c.sh(work, "echo again"); got != "again" {
		t.Errorf("after the restart: %q", got)
	}
	c.huskd.Kill()
	c.restart()
	_, err = c.StopContainer(c.ctx, &runtimeapi.StopContainerRequest{ContainerId: work, Timeout: 20})
	c.must(err)
	if got := c.exited(work); got.GetExitCode() != 5 {
		t.Errorf("it ended with %d, want 5", got.GetExitCode())
	}
	c.says(work, "stdout F ended")
	again := c.run(pod, forever)
	c.ready(again)
	_, err = c.StopPodSandbox(c.ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod})
	c.must(err)
	c.exited(web)
	c.unbox()
}

// unbox ends the test. gVisor keeps an empty network namespace for itself.
func (c *criNode) unbox() {
	c.t.Helper()
	c.Run("umount", "--all-targets", "/run/containerd/runsc/husk/null-netns")
	c.end()
}

// measured waits until a container's use is known.
func (c *criNode) measured(id string) {
	c.t.Helper()
	node.Eventually(c.t, 20*time.Second, func() string {
		r, err := c.ContainerStats(c.ctx, &runtimeapi.ContainerStatsRequest{ContainerId: id})
		if err != nil {
			return err.Error()
		}
		if memory := r.GetStats().GetMemory().GetWorkingSetBytes().GetValue(); memory == 0 {
			return "it uses no memory"
		}
		if cpu := r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue(); cpu == 0 {
			return "it uses no processor"
		}
		return ""
	})
}

// TestShimKilled: when a pod's shim is killed its containers have ended, for
// a reason that says so, and the pod can be removed.
func TestShimKilled(t *testing.T) {
	c := startShim(t)
	for _, away := range []bool{false, true} {
		pod, _ := c.box()
		id := c.run(pod, forever)
		c.ready(id)
		if away {
			c.huskd.Stop()
		}
		if killed := c.killShims(pod); killed != 1 {
			t.Fatalf("%d shims of one pod", killed)
		}
		if away {
			c.restart()
		}
		st := c.exited(id)
		if st.GetExitCode() != 255 || !strings.Contains(st.GetMessage(), "was killed") {
			t.Errorf("it ended with %d, %q", st.GetExitCode(), st.GetMessage())
		}
		node.Eventually(t, 20*time.Second, func() string {
			r, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pod})
			if err != nil || r.GetStatus().GetState() != runtimeapi.PodSandboxState_SANDBOX_NOTREADY {
				return fmt.Sprintf("the sandbox is %v %v", r.GetStatus().GetState(), err)
			}
			return ""
		})
	}
	c.unbox()
}

// killShims kills the shims of a pod and returns how many there were.
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

// TestShimCrash kills huskd at the edges of the life of a container that a shim
// runs, and where its sandbox's infra container is made and ended.
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
	crashAtEach(t, strings.Replace(crashPod, "spec:", "spec:\n  runtimeClassName: "+boxed, 1), list, node.Flags("--config", config))
}
