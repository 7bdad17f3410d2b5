package daemon

import (
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	pluginregistrationv1 "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source/apiserver"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/registration"
	"github.com/huskd/husk/internal/deviceplugin"
	"github.com/huskd/husk/internal/pluginregistry"
)

// openDevices returns the manager of device plugins, or nil outside of a cluster.
func openDevices(d *daemon) *deviceplugin.Manager {
	if d.membership == nil {
		return nil
	}
	devices, bad := deviceplugin.Open(deviceplugin.Config{
		Dir: filepath.Join(d.cfg.KubeletDir, "device-plugins"), Journal: d.journal, Log: d.log,
		Changed: func() {
			if changed := d.membership.refresh.Load(); changed != nil {
				(*changed)()
			}
		},
	})
	for _, err := range bad {
		d.log.Error("a record was set aside", "error", err)
	}
	return devices
}

// startDevices connects the device plugins with the node and its pods.
func (m *membership) startDevices(self *registration.Node, pods *apiserver.Source, bound *cluster.Cache[*corev1.Pod]) {
	changed := func() {
		self.Nudge()
		pods.Nudge()
	}
	m.refresh.Store(&changed)
	m.d.devices.SetActive(func() map[string]bool {
		active := map[string]bool{}
		for _, p := range bound.All() { // one that the agent doesn't have yet may be admitted
			active[string(p.UID)] = p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
		}
		for _, p := range m.d.agent.List() {
			active[string(p.Manifest.UID)] = !p.Finished || p.Want == podplan.Run && p.Status.Phase != podplan.PhaseSucceeded && p.Status.Phase != podplan.PhaseFailed
		}
		return active
	})
}

// pluginRegistry returns the registry of the plugins that offer themselves in a directory. Only
// device plugins are used.
func (m *membership) pluginRegistry() *pluginregistry.Registry {
	return &pluginregistry.Registry{
		Dir: filepath.Join(m.d.cfg.KubeletDir, "plugins_registry"), Log: m.d.log,
		Handlers: map[string]pluginregistry.Handler{pluginregistrationv1.DevicePlugin: {
			Add: func(info *pluginregistrationv1.PluginInfo, socket string) error {
				if !slices.Contains(info.GetSupportedVersions(), pluginapi.Version) {
					return fmt.Errorf("it supports the versions %.80q of the device plugin API: use %s", info.GetSupportedVersions(), pluginapi.Version)
				}
				return m.d.devices.Connect(info.GetName(), socket, nil)
			},
			Remove: m.d.devices.Disconnect,
		}},
	}
}
