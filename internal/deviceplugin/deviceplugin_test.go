package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/huskd/husk/internal/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = 30 * time.Second
	gpu      = "example.com/gpu"
)

// eventually waits until check returns "".
func eventually(t *testing.T, check func() string) {
	t.Helper()
	problem := "unchecked"
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if problem = check(); problem == "" {
			return
		}
	}
	t.Fatal(problem)
}

// gpuPlugin is a device plugin that serves on a socket.
type gpuPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	lists chan []*pluginapi.Device

	mu       sync.Mutex
	broken   error
	prepared []string
}

func (p *gpuPlugin) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation prefers the last devices.
func (*gpuPlugin) GetPreferredAllocation(_ context.Context, request *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	r := request.GetContainerRequests()[0]
	ids := slices.Sorted(slices.Values(r.GetAvailableDeviceIDs()))
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: ids[len(ids)-int(r.GetAllocationSize()):]},
	}}, nil
}

func (p *gpuPlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ids := strings.Join(request.GetContainerRequests()[0].GetDevicesIds(), ",")
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{{
		Envs:        map[string]string{"GPUS": ids},
		Mounts:      []*pluginapi.Mount{{ContainerPath: "/lib/gpu", HostPath: "/opt/gpu", ReadOnly: true}},
		Devices:     []*pluginapi.DeviceSpec{{ContainerPath: "/dev/gpu", HostPath: "/dev/null", Permissions: "rw"}},
		Annotations: map[string]string{"gpus": ids},
		CdiDevices:  []*pluginapi.CDIDevice{{Name: "example.com/gpu=" + ids}},
	}}}, p.broken
}

func (p *gpuPlugin) PreStartContainer(_ context.Context, request *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prepared = append(p.prepared, strings.Join(request.GetDevicesIds(), ","))
	return &pluginapi.PreStartContainerResponse{}, nil
}

// devicesOf returns healthy devices, and unhealthy ones whose names begin with !.
func devicesOf(ids ...string) (out []*pluginapi.Device) {
	for _, id := range ids {
		d := &pluginapi.Device{ID: strings.TrimPrefix(id, "!"), Health: pluginapi.Healthy}
		if d.GetID() != id {
			d.Health = pluginapi.Unhealthy
		}
		out = append(out, d)
	}
	return out
}

// fixture is a manager that serves.
type fixture struct {
	*Manager
	t    *testing.T
	root string
	stop func()

	mu   sync.Mutex
	over map[string]bool // pods that have ended, by UID
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, root: t.TempDir(), over: map[string]bool{}}
	f.start()
	t.Cleanup(func() { f.stop() })
	return f
}

func (f *fixture) start() {
	f.t.Helper()
	j, damage, err := journal.Open(filepath.Join(f.root, "journal"))
	if err != nil || len(damage) > 0 {
		f.t.Fatal(err, damage)
	}
	var bad []error
	f.Manager, bad = Open(Config{Dir: filepath.Join(f.root, "d"), Journal: j, Changed: func() {}, Log: slog.New(slog.DiscardHandler)})
	if len(bad) > 0 {
		f.t.Fatal(bad)
	}
	f.SetActive(func() map[string]bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		active := map[string]bool{}
		for _, uid := range []string{"a", "b", "c", "d"} {
			active[uid] = !f.over[uid]
		}
		return active
	})
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- f.Serve(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			f.t.Error(err)
		}
		f.Manager.Close()
		if err := j.Close(); err != nil {
			f.t.Error(err)
		}
	})
	eventually(f.t, func() string {
		if _, err := os.Stat(filepath.Join(f.cfg.Dir, socketName)); err != nil {
			return err.Error()
		}
		return ""
	})
}

// register sends a registration and returns its error.
func (f *fixture) register(request *pluginapi.RegisterRequest) error {
	f.t.Helper()
	conn, err := grpc.NewClient("unix:"+filepath.Join(f.cfg.Dir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(f.t.Context(), request)
	return err
}

// plug starts a plugin with devices and registers it. The returned function ends it.
func (f *fixture) plug(ids ...string) (p *gpuPlugin, end func()) {
	f.t.Helper()
	p = &gpuPlugin{lists: make(chan []*pluginapi.Device, 1)}
	p.lists <- devicesOf(ids...)
	path := filepath.Join(f.cfg.Dir, "gpu.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		f.t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	end = sync.OnceFunc(server.Stop)
	f.t.Cleanup(end)
	options := &pluginapi.DevicePluginOptions{PreStartRequired: true, GetPreferredAllocationAvailable: true}
	if err := f.register(&pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: "gpu.sock", ResourceName: gpu, Options: options}); err != nil {
		f.t.Fatal(err)
	}
	return p, end
}

// awaitResources waits for the numbers of devices: capacity/allocatable, or "" without the
// resource.
func (f *fixture) awaitResources(want string) {
	f.t.Helper()
	eventually(f.t, func() string {
		capacity, allocatable, _ := f.Resources()
		got := ""
		if q, ok := capacity[gpu]; ok {
			a := allocatable[gpu]
			got = q.String() + "/" + a.String()
		}
		if got != want {
			return fmt.Sprintf("resources %q, want %q", got, want)
		}
		return ""
	})
}

// podWith returns a pod whose containers request these numbers of devices. Those in init end before
// the others start.
func podWith(uid string, init []int, requests ...int) *corev1.Pod {
	container := func(name string, n int) corev1.Container {
		c := corev1.Container{Name: name}
		if n > 0 {
			c.Resources.Limits = corev1.ResourceList{gpu: *resource.NewQuantity(int64(n), resource.DecimalSI)}
		}
		return c
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: uid, UID: types.UID(uid)}}
	for i, n := range init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(fmt.Sprint("init", i), n))
	}
	for i, n := range requests {
		pod.Spec.Containers = append(pod.Spec.Containers, container(fmt.Sprint("c", i), n))
	}
	return pod
}

