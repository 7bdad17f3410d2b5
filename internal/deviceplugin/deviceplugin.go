// Package deviceplugin manages the devices of the kubelet's device plugins, such as GPUs: which
// there are, which pod has which, and what a container needs to use its own.
//
// The plugins register at a socket, as with the kubelet. A pod keeps its devices over a restart of
// huskd: they are in the journal.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
)

// forgetTime is how long the node keeps a resource without devices after its plugin has ended, as
// with the kubelet. A plugin that is updated comes back within it.
const forgetTime = 5 * time.Minute

// Config configures a Manager.
type Config struct {
	// Dir is the directory of the plugins' sockets.
	Dir     string
	Journal *journal.Journal
	// Changed is called when the resources have changed or Admit has decided. It must not block.
	Changed func()
	Log     *slog.Logger
}

// Manager knows the devices of the node.
type Manager struct {
	cfg     Config
	pods    journal.Table[allocation] // by UID
	names   journal.Table[struct{}]   // by the name of the resource
	group   sync.WaitGroup
	closing context.Context
	close   context.CancelFunc

	// Invariant: mu guards the fields below.
	mu        sync.Mutex
	active    func() map[string]bool
	resources map[string]*pool
	allocated map[string]allocation // by the pod's UID
	deciding  map[string]*decision  // likewise
}

// pool is the devices of one resource.
type pool struct {
	plugin  *plugin         // nil if there is none at the moment
	healthy map[string]bool // by the device's ID
	ended   time.Time       // when the plugin ended, if it did
	gone    bool            // the node no longer has the resource
}

// plugin is a connection to a device plugin.
type plugin struct {
	pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
	end     context.CancelFunc
}

// Open returns a manager with the recorded allocations, and the errors of records that can't be
// read. No plugin is connected yet.
func Open(cfg Config) (*Manager, []error) {
	m := &Manager{
		cfg: cfg, pods: journal.NewTable[allocation](cfg.Journal, "devices"), names: journal.NewTable[struct{}](cfg.Journal, "deviceresource"),
		resources: map[string]*pool{}, allocated: map[string]allocation{}, deciding: map[string]*decision{},
	}
	m.closing, m.close = context.WithCancel(context.Background())
	bad := m.names.Load(func(name string, _ struct{}) error {
		m.resources[name] = &pool{ended: time.Now()}
		return nil
	})
	return m, append(bad, m.pods.Load(func(uid string, a allocation) error {
		m.allocated[uid] = a
		return nil
	})...)
}

// Close ends the connections to the plugins.
func (m *Manager) Close() {
	m.close()
	m.group.Wait()
}

// Resources returns the resources of the plugins: how many devices there are and how many of them
// are healthy. The node no longer has those in gone.
func (m *Manager) Resources() (capacity, allocatable corev1.ResourceList, gone []corev1.ResourceName) {
	m.sweep()
	m.mu.Lock()
	defer m.mu.Unlock()
	capacity, allocatable = corev1.ResourceList{}, corev1.ResourceList{}
	for name, p := range m.resources {
		if p.plugin == nil && !p.gone && time.Since(p.ended) > forgetTime {
			if err := m.names.Delete(name); err != nil {
				m.cfg.Log.Error("device plugins: a resource is kept", "resource", name, "error", err)
			}
			p.gone = true
		}
		if p.gone {
			gone = append(gone, corev1.ResourceName(name))
			continue
		}
		healthy := 0
		for _, is := range p.healthy {
			if is {
				healthy++
			}
		}
		capacity[corev1.ResourceName(name)] = *resource.NewQuantity(int64(len(p.healthy)), resource.DecimalSI)
		allocatable[corev1.ResourceName(name)] = *resource.NewQuantity(int64(healthy), resource.DecimalSI)
	}
	return capacity, allocatable, gone
}

// Connect connects to the plugin of a resource at a socket. It replaces an earlier plugin. If
// options is nil, the plugin is asked for them.
func (m *Manager) Connect(name, socket string, options *pluginapi.DevicePluginOptions) error {
	if !manifest.IsExtended(corev1.ResourceName(name)) {
		return fmt.Errorf("%.80q is not the name of an extended resource, such as example.com/gpu", name)
	}
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(m.closing)
	p := &plugin{DevicePluginClient: pluginapi.NewDevicePluginClient(conn), options: options, end: cancel}
	fail := func(err error) error {
		cancel()
		return errors.Join(err, conn.Close())
	}
	if options == nil {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		defer cancel()
		if p.options, err = p.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
			return fail(fmt.Errorf("the plugin of %s at %s: %w", name, socket, err))
		}
	}
	if err := m.names.Put(name, struct{}{}); err != nil {
		return fail(err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	former := m.resources[name]
	if former != nil && former.plugin != nil {
		former.plugin.end()
	}
	m.resources[name] = &pool{plugin: p}
	m.cfg.Log.Info("device plugins: a plugin has registered", "resource", name, "socket", socket)
	m.group.Go(func() {
		err := m.follow(ctx, name, p)
		cancel()
		_ = conn.Close()
		m.ended(name, p, err)
	})
	return nil
}

// Disconnect ends the connection to the plugin of a resource.
func (m *Manager) Disconnect(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if p := m.resources[name]; p != nil && p.plugin != nil {
		p.plugin.end()
	}
}

// follow takes over the plugin's devices until it ends.
func (m *Manager) follow(ctx context.Context, name string, p *plugin) error {
	stream, err := p.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return err
		}
		healthy := map[string]bool{}
		for _, d := range list.GetDevices() {
			healthy[d.GetID()] = d.GetHealth() == pluginapi.Healthy
		}
		m.mu.Lock()
		if pool := m.resources[name]; pool.plugin == p {
			pool.healthy = healthy
		}
		m.mu.Unlock()
		m.cfg.Changed()
	}
}

// ended notes that a plugin has ended: none of its devices can be given to a pod.
func (m *Manager) ended(name string, p *plugin, err error) {
	m.mu.Lock()
	pool := m.resources[name]
	current := pool.plugin == p
	if current {
		pool.plugin, pool.ended = nil, time.Now()
		for id := range pool.healthy {
			pool.healthy[id] = false
		}
	}
	m.mu.Unlock()
	if current && m.closing.Err() == nil {
		m.cfg.Log.Warn("device plugins: a plugin has ended", "resource", name, "error", err)
		m.cfg.Changed()
	}
}
