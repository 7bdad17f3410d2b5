package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/daemonless"
	"github.com/huskd/husk/internal/network/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a node with a network, and another host that it is linked to, each a network namespace.
type lab struct {
	t           testing.TB
	dir         string
	node, other string
	plugin      Plugin
	conf        map[string]any
}

const node4, other4 = "192.0.2.2", "192.0.2.1"

func newLab(t testing.TB) *lab {
	t.Helper()
	hosttest.Root(t)
	l := &lab{t: t, dir: t.TempDir()}
	l.node, l.other = l.namespace("node"), l.namespace("other")
	l.plugin = Plugin{Netns: l.node, Log: slog.New(slog.DiscardHandler)}
	l.ip(l.node, "link add up0 type veth peer name eth0")
	l.ip(l.node, "link set eth0 netns "+l.other)
	for _, end := range [][3]string{{l.node, "up0", node4}, {l.other, "eth0", other4}} {
		l.ip(end[0], "addr add "+end[2]+"/24 dev "+end[1])
		l.ip(end[0], "link set "+end[1]+" up")
	}
	l.ip(l.node, "route add default via "+other4)
	l.conf = map[string]any{
		"cniVersion": "1.1.0", "name": "pods", "type": Type, "dataDir": filepath.Join(l.dir, "data"),
		"ranges": []any{
			[]any{map[string]any{"subnet": "10.244.0.0/16"}},
			[]any{map[string]any{"subnet": "fd44::/64"}},
		},
	}
	return l
}

func (l *lab) namespace(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	netnstest.Make(l.t, path)
	return path
}

// run runs a command in a namespace and returns what it printed.
func (l *lab) run(ns string, args ...string) (string, error) {
	return netnstest.Try(ns, args...)
}

func (l *lab) ip(ns, args string) string {
	l.t.Helper()
	return netnstest.IP(l.t, ns, args)
}

// with returns the lab's configuration with some keys changed; nil removes a key.
func (l *lab) with(changes map[string]any) map[string]any {
	c := maps.Clone(l.conf)
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

func (l *lab) args(command, id, ns string) Args {
	return Args{Command: command, ContainerID: id, Netns: ns, IfName: "eth0", Path: "/opt/cni/bin"}
}

func (l *lab) call(a Args, conf any) ([]byte, error) {
	l.t.Helper()
	stdin, ok := conf.([]byte)
	if !ok {
		var err error
		stdin, err = json.Marshal(conf)
		must(l.t, err)
	}
	return l.plugin.Call(context.Background(), a, stdin)
}

// do makes a call that must succeed.
func (l *lab) do(command, id, ns string, conf map[string]any) []byte {
	l.t.Helper()
	out, err := l.call(l.args(command, id, ns), conf)
	if err != nil {
		l.t.Fatalf("%s %s: %v", command, id, err)
	}
	return out
}

func (l *lab) add(id, ns string, conf map[string]any) *current.Result {
	l.t.Helper()
	var head struct{ CNIVersion string }
	out := l.do(Add, id, ns, conf)
	must(l.t, json.Unmarshal(out, &head))
	if head.CNIVersion != conf["cniVersion"] {
		l.t.Fatalf("result is of version %q, want %q", head.CNIVersion, conf["cniVersion"])
	}
	r, err := previous(out, head.CNIVersion)
	must(l.t, err)
	return r
}

func (l *lab) gc(conf map[string]any, live ...types.GCAttachment) {
	l.t.Helper()
	c := maps.Clone(conf)
	c["cni.dev/valid-attachments"] = append([]types.GCAttachment{}, live...)
	l.do(GC, "", "", c)
}

// refused returns an error's code and message.
func refused(t testing.TB, err error) (uint, string) {
	t.Helper()
	var e *types.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v, want an error of the specification", err)
	}
	return e.Code, e.Error()
}

// network returns the network of a configuration.
func (l *lab) network(conf map[string]any) *daemonless.Network {
	l.t.Helper()
	n, err := daemonless.New(daemonless.Config{
		Dir: filepath.Join(l.dir, "data", conf["name"].(string)), Netns: l.node, Mode: plan.PTP, Quarantine: l.plugin.Quarantine,
	})
	must(l.t, err)
	return n
}

func (l *lab) usage() daemonless.Usage {
	l.t.Helper()
	u, err := l.network(l.conf).Usage(l.t.Context())
	must(l.t, err)
	return u
}

// bare checks that nothing of a network is left on the node.
func (l *lab) bare() {
	l.t.Helper()
	for _, c := range [][]string{{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route"}, {"ip", "-6", "route"}, {"nft", "list", "ruleset"}} {
		out, err := l.run(l.node, c...)
		must(l.t, err)
		for line := range strings.Lines(out) {
			if strings.Contains(line, "hk") || strings.Contains(line, " hf") || strings.Contains(line, "husk") || strings.Contains(line, "proto 104") || strings.Contains(line, "10.24") || strings.Contains(line, "fd44:") {
				l.t.Errorf("left: %s", line)
			}
		}
	}
}

// ping reports whether an address answers a namespace.
func (l *lab) ping(ns, to string) bool {
	_, err := l.run(ns, "ping", "-c1", "-W2", "-n", to)
	return err == nil
}

// serve answers connections in a namespace with the client's address.
func (l *lab) serve(ns, address string) {
	l.t.Helper()
	must(l.t, netns.Do(ns, func() error {
		s, err := net.Listen("tcp", address)
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
				_, _ = io.WriteString(c, c.RemoteAddr().String())
				_ = c.Close()
			}
		}()
		l.t.Cleanup(func() { _ = s.Close(); <-done })
		return nil
	}))
}

// ask connects from a namespace and returns the answer.
func (l *lab) ask(ns, address string) (answer string, err error) {
	err = netns.Do(ns, func() error {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second))
		b, err := io.ReadAll(c)
		answer = string(b)
		return err
	})
	return answer, err
}

func ipOf(t testing.TB, r *current.Result, six bool) string {
	t.Helper()
	for _, ip := range r.IPs {
		if (ip.Address.IP.To4() == nil) == six {
			return ip.Address.IP.String()
		}
	}
	t.Fatal(fmt.Errorf("no address of that family in %v", r.IPs))
	return ""
}

// transfer sends bytes from one namespace to another and returns how long it took until the last
// one arrived.
func (l *lab) transfer(from, to, address string, size int) time.Duration {
	l.t.Helper()
	var s net.Listener
	must(l.t, netns.Do(to, func() (err error) {
		s, err = net.Listen("tcp", net.JoinHostPort(address, "0"))
		return err
	}))
	defer s.Close()
	start := time.Now()
	sent := make(chan error, 1)
	go func() {
		sent <- netns.Do(from, func() error {
			c, err := net.Dial("tcp", s.Addr().String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write(make([]byte, size))
			return err
		})
	}()
	c, err := s.Accept()
	must(l.t, err)
	defer c.Close()
	n, err := io.Copy(io.Discard, c)
	must(l.t, err)
	must(l.t, <-sent)
	if n != int64(size) {
		l.t.Fatalf("%d of %d bytes arrived", n, size)
	}
	return time.Since(start)
}
