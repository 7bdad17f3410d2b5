package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/plugin/conflist"
	"github.com/huskd/husk/test/node"
)

// runtime calls husk-cni on a node, as containerd and CRI-O do, with what huskd has configured.
type runtime struct {
	*machine
	cni *libcni.CNIConfig
}

func newRuntime(m *machine) *runtime {
	r := &runtime{machine: m}
	r.cni = libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(m.Binary("husk-cni"))}, filepath.Join(m.Dir, "cni-cache"), r)
	m.t.Cleanup(func() { _ = m.Command(context.Background(), "umount", "/run/netns").Run() }) // as `ip netns add` leaves it
	return r
}

// ExecPlugin runs a plugin on the node.
func (r *runtime) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	cmd := r.Command(ctx, path)
	var out, errs bytes.Buffer
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = env, bytes.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return out.Bytes(), err
	}
	told := &types.Error{}
	if json.Unmarshal(out.Bytes(), told) == nil && told.Msg != "" {
		return nil, told
	}
	return nil, fmt.Errorf("%s: %w: %s%s", path, err, out.String(), errs.String())
}

// FindInPath finds a plugin.
func (*runtime) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// Decode decodes the answer to VERSION.
func (*runtime) Decode(data []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(data)
}

func (r *runtime) file() string { return filepath.Join(r.CNI, "10-husk.conflist") }

