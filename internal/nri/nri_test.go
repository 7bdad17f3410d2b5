package nri

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a fake Containers, without processes.
type world struct {
	mu         sync.Mutex
	containers []container.Status
}

func (w *world) add(n int) container.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	st := container.Status{ID: fmt.Sprintf("c%d", n), Sandbox: "p", State: containerstate.Created, Config: &runtimeapi.ContainerConfig{}}
	w.containers = append(w.containers, st)
	return st
}

type sandboxes struct{}

var onePod = sandbox.Status{ID: "p", State: sandboxstate.Ready, Config: &runtimeapi.PodSandboxConfig{}}

func (sandboxes) Get(string) (sandbox.Status, error)               { return onePod, nil }
func (sandboxes) List() []sandbox.Status                           { return []sandbox.Status{onePod} }
func (sandboxes) Files(sandbox.Status) (f sandbox.Files)           { return f }
func (sandboxes) Cgroup(sandbox.Status) string                     { return "/p" }
func (w *world) Spec(string) json.RawMessage                       { return nil }
func (w *world) Stop(context.Context, string, time.Duration) error { return nil }
func (w *world) Limit(context.Context, string, *runtimeapi.LinuxContainerResources) error {
	return nil
}

func (w *world) List(string) []container.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.containers)
}

// serve starts a Relay for w.
func serve(t testing.TB, w *world, log io.Writer) *Relay {
	t.Helper()
	r, err := New(Config{Socket: filepath.Join(t.TempDir(), "nri.sock"), Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(sandboxes{}, w); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// slow is a plugin whose Synchronize blocks until look is closed.
type slow struct {
	looking, look chan struct{}

	mu   sync.Mutex
	seen []string
}

func (s *slow) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	close(s.looking)
	<-s.look
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range containers {
		s.seen = append(s.seen, c.GetId())
	}
	return nil, nil
}

func (s *slow) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, c.GetId())
	return nil, nil, nil
}

// TestNothingIsLostWhileAPluginRegisters checks that a plugin sees each container once,
// whether that is created before, during or after its registration.
func TestNothingIsLostWhileAPluginRegisters(t *testing.T) {
	w := &world{}
	r := serve(t, w, io.Discard)
	create := func(n int) {
		spec := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		if _, err := r.Hooks().Create(t.Context(), w.add(n), spec); err != nil {
			t.Error(err)
		}
	}
	for n := range 3 {
		create(n)
	}
	p := &slow{looking: make(chan struct{}), look: make(chan struct{})}
	s, err := stub.New(p, stub.WithPluginName("slow"), stub.WithPluginIdx("10"), stub.WithSocketPath(r.cfg.Socket), stub.WithLogger(logger{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		s.Stop()
		s.Wait()
	}()
	<-p.looking
	var during sync.WaitGroup
	for n := 3; n < 6; n++ {
		during.Go(func() { create(n) })
	}
	close(p.look)
	during.Wait()
	create(6)
	slices.Sort(p.seen)
	if got := strings.Join(p.seen, " "); got != "c0 c1 c2 c3 c4 c5 c6" {
		t.Errorf("the plugin saw %s", got)
	}
}

func TestChangesOfOneContainerRunInOrder(t *testing.T) {
	t.Parallel()
	c := changes{last: map[string]chan struct{}{}}
	var mu sync.Mutex
	var made []int
	var done []<-chan error
	blocked := make(chan struct{})
	for n := range 20 {
		done = append(done, c.add("a", func() error {
			<-blocked
			mu.Lock()
			defer mu.Unlock()
			made = append(made, n)
			return nil
		}))
	}
	failed := errors.New("failed")
	if err := <-c.add("b", func() error { return failed }); !errors.Is(err, failed) {
		t.Errorf("change of another container: %v", err)
	}
	close(blocked)
	for _, d := range done {
		<-d
	}
	if !slices.IsSorted(made) || len(made) != 20 {
		t.Errorf("the changes ran in the order %v", made)
	}
}

// TestSocketInUse checks that another runtime's socket is left alone.
func TestSocketInUse(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	other, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var log bytes.Buffer
	r, err := New(Config{Socket: socket, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(sandboxes{}, &world{}); err != nil {
		t.Fatal(err)
	}
	r.Stop()
	if !strings.Contains(log.String(), "another runtime has the socket") {
		t.Errorf("log: %s", log.String())
	}
	if conn, err := net.Dial("unix", socket); err != nil {
		t.Errorf("the other's socket: %v", err)
	} else {
		_ = conn.Close()
	}
}

// TestBadPluginDirectory checks that plugins of a directory with a bad file are not started.
func TestBadPluginDirectory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := slog.New(slog.DiscardHandler)
	for name, mode := range map[string]os.FileMode{"README": 0o644, "10-good": 0o755} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o755); err != nil {
		t.Fatal(err)
	}
	if got := usable(dir, log); got != dir {
		t.Errorf("a good directory: %q", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "plugin"), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got := usable(dir, log); got != "" {
		t.Errorf("a bad name: %q", got)
	}
	if got := usable(filepath.Join(dir, "plugin"), log); got != "" {
		t.Errorf("a file: %q", got)
	}
	if got := usable(filepath.Join(dir, "none"), log); got == "" {
		t.Error("a missing directory is not usable")
	}
}

// TestRequiredPluginsCantRegister checks that no container is created without required
// plugins.
func TestRequiredPluginsCantRegister(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, required := range [][]string{nil, {"mine"}} {
		r, err := New(Config{Socket: filepath.Join(blocked, "nri.sock"), Required: required, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		w := &world{}
		if err := r.Start(sandboxes{}, w); err == nil {
			t.Error("Start succeeded with a socket below a file")
		}
		spec := &specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
		if _, err := r.Hooks().Create(t.Context(), w.add(1), spec); (err == nil) != (required == nil) {
			t.Errorf("required %q: %v", required, err)
		}
	}
}

// TestStopAndRemoveAreReportedOnce checks that a stop and a removal are reported once, and
// only to plugins that know the container.
func TestStopAndRemoveAreReportedOnce(t *testing.T) {
	t.Parallel()
	a := announcements{stopped: map[string]bool{}}
	if a.markStopped("a") || a.forget("a") {
		t.Error("an unknown container is reported")
	}
	a.add("a")
	if !a.markStopped("a") || a.markStopped("a") {
		t.Error("the stop is not reported exactly once")
	}
	if !a.forget("a") || a.forget("a") || a.markStopped("a") {
		t.Error("the removal is not reported exactly once")
	}
}

// BenchmarkNoPlugin measures the cost of a container's lifecycle events without plugins.
func BenchmarkNoPlugin(b *testing.B) {
	w := &world{}
	r := serve(b, w, io.Discard)
	st, spec, ctx := w.add(1), &specs.Spec{}, context.Background()
	hooks := r.Hooks()
	b.ReportAllocs()
	for b.Loop() {
		_, _ = hooks.Create(ctx, st, spec)
		for _, e := range []container.Event{container.AfterCreate, container.BeforeStart, container.AfterStart, container.AfterStop, container.BeforeRemove} {
			_ = hooks.Tell(ctx, e, st)
		}
	}
}
