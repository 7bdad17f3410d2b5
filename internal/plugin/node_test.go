package plugin

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/plugin/conflist"
)

// TestNode runs all operations in the node's own network, which huskd keeps open.
func TestNode(t *testing.T) {
	l := newLab(t)
	cfg := network.Config{
		Instance: "be0f", Dir: filepath.Join(l.dir, "journal"), Netns: l.node, Subnets: []netip.Prefix{netip.MustParsePrefix("10.88.0.0/24")},
		Masquerade: true, Log: slog.New(slog.DiscardHandler),
	}
	open := func() *network.Network {
		n, err := network.Open(t.Context(), cfg)
		must(t, err)
		must(t, n.Reconcile(t.Context(), nil))
		l.plugin.Node = n.External()
		return n
	}
	n := open()
	conf := map[string]any{"cniVersion": "1.1.0", "name": "husk", "type": Type, "network": Node, "daemon": "/run/husk/husk.sock"}
	with := func(key string, value any) map[string]any {
		return map[string]any{"cniVersion": "1.1.0", "name": "husk", "type": Type, "network": Node, "daemon": "/run/husk/husk.sock", key: value}
	}
	_, err := l.call(l.args(Status, "", ""), conf)
	must(t, err)
	ns := l.namespace("pod")
	out, err := l.call(l.args(Add, "pod", ns), conf)
	must(t, err)
	var r current.Result
	must(t, json.Unmarshal(out, &r))
	if len(r.IPs) != 1 || !cfg.Subnets[0].Contains(netip.MustParseAddr(r.IPs[0].Address.IP.String())) {
		t.Errorf("result %s", out)
	}
	if _, err := l.run(ns, "ping", "-c1", "-W5", "-n", other4); err != nil {
		t.Error(err)
	}

	must(t, n.Close())
	n = open()
	_, err = l.call(l.args(Check, "pod", ns), with("prevResult", json.RawMessage(out)))
	must(t, err)
	_, err = l.call(l.args(GC, "", ""), with("cni.dev/valid-attachments", []types.GCAttachment{{ContainerID: "pod", IfName: "eth0"}}))
	must(t, err)
	_, err = l.call(l.args(Check, "pod", ns), conf)
	must(t, err)
	for range 2 {
		_, err = l.call(l.args(Del, "pod", ""), conf)
		must(t, err)
	}
	if code, msg := refused(t, func() error { _, err := l.call(l.args(Check, "pod", ns), conf); return err }()); code != types.ErrUnknownContainer {
		t.Errorf("CHECK after DEL: %d %s", code, msg)
	}

	for key, code := range map[string]uint{"subnet": types.ErrInvalidNetworkConfig, "mtu": types.ErrInvalidNetworkConfig, "network": types.ErrInvalidNetworkConfig} {
		if got, msg := refused(t, func() error {
			_, err := l.call(l.args(Add, "pod", ns), with(key, map[string]any{"subnet": "10.0.0.0/8", "mtu": 1400, "network": "nodes"}[key]))
			return err
		}()); got != code {
			t.Errorf("%s: %d %s", key, got, msg)
		}
	}
	if _, err := n.Settings(); err != nil {
		t.Error(err)
	}
	must(t, n.Close())
	l.plugin.Node = nil
	if code, msg := refused(t, func() error { _, err := l.call(l.args(Del, "pod", ""), conf); return err }()); code != types.ErrInvalidNetworkConfig {
		t.Errorf("without huskd: %d %s", code, msg)
	}
}

// TestConfList checks that a runtime accepts what huskd writes, whatever its version.
func TestConfList(t *testing.T) {
	text, err := conflist.Text(network.Name, "/run/husk/husk.sock")
	must(t, err)
	list, err := libcni.ConfListFromBytes(text)
	must(t, err)
	if list.Name != network.Name || list.CNIVersion != "1.1.0" || list.Plugins[0].Network.Type != Type {
		t.Errorf("got %+v", list)
	}
	args := Args{Command: Add, ContainerID: "pod", Netns: "/run/netns/pod", IfName: "eth0"}
	for _, version := range []string{"1.0.0", "1.1.0"} {
		var plugin map[string]any
		must(t, json.Unmarshal(list.Plugins[0].Bytes, &plugin))
		plugin["name"], plugin["cniVersion"] = list.Name, version
		stdin, err := json.Marshal(plugin)
		must(t, err)
		if _, err := parse(stdin, args); err != nil {
			t.Error(err)
		}
	}
}
