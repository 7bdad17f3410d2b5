package agent

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything here may take on a busy machine.
const patience = 30 * time.Second

// harness runs an agent with real owners. Its pods use the host's namespaces and images that don't
// exist, so that neither a network nor a runtime is ever called.
type harness struct {
	*Agent
	t       testing.TB
	dir     string
	journal *journal.Journal
	images  *image.Store
	cgroups cgroups
	verify  access.Policy
	network sandbox.Network // nil if no pod is attached to one
	closed  bool
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	return newHarnessWith(t, cgroups{})
}

func newHarnessWith(t testing.TB, c cgroups) *harness {
	t.Helper()
	hosttest.Root(t)
	h := &harness{t: t, dir: t.TempDir(), cgroups: c}
	h.start()
	t.Cleanup(h.close)
	return h
}

// handlers allows every runtime handler.
type handlers struct{}

func (handlers) Check(string, bool) error        { return nil }
func (handlers) RuntimeSandbox(string) bool      { return false }
func (handlers) Order(string) sandboxstate.Order { return "" }

// cgroups creates none. It returns stuck when it should remove one.
type cgroups struct{ stuck error }

func (cgroups) Parent(named string) (string, error)                      { return named, nil }
func (cgroups) Create(string, *runtimeapi.LinuxContainerResources) error { return nil }
func (cgroups) List() ([]string, error)                                  { return nil, nil }
func (c cgroups) Remove(string) error                                    { return c.stuck }

// kernel makes no namespaces and mounts.
type kernel struct{}

func (kernel) Pin(netns.Pins) error               { return nil }
func (kernel) Unpin(...string) error              { return nil }
func (kernel) Pinned(string) bool                 { return true }
func (kernel) Pins(string) ([]string, error)      { return nil, nil }
func (kernel) MountMemory(string, int, int) error { return nil }
func (kernel) Unmount(string) error               { return nil }

func (h *harness) start() {
	h.t.Helper()
	var err error
	var damage []journal.Damage
	if h.journal, damage, err = journal.Open(filepath.Join(h.dir, "journal")); err != nil || len(damage) > 0 {
		h.t.Fatal(err, damage)
	}
	log := slog.New(slog.DiscardHandler)
	if h.images, err = image.Open(h.t.Context(), image.Config{Root: filepath.Join(h.dir, "images"), Verify: h.verify, Log: log}); err != nil {
		h.t.Fatal(err)
	}
	facts := host.Facts{BootID: "this"}
	state := filepath.Join(h.dir, "state")
	containers := container.New(container.Config{Root: h.dir, State: state, Journal: h.journal, Host: facts, Log: log})
	sandboxes := sandbox.New(sandbox.Config{
		Instance: pod.InstanceOf(h.dir), State: state, Journal: h.journal, Containers: containers, Host: facts, Log: log,
		Handlers: handlers{}, Cgroups: h.cgroups, Network: h.network, Kernel: kernel{},
		Changed: func(st sandbox.Status) { h.SandboxChanged(st) },
	})
	h.Agent = New(Config{
		Journal: h.journal, Sandboxes: sandboxes, Containers: containers, Images: h.images,
		Volumes: volume.Volumes{Root: h.dir, State: state},
		Logs:    podlogs.Dirs{Root: filepath.Join(h.dir, "pods"), Pods: filepath.Join(h.dir, "logs"), Links: filepath.Join(h.dir, "links")},
		Node: func() criconfig.Node {
			return criconfig.Node{Name: "n", Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}, Memory: 1 << 30, Logs: filepath.Join(h.dir, "logs")}
		},
		Log: log,
	})
	bad := append(sandboxes.Load(), containers.Load()...)
	if err := sandboxes.Resume(); err != nil {
		bad = append(bad, err)
	}
	if bad = append(bad, h.Load()...); len(bad) > 0 {
		h.t.Fatal(bad)
	}
	h.closed = false
}

func (h *harness) close() {
	if h.closed {
		return
	}
	h.closed = true
	h.Close()
	h.cfg.Sandboxes.Close()
	h.cfg.Containers.Close()
	if err := h.images.Close(); err != nil {
		h.t.Error(err)
	}
	if err := h.journal.Close(); err != nil {
		h.t.Error(err)
	}
}

// restart closes the agent and its owners and opens them again.
func (h *harness) restart() {
	h.t.Helper()
	h.close()
	h.start()
}

func (h *harness) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// parse returns a pod of that name whose image doesn't exist. metadata is more of its metadata, as
// YAML.
func parse(t testing.TB, name, metadata string) *corev1.Pod {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s%s}\nspec: {hostNetwork: true, hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never}]}\n", name, metadata)
	pods, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return &pods.Pods[0]
}

func (h *harness) apply(p *corev1.Pod) {
	h.t.Helper()
	if _, _, err := h.Apply(h.ctx(), p, nil, "run"); err != nil {
		h.t.Fatal(err)
	}
}

// waitFor waits until ok returns true for the pod.
func (h *harness) waitFor(uid, what string, ok func(Pod) bool) Pod {
	h.t.Helper()
	for ctx := h.ctx(); ; {
		p, err := h.Get(uid)
		if err != nil {
			h.t.Fatalf("waiting for pod %s to be %s: %v", uid, what, err)
		}
		if ok(p) {
			return p
		}
		select {
		case <-p.Newer:
		case <-ctx.Done():
			h.t.Fatalf("pod %s is not %s: %+v", uid, what, p.Status)
		}
	}
}

// imageMissing reports whether a pod has a sandbox, and lacks only its image.
func imageMissing(p Pod) bool {
	st, _ := p.Sandbox()
	return st.State == "ready" && p.Status.Reason == "ErrImageNeverPull"
}

func (h *harness) names() string {
	var names []string
	for _, p := range h.List() {
		names = append(names, p.Manifest.Name)
	}
	return strings.Join(names, " ")
}

func TestRestartAdoptsPods(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	before, _ := h.waitFor(uid, "waiting for its image", imageMissing).Sandbox()
	h.restart()
	p, err := h.Get(uid)
	if st, ok := p.Sandbox(); err != nil || !ok || st.ID != before.ID || st.State != "ready" {
		t.Errorf("after a restart: %+v, %v", st, err)
	}
	if _, unchanged, err := h.Apply(h.ctx(), parse(t, "web", ""), nil, "run"); err != nil || !unchanged {
		t.Errorf("the same manifest after a restart: unchanged %t, %v", unchanged, err)
	}
	// A damaged journal can leave a sandbox without a record.
	if err := h.records.Delete(uid); err != nil {
		t.Fatal(err)
	}
	h.restart()
	for deadline := time.Now().Add(patience); len(h.cfg.Sandboxes.List()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a sandbox without a record is kept")
		}
	}
}

func podFrom(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	file, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n", Source: "run"})
	if err != nil {
		t.Fatal(err)
	}
	return &file.Pods[0]
}
