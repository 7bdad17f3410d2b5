package deviceplugin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// How long a plugin may take.
const (
	askTime      = 10 * time.Second
	allocateTime = time.Minute
	preStartTime = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// allocation is the devices of a pod, by container and resource.
type allocation map[string]map[string]devices

// devices are those of one resource that a container has.
type devices struct {
	IDs []string `json:"ids"`
	// Response is what the container needs for them: an encoded ContainerAllocateResponse.
	Response []byte `json:"response"`
}

// uses reports whether a device of the resource is allocated.
func (a allocation) uses(resource, id string) bool {
	for _, of := range a {
		if slices.Contains(of[resource].IDs, id) {
			return true
		}
	}
	return false
}

// decision is an allocation that is under way.
type decision struct {
	made chan struct{} // closed when err is final
	err  error
	// got are the devices so far. Invariant: mu of the manager guards it.
	got allocation
}

// SetActive sets the function that returns the UIDs of the pods that may use devices. The devices
// of other pods are free. Until it is set, no device is freed.
func (m *Manager) SetActive(active func() map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = active
}

// sweep frees the devices of pods that have ended.
func (m *Manager) sweep() {
	m.mu.Lock()
	active := m.active
	known := slices.Collect(maps.Keys(m.allocated))
	m.mu.Unlock()
	if active == nil || len(known) == 0 {
		return
	}
	now := active()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range known {
		if now[uid] {
			continue
		}
		if err := m.pods.Delete(uid); err != nil {
			m.cfg.Log.Error("device plugins: the devices of an ended pod are not freed", "pod", uid, "error", err)
			continue
		}
		delete(m.allocated, uid)
	}
}

// Admit allocates the pod's devices. It doesn't wait for the plugins: it returns false as long as
// that isn't decided, and calls Changed when it is. Pods without devices are admitted at once.
func (m *Manager) Admit(pod *corev1.Pod) (decided bool, err error) {
	d := m.begin(pod)
	if d == nil {
		return true, nil
	}
	select {
	case <-d.made:
		m.forget(pod, d)
		return true, d.err
	default:
		return false, nil
	}
}

// forget drops a failed decision, so that the next attempt decides again.
func (m *Manager) forget(pod *corev1.Pod, d *decision) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.deciding[string(pod.UID)] == d {
		delete(m.deciding, string(pod.UID))
	}
}

// begin starts the allocation of a pod's devices, or returns the one under way. It returns nil if
// the pod has its devices.
func (m *Manager) begin(pod *corev1.Pod) *decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	uid := string(pod.UID)
	if _, has := m.allocated[uid]; has || !m.concerns(pod) || m.closing.Err() != nil {
		return nil
	}
	if d := m.deciding[uid]; d != nil {
		return d
	}
	d := &decision{made: make(chan struct{}), got: allocation{}}
	m.deciding[uid] = d
	m.group.Go(func() {
		m.sweep()
		err := m.allocate(m.closing, pod, d)
		m.mu.Lock()
		if err == nil {
			err = m.pods.Put(uid, d.got)
		}
		if err == nil {
			m.allocated[uid] = d.got
			delete(m.deciding, uid)
		}
		d.err, d.got = err, nil
		m.mu.Unlock()
		close(d.made)
		m.cfg.Changed()
	})
	return d
}

// concerns reports whether a pod requests devices. The caller holds m.mu.
func (m *Manager) concerns(pod *corev1.Pod) bool {
	for c := range podspec.Containers(&pod.Spec) {
		if len(m.requested(c)) > 0 {
			return true
		}
	}
	return false
}

// requested returns how many devices a container requests, by resource. The caller holds m.mu.
func (m *Manager) requested(c *corev1.Container) map[string]int {
	out := map[string]int{}
	for name, q := range c.Resources.Limits {
		if p := m.resources[string(name)]; p != nil && !p.gone && q.Sign() > 0 {
			out[string(name)] = int(q.Value())
		}
	}
	return out
}

// allocate allocates the devices of all containers. Those of init containers that end are used
// again by the containers after them.
func (m *Manager) allocate(ctx context.Context, pod *corev1.Pod, d *decision) error {
	reusable := map[string][]string{} // by resource
	for i, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		ends := i < len(pod.Spec.InitContainers) && !podspec.IsSidecar(&c)
		m.mu.Lock()
		requested := m.requested(&c)
		m.mu.Unlock()
		for _, name := range slices.Sorted(maps.Keys(requested)) {
			p, ids, err := m.choose(ctx, name, requested[name], reusable[name], func(ids []string) {
				if d.got[c.Name] == nil {
					d.got[c.Name] = map[string]devices{}
				}
				d.got[c.Name][name] = devices{IDs: ids}
			})
			if err != nil {
				return err
			}
			reusable[name] = slices.DeleteFunc(reusable[name], func(id string) bool { return slices.Contains(ids, id) })
			if ends {
				reusable[name] = append(reusable[name], ids...)
			}
			response, err := p.allocate(ctx, ids)
			if err != nil {
				return fmt.Errorf("the device plugin of %s: %w", name, err)
			}
			m.mu.Lock()
			d.got[c.Name][name] = devices{ids, response}
			m.mu.Unlock()
		}
	}
	return nil
}

