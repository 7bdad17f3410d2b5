package cri

import (
	"encoding/json"

	"github.com/containernetworking/cni/libcni"
)

// Networks are the networks that pods are attached to, as crictl info shows them.
type Networks struct {
	Dirs    []string     `json:"PluginDirs"`
	ConfDir string       `json:"PluginConfDir"`
	Max     int          `json:"PluginMaxConfNum"`
	Prefix  string       // of the interface names
	List    []Attachable `json:"Networks"`
	// Fault says why the configured networks aren't used, or is empty.
	Fault string `json:"-"`
}

// Attachable is a network with the name of the pods' interface in it.
type Attachable struct {
	Config networkConfig
	IFName string
}

type networkConfig struct {
	Name, CNIVersion string
	Plugins          []pluginConfig
	Source           string
}

type pluginConfig struct {
	Network struct {
		Type string `json:"type"`
	}
	Source string
}

// NewAttachable returns the CNI network list as an Attachable.
func NewAttachable(list *libcni.NetworkConfigList, ifName string) Attachable {
	out := Attachable{networkConfig{Name: list.Name, CNIVersion: list.CNIVersion, Source: string(list.Bytes)}, ifName}
	for _, p := range list.Plugins {
		plugin := pluginConfig{Source: string(p.Bytes)}
		plugin.Network.Type = p.Network.Type
		out.Config.Plugins = append(out.Config.Plugins, plugin)
	}
	return out
}

// addTo adds the networks to what crictl info shows, by containerd's names.
func (n Networks) addTo(info map[string]string) error {
	text, err := json.Marshal(n)
	info["cniconfig"], info["lastCNILoadStatus"] = string(text), "OK"
	if n.Fault != "" {
		info["lastCNILoadStatus"] = n.Fault
	}
	return err
}