// write writes the configuration of the network, where huskd doesn't, and returns it.
func (r *runtime) write() *libcni.NetworkConfigList {
	r.t.Helper()
	text, err := conflist.Text("husk", r.State+"/husk.sock")
	if err == nil {
		err = os.MkdirAll(r.CNI, 0o755)
	}
	if err == nil {
		err = os.WriteFile(r.file(), text, 0o600)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return r.configured()
}

// configured waits for huskd's configuration of the network.
func (r *runtime) configured() *libcni.NetworkConfigList {
	r.t.Helper()
	var list *libcni.NetworkConfigList
	node.Eventually(r.t, 30*time.Second, func() string {
		var err error
		if list, err = libcni.ConfListFromFile(r.file()); err != nil {
			return err.Error()
		}
		return ""
	})
	return list
}

func runtimeConf(name string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{
		ContainerID: name, NetNS: "/run/netns/" + name, IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", name}},
	}
}

// add attaches a pod that answers.
func (r *runtime) add(name string) {
	r.t.Helper()
	p := r.attach(runtimeConf(name))
	p.serve(r.t)
	r.pods = append(r.pods, p)
}

// attach makes a namespace, unless there is one, and attaches it.
func (r *runtime) attach(conf *libcni.RuntimeConf) *host {
	r.t.Helper()
	name := conf.ContainerID
	if r.Run("test", "-e", conf.NetNS).Code != 0 {
		r.Must("ip", "netns", "add", name)
		r.Must("ip", "-n", name, "link", "set", "lo", "up") // as runtimes do
	}
	got, err := r.cni.AddNetworkList(r.t.Context(), r.configured(), conf)
	if err != nil {
		r.t.Fatal(err)
	}
	result, err := current.NewResultFromResult(got)
	if err != nil {
		r.t.Fatal(err)
	}
	p := &host{name: name + " of " + r.Uplink.Name(), netns: r.Path(conf.NetNS)}
	for _, ip := range result.IPs {
		addr, _ := netip.AddrFromSlice(ip.Address.IP)
		p.addresses = append(p.addresses, addr.Unmap())
	}
	for _, i := range result.Interfaces {
		p.mtu = i.Mtu
	}
	return p
}

// remove detaches a pod and removes its namespace.
func (r *runtime) remove(name string) {
	r.t.Helper()
	r.detach(runtimeConf(name))
}

func (r *runtime) detach(conf *libcni.RuntimeConf) {
	r.t.Helper()
	if err := r.cni.DelNetworkList(r.t.Context(), r.configured(), conf); err != nil {
		r.t.Error(err)
	}
	r.Must("ip", "netns", "del", conf.ContainerID)
}

func code(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// TestNetworkOnly runs huskd as the network of other runtimes' pods on two nodes: its configuration
// appears once pods can reach each other, and pods keep their network while huskd is away.
func TestNetworkOnly(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	c := newCluster(t, "auto", "46", u.Segment(node.Media{}), u.Segment(node.Media{}))
	a, b := newRuntime(c.nodes[0]), newRuntime(c.nodes[1])
	c.write(b.machine) // a has no block yet
	for _, r := range []*runtime{a, b} {
		flags := r.flags
		r.flags = func(cmd *exec.Cmd) { flags(cmd); node.Flags("--network-only")(cmd) }
		r.huskd = r.Launch(r.flags)
	}
	a.serves()
	b.serves()
	list, ctx := b.configured(), t.Context()
	if err := a.cni.GetStatusNetworkList(ctx, list); code(err) != types.ErrPluginNotAvailable || !strings.Contains(err.Error(), "block") {
		t.Errorf("STATUS of a node without a block: %v", err)
	}
	if _, err := os.Stat(a.file()); err == nil {
		t.Error("a node without a block has a network")
	}
	c.write(a.machine, b.machine)
	a.configured()
	for _, r := range []*runtime{a, b} {
		if err := r.cni.GetStatusNetworkList(ctx, list); err != nil {
			t.Error(err)
		}
		r.add("first")
		r.add("second")
	}
	Reach(t, 30*time.Second, a.machine, b.machine)
	if got := a.MustHusk("net", "attachments"); !strings.Contains(got, "first") {
		t.Errorf("husk net:\n%s", got)
	}
	a.MustHusk("doctor")
	if r := a.Husk("ps"); r.Code == 0 || !strings.Contains(r.Stderr, "network-only") {
		t.Errorf("husk ps: %+v", r)
	}

	st := a.pods[0].streamTo(t, b.pods[0].address(false), 2*time.Millisecond)
	st.after(t, 100)
	a.huskd.Kill()
	if err := a.cni.GetStatusNetworkList(ctx, list); code(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS while huskd is away: %v", err)
	}
	if err := a.cni.DelNetworkList(ctx, list, runtimeConf("second")); code(err) != types.ErrTryAgainLater {
		t.Errorf("DEL while huskd is away: %v", err)
	}
	b.huskd.Stop()
	b.configured() // stays, as its pods do
	a.restart()
	b.restart()
	if sent, lost, _ := st.end(); lost > 0 || sent == 0 {
		t.Errorf("while huskd restarted: %d of %d packets lost", lost, sent)
	}
	Reach(t, 30*time.Second, a.machine, b.machine)
	for _, r := range []*runtime{a, b} {
		if err := r.cni.CheckNetworkList(ctx, list, runtimeConf("first")); err != nil {
			t.Error(err)
		}
		// The second pod ends while huskd is away, and its runtime doesn't repeat the DEL.
		r.huskd.Kill()
		r.Must("ip", "netns", "del", "second")
		r.restart()
		if got := r.MustHusk("net", "attachments"); strings.Contains(got, "second") || !strings.Contains(got, "first") {
			t.Errorf("husk net:\n%s", got)
		}
		r.remove("first")
		r.huskd.Stop()
		if _, err := os.Stat(r.file()); err == nil {
			t.Error("the configuration is left")
		}
		r.Must("umount", "/run/netns")
		r.NothingLeft()
	}
}

// TestBesideAnotherRuntime runs the pods of huskd and of another runtime in one network. The
// configuration of the other runtime doesn't change where huskd's own pods get their network, and
// huskd doesn't run with network-only while it has pods.
func TestBesideAnotherRuntime(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "auto", "46", node.NewUnderlay(t).Segment(node.Media{}))
	r := newRuntime(c.nodes[0])
	r.write()
	start(t, r.machine)
	r.run("own")
	r.add("other")
	Reach(t, 30*time.Second, r.machine)

	r.huskd.Stop()
	refused := r.Launch(r.flags, node.Flags("--network-only"))
	if !refused.Wait(30*time.Second) || !strings.Contains(refused.Log(), "huskd has pods of its own") {
		t.Errorf("huskd with pods and network-only:\n%s", refused.Log())
	}
	r.restart()
	Reach(t, 30*time.Second, r.machine)
	r.remove("other")
	r.MustHusk("rm", "-f", "own")
	r.huskd.Stop()
	r.Run("umount", "/run/netns") // unless huskd could
	r.NothingLeft()
}

// TestNetworkOnlyCrash kills huskd in the middle of an ADD, which the runtime repeats.
func TestNetworkOnlyCrash(t *testing.T) {
	t.Parallel()
	c := newCluster(t, "auto", "46", node.NewUnderlay(t).Segment(node.Media{}))
	r := newRuntime(c.nodes[0])
	flags := r.flags
	r.flags = func(cmd *exec.Cmd) { flags(cmd); node.Flags("--network-only")(cmd) }
	for _, point := range []string{"network.reserved", "network.applied", "network.bound"} {
		r.huskd = r.Launch(r.flags, node.Env(crashpoint.Env, point))
		r.serves()
		list := r.configured()
		r.Must("ip", "netns", "add", "pod")
		if _, err := r.cni.AddNetworkList(t.Context(), list, runtimeConf("pod")); code(err) != types.ErrTryAgainLater {
			t.Errorf("%s: ADD: %v", point, err)
		}
		r.huskd.Wait(10 * time.Second)
		r.restart()
		r.add("pod")
		Reach(t, 30*time.Second, r.machine)
		r.remove("pod")
		r.pods = nil
		r.huskd.Stop()
	}
	r.Must("umount", "/run/netns")
	r.NothingLeft()
}