// choose reserves n devices for a container: reusable ones first, then those that the plugin
// prefers. It calls reserve with m.mu held.
func (m *Manager) choose(ctx context.Context, name string, n int, reusable []string, reserve func(ids []string)) (*plugin, []string, error) {
	m.mu.Lock()
	p, free := m.free(name, reusable)
	m.mu.Unlock()
	var preferred []string
	if must := reusable[:min(n, len(reusable))]; p != nil && p.options.GetGetPreferredAllocationAvailable() && n > len(must) && len(must)+len(free) > n {
		preferred = p.prefer(ctx, slices.Concat(must, free), must, n)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p, free = m.free(name, reusable) // others may have taken some meanwhile
	wanted := func(id string) int {
		if slices.Contains(preferred, id) {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(free, func(a, b string) int { return wanted(a) - wanted(b) })
	ids := slices.Concat(reusable, free)
	if len(ids) < n || p == nil {
		return nil, nil, fmt.Errorf("requested number of devices unavailable for %s. Requested: %d, Available: %d", name, n, len(ids))
	}
	ids = slices.Sorted(slices.Values(ids[:n]))
	reserve(ids)
	return p, ids, nil
}

// free returns the healthy devices of a resource that no pod has, apart from those in except, and
// the resource's plugin. The caller holds m.mu.
func (m *Manager) free(name string, except []string) (p *plugin, ids []string) {
	pool := m.resources[name]
	for id, healthy := range pool.healthy {
		used := slices.Contains(except, id)
		for _, a := range m.allocated {
			used = used || a.uses(name, id)
		}
		for _, d := range m.deciding {
			used = used || d.got.uses(name, id)
		}
		if healthy && !used {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return pool.plugin, ids
}

// prefer asks the plugin which of the available devices it would choose. It is only advice, so that
// an error is none.
func (p *plugin) prefer(ctx context.Context, available, must []string, n int) []string {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	response, err := p.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(n)},
	}})
	if err != nil || len(response.GetContainerResponses()) != 1 {
		return nil
	}
	return response.GetContainerResponses()[0].GetDeviceIDs()
}

func (p *plugin) allocate(ctx context.Context, ids []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateTime)
	defer cancel()
	response, err := p.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	if n := len(response.GetContainerResponses()); n != 1 {
		return nil, fmt.Errorf("it answered for %d containers instead of 1", n)
	}
	return proto.Marshal(response.GetContainerResponses()[0])
}

// Configure adds to a container's config what it needs to use its devices, right before the
// container is created. It allocates the pod's devices if Admit hasn't.
func (m *Manager) Configure(ctx context.Context, pod *corev1.Pod, config *runtimeapi.ContainerConfig) error {
	if d := m.begin(pod); d != nil {
		select {
		case <-d.made:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		m.forget(pod, d)
		if d.err != nil {
			return d.err
		}
	}
	m.mu.Lock()
	has := m.allocated[string(pod.UID)][config.GetMetadata().GetName()]
	plugins := map[string]*plugin{}
	for name := range has {
		if pool := m.resources[name]; pool != nil {
			plugins[name] = pool.plugin
		}
	}
	m.mu.Unlock()
	var envs []*runtimeapi.KeyValue
	var mounts []*runtimeapi.Mount
	for _, name := range slices.Sorted(maps.Keys(has)) {
		p := plugins[name]
		if p == nil {
			return fmt.Errorf("the container waits for the device plugin of %s, which must prepare its devices", name)
		}
		if p.options.GetPreStartRequired() {
			ctx, cancel := context.WithTimeout(ctx, preStartTime)
			_, err := p.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: has[name].IDs})
			cancel()
			if err != nil {
				return fmt.Errorf("the device plugin of %s: %w", name, err)
			}
		}
		var needs pluginapi.ContainerAllocateResponse
		if err := proto.Unmarshal(has[name].Response, &needs); err != nil {
			return fmt.Errorf("the devices of %s: %w", name, err)
		}
		for _, key := range slices.Sorted(maps.Keys(needs.GetEnvs())) {
			envs = append(envs, &runtimeapi.KeyValue{Key: key, Value: []byte(needs.GetEnvs()[key])})
		}
		for _, mount := range needs.GetMounts() {
			mounts = append(mounts, &runtimeapi.Mount{ContainerPath: mount.GetContainerPath(), HostPath: mount.GetHostPath(), Readonly: mount.GetReadOnly()})
		}
		for _, device := range needs.GetDevices() {
			config.Devices = append(config.Devices, &runtimeapi.Device{ContainerPath: device.GetContainerPath(), HostPath: device.GetHostPath(), Permissions: device.GetPermissions()})
		}
		for _, device := range needs.GetCdiDevices() {
			config.CDIDevices = append(config.CDIDevices, &runtimeapi.CDIDevice{Name: device.GetName()})
		}
		if config.Annotations == nil {
			config.Annotations = map[string]string{}
		}
		maps.Copy(config.Annotations, needs.GetAnnotations())
	}
	// What the pod sets itself comes later and wins, as with the kubelet.
	config.Envs, config.Mounts = append(envs, config.Envs...), append(mounts, config.Mounts...)
	return nil
}
