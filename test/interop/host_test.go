// Package interop tests Husk with other projects' programs: runtimes that use its network, and
// plugins in a chain with it.
package interop

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

func TestMain(m *testing.M) { node.Main(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// debian is Debian's directory of the reference plugins.
const debian = "/usr/lib/cni"

// need requires root and other projects' programs, as hosttest does.
func need(t testing.TB, programs ...string) {
	t.Helper()
	hosttest.Root(t)
	for _, p := range programs {
		hosttest.Program(t, p)
	}
}

// host is a node on which plugins run as under cnitool.
type host struct {
	*node.Node
	t    testing.TB
	bin  string // directory of husk-cni
	data string
	cni  *libcni.CNIConfig

	containerdStop func() // ends the containerd of containerdStart
}

func newHost(t testing.TB) *host {
	t.Helper()
	n := node.New(t)
	h := &host{Node: n, t: t, bin: filepath.Dir(n.Binary("husk-cni")), data: filepath.Join(n.Dir, "data")}
	t.Cleanup(func() { // as `ip netns add` leaves it
		_ = h.Command(context.Background(), "umount", "/run/netns").Run()
	})
	h.cni = libcni.NewCNIConfigWithCacheDir([]string{h.bin, debian}, filepath.Join(n.Dir, "cache"), runner{h})
	return h
}

// runner runs plugins on the node.
type runner struct{ *host }

func (r runner) command(ctx context.Context, path string, stdin []byte, env []string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "nsenter", "-t", strconv.Itoa(r.Pid()), "-m", "-n", "-p", "--", path)
	cmd.Env, cmd.Stdin = env, bytes.NewReader(stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // nsenter and the plugin
	return cmd
}

func (r runner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	var out, errs bytes.Buffer
	cmd := r.command(ctx, path, stdin, env)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	told := &types.Error{}
	if json.Unmarshal(out.Bytes(), told) == nil && told.Msg != "" {
		return nil, told
	}
	return nil, fmt.Errorf("%s: %w: %s%s", path, err, out.String(), errs.String())
}

func (runner) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

func (runner) Decode(data []byte) (version.PluginInfo, error) {
	return (&version.PluginDecoder{}).Decode(data)
}

// list is a network configuration with some plugins. Husk's gets a dataDir.
func (h *host) list(cniVersion, name string, plugins ...map[string]any) *libcni.NetworkConfigList {
	h.t.Helper()
	for _, p := range plugins {
		if p["type"] == "husk-cni" {
			p["dataDir"] = h.data
		}
	}
	text, err := json.Marshal(map[string]any{"cniVersion": cniVersion, "name": name, "plugins": plugins})
	must(h.t, err)
	list, err := libcni.ConfListFromBytes(text)
	must(h.t, err)
	return list
}

// dual is Husk's plugin with both families.
func dual(more ...any) map[string]any {
	p := map[string]any{
		"type": "husk-cni",
		"ranges": []any{
			[]any{map[string]any{"subnet": "10.244.0.0/16"}},
			[]any{map[string]any{"subnet": "fd44::/64"}},
		},
		"capabilities": map[string]bool{"portMappings": true, "bandwidth": true, "ips": true, "mac": true, "ipRanges": true},
	}
	for i := 0; i < len(more); i += 2 {
		p[more[i].(string)] = more[i+1]
	}
	return p
}

// pod creates a namespace on the node, which is removed with the test, and returns its path as a
// runtime would name it.
func (h *host) pod(name string) *libcni.RuntimeConf {
	h.t.Helper()
	h.Must("ip", "netns", "add", name)
	h.t.Cleanup(func() {
		if out, err := h.Command(context.Background(), "ip", "netns", "del", name).CombinedOutput(); err != nil {
			h.t.Errorf("%v: %s", err, out)
		}
	})
	return &libcni.RuntimeConf{ContainerID: name, NetNS: "/run/netns/" + name, IfName: "eth0"}
}

func (h *host) add(list *libcni.NetworkConfigList, rt *libcni.RuntimeConf) *current.Result {
	h.t.Helper()
	got, err := h.cni.AddNetworkList(h.t.Context(), list, rt)
	must(h.t, err)
	r, err := current.NewResultFromResult(got)
	must(h.t, err)
	return r
}

// gone runs GC with no valid attachments.
func (h *host) gone(list *libcni.NetworkConfigList) {
	h.t.Helper()
	if ok, _ := version.GreaterThanOrEqualTo(list.CNIVersion, "1.1.0"); !ok {
		var p map[string]any
		must(h.t, json.Unmarshal(list.Plugins[0].Bytes, &p))
		list = h.list("1.1.0", list.Name, p)
	}
	must(h.t, h.cni.GCNetworkList(h.t.Context(), list, &libcni.GCArgs{}))
}

// reaches fails unless a pod reaches an address.
func (h *host) reaches(pod, to string) {
	h.t.Helper()
	if r := h.Run("ip", "netns", "exec", pod, "ping", "-n", "-c1", "-W5", to); r.Code != 0 {
		h.t.Errorf("%s doesn't reach %s:\n%s%s", pod, to, r.Stdout, r.Stderr)
	}
}

// serve answers connections in a pod until the test ends.
func (h *host) serve(pod string, port int) {
	h.t.Helper()
	must(h.t, netns.Do(h.Path("/run/netns/"+pod), func() error {
		s, err := net.Listen("tcp", fmt.Sprint(":", port))
		if err != nil {
			return err
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				_, _ = io.WriteString(c, pod)
				_ = c.Close()
			}
		}()
		h.t.Cleanup(func() { _ = s.Close(); <-done })
		return nil
	}))
}

// ask returns what a server answers to a connection from a namespace; get, to a request.
func (h *host) ask(ns, address string) (string, error) { return h.say(ns, address, "") }

func (h *host) get(ns, address string) (string, error) {
	return h.say(ns, address, "GET / HTTP/1.0\r\n\r\n")
}

func (h *host) say(ns, address, request string) (answer string, err error) {
	err = netns.Do(ns, func() error {
		c, err := net.DialTimeout("tcp", address, 5*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		if _, err := io.WriteString(c, request); err != nil {
			return err
		}
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func codeOf(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}
