package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/node"
)

// handlersConfig has two handlers that work and one whose program is missing.
const handlersConfig = `
[runtimes.crun]
[runtimes.steady]
path = "/usr/sbin/runc"
[runtimes.gone]
path = "/opt/gone"
`

// startHandlers starts a node with handlersConfig. crun refuses the hybrid layout of cgroups, so v2
// is unmounted.
func startHandlers(t *testing.T) *criNode {
	t.Helper()
	hosttest.Root(t)
	n := node.New(t)
	if r := n.Run("umount", "/sys/fs/cgroup/unified"); r.Code != 0 && !strings.Contains(r.Stderr, "no mount point") {
		t.Fatal(r.Stderr)
	}
	serveRegistry(t, n)
	config := filepath.Join(n.Dir, "huskd.toml")
	if err := os.WriteFile(config, []byte(handlersConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	c := serveCRI(t, n, node.Flags("--config", config))
	c.pull(webImage)
	return c
}

// runtimeOf returns the name of the runtime whose state directory has a container.
func (c *criNode) runtimeOf(id string) string {
	c.t.Helper()
	found, _ := filepath.Glob(c.Path(filepath.Join(c.State, "monitor", "runtime", "*", id)))
	if len(found) != 1 {
		c.t.Fatalf("container %s has the state directories %q, want one", id, found)
	}
	return filepath.Base(filepath.Dir(found[0]))
}

func TestRuntimeHandlers(t *testing.T) {
	c := startHandlers(t)
	names := func() (list []string) {
		r, err := c.Status(c.ctx, &runtimeapi.StatusRequest{})
		c.must(err)
		for _, h := range r.GetRuntimeHandlers() {
			list = append(list, h.GetName())
		}
		return list
	}
	if got := strings.Join(names(), " "); got != " crun steady" {
		t.Errorf("handlers %q", got)
	}
	pods := map[string]string{}
	containers := map[string]string{}
	want := map[string]string{"": "crun", "crun": "crun", "steady": "runc"}
	for handler := range want {
		r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: handler})
		c.must(err)
		pods[handler] = r.GetPodSandboxId()
		containers[handler] = c.run(pods[handler], forever)
	}
	check := func(when string) {
		t.Helper()
		for handler, runtime := range want {
			c.ready(containers[handler])
			if got := c.runtimeOf(containers[handler]); got != runtime {
				t.Errorf("%s: handler %q: %s, want %s", when, handler, got, runtime)
			}
			st, err := c.PodSandboxStatus(c.ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: pods[handler], Verbose: true})
			c.must(err)
			if got := st.GetStatus().GetRuntimeHandler(); got != handler {
				t.Errorf("%s: status says handler %q, want %q", when, got, handler)
			}
			var info struct{ RuntimeHandler, RuntimeType string }
			c.must(json.Unmarshal([]byte(st.GetInfo()["info"]), &info))
			if info.RuntimeHandler != handler || info.RuntimeType != runtime {
				t.Errorf("%s: info says %+v, want %q of %s", when, info, handler, runtime)
			}
		}
	}
	check("before the restart")
	c.huskd.Kill()
	c.huskd = c.Huskd(node.Flags("--config", filepath.Join(c.Dir, "huskd.toml")))
	c.connect()
	check("after a restart")
	again := c.run(pods["steady"], forever)
	if got := c.runtimeOf(again); got != "runc" {
		t.Errorf("a container created after the restart runs with %s, want runc", got)
	}
	for handler, words := range map[string]string{
		"kata": `runtime handler "kata" is not known here: use crun, gone, steady, or none for the default`,
		"../x": `runtime handler "../x" is not known here`,
	} {
		_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: handler})
		fails(t, err, codes.InvalidArgument, words)
	}
	_, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: c.podConfig(), RuntimeHandler: "gone"})
	fails(t, err, codes.Unavailable, "runtime handler gone can't be used: /opt/gone: not installed")
	c.end()
}

const handlerManifest = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  runtimeClassName: HANDLER
  terminationGracePeriodSeconds: 0
  containers:
  - {name: web, image: registry.test/cri/web:1, imagePullPolicy: Never}
`

// TestManifestRuntimeClass checks that a manifest's runtimeClassName selects the handler.
func TestManifestRuntimeClass(t *testing.T) {
	c := startHandlers(t)
	manifest := func(name, handler string) string {
		path := filepath.Join(c.Dir, name+".yaml")
		c.must(os.WriteFile(path, []byte(strings.NewReplacer("NAME", name, "HANDLER", handler).Replace(handlerManifest)), 0o644))
		return path
	}
	if r := c.Husk("run", "--wait", manifest("good", "steady")); r.Code != 0 {
		t.Fatal(r)
	}
	if out := c.Husk("ps", "-o", "wide").Stdout; !strings.Contains(out, " steady ") {
		t.Errorf("ps doesn't show the handler:\n%s", out)
	}
	if out := c.Husk("inspect", "good").Stdout; !strings.Contains(out, `"RuntimeHandler": "steady"`) {
		t.Errorf("inspect doesn't show the handler:\n%s", out)
	}
	if r := c.Husk("run", "--wait", "--timeout", "2s", manifest("bad", "kata")); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, `runtime handler "kata" is not known here`) {
		t.Error(r)
	}
	for _, name := range []string{"good", "bad"} {
		if r := c.Husk("rm", "-f", name); r.Code != 0 {
			t.Error(r)
		}
	}
	c.end()
}