// admit waits for the decision about a pod.
func (f *fixture) admit(pod *corev1.Pod) (err error) {
	f.t.Helper()
	eventually(f.t, func() string {
		var decided bool
		if decided, err = f.Admit(pod); !decided {
			return "not decided"
		}
		return ""
	})
	return err
}

// ids returns the devices that a container of the pod gets.
func (f *fixture) ids(pod *corev1.Pod, container string) string {
	f.t.Helper()
	config := &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: container}}
	if err := f.Configure(f.t.Context(), pod, config); err != nil {
		return err.Error()
	}
	return config.GetAnnotations()["gpus"]
}

func TestDevices(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.awaitResources("")
	p, end := f.plug("g1", "g2", "g3", "!g4")
	f.awaitResources("4/3")

	a := podWith("a", []int{2}, 1, 1, 0)
	if err := f.admit(a); err != nil {
		t.Fatal(err)
	}
	if got := []string{f.ids(a, "init0"), f.ids(a, "c0"), f.ids(a, "c1"), f.ids(a, "c2")}; !slices.Equal(got, []string{"g2,g3", "g2", "g3", ""}) {
		t.Errorf("%q: want the plugin's preference, and the init container's devices again", got)
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c0"}, Envs: []*runtimeapi.KeyValue{{Key: "GPUS", Value: []byte("mine")}},
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/data"}},
	}
	if err := f.Configure(t.Context(), a, config); err != nil {
		t.Fatal(err)
	}
	if len(config.GetEnvs()) != 2 || string(config.GetEnvs()[0].GetValue()) != "g2" || len(config.GetMounts()) != 2 || config.GetMounts()[0].GetHostPath() != "/opt/gpu" ||
		!config.GetMounts()[0].GetReadonly() || config.GetDevices()[0].GetPermissions() != "rw" || config.GetCDIDevices()[0].GetName() != "example.com/gpu=g2" {
		t.Errorf("%v", config)
	}
	p.mu.Lock()
	if !slices.Contains(p.prepared, "g2,g3") || !slices.Contains(p.prepared, "g3") {
		t.Errorf("prepared: %q", p.prepared)
	}
	p.mu.Unlock()

	// Only one healthy device is left.
	if err := f.admit(podWith("b", nil, 2)); err == nil || err.Error() != "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1" {
		t.Errorf("%v", err)
	}
	if err := f.admit(podWith("b", nil, 1)); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	p.broken = errors.New("out of order")
	p.mu.Unlock()
	p.lists <- devicesOf("g1", "g2", "g3", "g4")
	f.awaitResources("4/4")
	if err := f.admit(podWith("c", nil, 1)); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("%v", err)
	}

	// The devices of pods that have ended are free, but not while the plugin is away.
	f.mu.Lock()
	f.over["a"], f.over["b"] = true, true
	f.mu.Unlock()
	end()
	f.awaitResources("4/0")
	if err := f.admit(podWith("c", nil, 1)); err == nil || !strings.Contains(err.Error(), "Available: 0") {
		t.Errorf("%v", err)
	}
	f.plug("g1", "g2")
	f.awaitResources("2/2")
	if got := f.ids(podWith("d", nil, 2), "c0"); got != "g1,g2" {
		t.Errorf("a pod that wasn't asked for admission: %q", got)
	}
}

// TestRestart: a pod keeps its devices, which others don't get, and the node has no device until
// the plugin has registered again.
func TestRestart(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	_, end := f.plug("g1", "g2")
	f.awaitResources("2/2")
	a := podWith("a", nil, 1)
	if err := f.admit(a); err != nil || f.ids(a, "c0") != "g2" {
		t.Fatal(err)
	}
	end()
	f.stop()
	f.start()
	f.awaitResources("0/0")
	if got := f.ids(a, "c0"); !strings.Contains(got, "waits for the device plugin") {
		t.Errorf("without the plugin: %q", got)
	}
	f.plug("g1", "g2")
	f.awaitResources("2/2")
	if got := f.ids(a, "c0"); got != "g2" {
		t.Errorf("%q", got)
	}
	if err := f.admit(podWith("b", nil, 2)); err == nil {
		t.Error("another pod got the device")
	}
	f.Manager.mu.Lock()
	f.resources[gpu] = &pool{ended: time.Now().Add(-2 * forgetTime)}
	f.Manager.mu.Unlock()
	if capacity, _, gone := f.Resources(); len(capacity) > 0 || !slices.Equal(gone, []corev1.ResourceName{gpu}) {
		t.Errorf("long after its plugin the node has %v, and lost %v", capacity, gone)
	}
}

func TestRefusedRegistrations(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, c := range []struct{ version, endpoint, name, want string }{
		{"v1alpha", "x.sock", gpu, "use v1beta1"},
		{"v1beta1", "../x.sock", gpu, "is not the name of a socket"},
		{"v1beta1", "kubelet.sock", gpu, "is not the name of a socket"},
		{"v1beta1", "x.sock", "cpu", "is not the name of an extended resource"},
	} {
		err := f.register(&pluginapi.RegisterRequest{Version: c.version, Endpoint: c.endpoint, ResourceName: c.name})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	f.awaitResources("")
	// Another one doesn't take the socket away.
	other, _ := Open(Config{Dir: f.cfg.Dir, Journal: f.cfg.Journal, Log: f.cfg.Log, Changed: func() {}})
	defer other.Close()
	if _, err := other.listen(); err == nil || !strings.Contains(err.Error(), "stop it") {
		t.Errorf("%v", err)
	}
}
