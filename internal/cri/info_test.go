package cri

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// TestInfoHasContainerdsNames: tools expect containerd's names and structure in these documents.
func TestInfoHasContainerdsNames(t *testing.T) {
	t.Parallel()
	list := &libcni.NetworkConfigList{Name: "n", CNIVersion: "1.0.0", Bytes: []byte("{}"),
		Plugins: []*libcni.PluginConfig{{Network: &types.PluginConf{Type: "bridge"}, Bytes: []byte(`{"type":"bridge"}`)}}}
	info := map[string]string{}
	networks := Networks{Dirs: []string{"/bin"}, ConfDir: "/conf", Max: 1, Prefix: "eth", List: []Attachable{NewAttachable(list, "eth0")}}
	if err := networks.addTo(info); err != nil {
		t.Fatal(err)
	}
	const want = `{"PluginDirs":["/bin"],"PluginConfDir":"/conf","PluginMaxConfNum":1,"Prefix":"eth","Networks":[{"Config":{"Name":"n","CNIVersion":"1.0.0",` +
		`"Plugins":[{"Network":{"type":"bridge"},"Source":"{\"type\":\"bridge\"}"}],"Source":"{}"},"IFName":"eth0"}]}`
	if info["cniconfig"] != want || info["lastCNILoadStatus"] != "OK" {
		t.Errorf("got %s, %s\nwant %s", info["cniconfig"], info["lastCNILoadStatus"], want)
	}
	if err := (Networks{Fault: "no file"}).addTo(info); err != nil || info["lastCNILoadStatus"] != "no file" {
		t.Errorf("with a fault: got %q, %v", info["lastCNILoadStatus"], err)
	}
	result, err := json.Marshal(cniResultOf(sandbox.Status{
		Attachment: pod.Attachment{Netns: "/run/netns/x"},
		Attached: []pod.Attached{{
			IfName: "eth0", MAC: "02:00:00:00:00:01", Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
			Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("fd00::2/64")},
		}},
	}))
	const interfaces = `{"Interfaces":{"eth0":{"IPConfigs":[{"IP":"10.0.0.2","Gateway":"10.0.0.1"},{"IP":"fd00::2","Gateway":""}],"Mac":"02:00:00:00:00:01","Sandbox":"/run/netns/x"}},"DNS":null,"Routes":null}`
	if err != nil || string(result) != interfaces {
		t.Errorf("got %s, %v\nwant %s", result, err, interfaces)
	}
}
