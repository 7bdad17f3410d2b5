package cri

import (
	"encoding/json"

	"github.com/containernetworking/cni/libcni"
)

// Networks are those that pods are attached to, as crictl info shows them.
type Networks struct {
	Dirs    []string     `json:"PluginDirs"`
	ConfDir string       `json:"PluginConfDir"`
	Max     int          `json:"PluginMaxConfNum"`
	Prefix  string       // of the names of interfaces
	List    []Attachable `json:"Networks"`
	// Fault says why there is none, or not the one that is configured now.
	Fault string `json:"-"`
}

// Attachable is a network with the name of a pod's interface in it.
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

// NewAttachable returns a CNI network.
func NewAttachable(list *libcni.NetworkConfigList, ifName string) Attachable {
	out := Attachable{networkConfig{Name: list.Name, CNIVersion: list.CNIVersion, Source: string(list.Bytes)}, ifName}
	for _, p := range list.Plugins {
		plugin := pluginConfig{Source: string(p.Bytes)}
		plugin.Network.Type = p.Network.Type
		out.Config.Plugins = append(out.Config.Plugins, plugin)
	}
	return out
}

// inform adds the networks to what crictl info shows, by the names that tools
// read from containerd's.
func (n Networks) inform(info map[string]string) error {
	text, err := json.Marshal(n)
	info["cniconfig"], info["lastCNILoadStatus"] = string(text), "OK"
	if n.Fault != "" {
		info["lastCNILoadStatus"] = n.Fault
	}
	return err
}
