package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/pod"
)

func verify(m *testing.M) { goleak.VerifyTestMain(m) }

// debian is Debian's directory of the reference plugins.
const debian = "/usr/lib/cni"

// The addresses of a lab's node and of the other host, on the link between them.
const node4, other4 = "192.0.2.2", "192.0.2.1"

// lab is a node and another host, each a network namespace, with their own directories
// for configurations and plugins.
type lab struct {
	t           testing.TB
	dir         string
	node, other string // paths of the namespaces
	log         logs
	builtin     *builtin
	before      string // the node's inventory at the start
	pods        int
}

func newLab(t testing.TB) *lab {
	t.Helper()
	hosttest.Root(t)
	l := &lab{t: t, dir: t.TempDir(), builtin: &builtin{}}
	t.Cleanup(func() { // for the debts of a failed test
		kept, _ := filepath.Glob(filepath.Join(l.dir, "state", "cni", "*"))
		_ = netns.Remove(kept...)
	})
	l.node, l.other = l.namespace("node"), l.namespace("other")
	for _, dir := range []string{"conf", "bin", "ipam"} {
		must(t, os.Mkdir(filepath.Join(l.dir, dir), 0o755))
	}
	l.ip(l.node, "link add up0 type veth peer name eth0")
	l.ip(l.node, "link set eth0 netns "+l.other)
	l.ip(l.node, "addr add "+node4+"/24 dev up0")
	l.ip(l.other, "addr add "+other4+"/24 dev eth0")
	l.ip(l.node, "link set up0 up")
	l.ip(l.other, "link set eth0 up")
	l.ip(l.other, "route add default via "+node4)
	l.before = l.inventory()
	return l
}

// namespace creates a network namespace and returns its path.
func (l *lab) namespace(name string) string {
	l.t.Helper()
	path := filepath.Join(l.dir, name)
	netnstest.Make(l.t, path)
	return path
}

func (l *lab) run(ns string, args ...string) string {
	l.t.Helper()
	return netnstest.Run(l.t, ns, args...)
}

func (l *lab) ip(ns, args string) string {
	l.t.Helper()
	return netnstest.IP(l.t, ns, args)
}

// inventory lists what can leak: links, leased addresses and rules.
func (l *lab) inventory() string {
	l.t.Helper()
	return l.links() + l.rules() + strings.Join(l.leases(), "\n")
}

func (l *lab) links() string {
	var names []string
	for line := range strings.Lines(l.ip(l.node, "-o link show")) {
		if name := strings.TrimSuffix(strings.Fields(line)[1], ":"); !strings.HasPrefix(name, "br") {
			names = append(names, name) // bridges stay, as the plugin documents
		}
	}
	return strings.Join(names, "\n")
}

var counted = regexp.MustCompile(`\[\d+:\d+\]`)

// rules returns the iptables rules for pods.
func (l *lab) rules() string {
	var out []string
	for line := range strings.Lines(l.run(l.node, "iptables-save")) {
		if strings.HasPrefix(line, "-A") && (strings.Contains(line, "10.66.") || strings.Contains(line, "dport") || strings.Contains(line, "comment")) && !strings.Contains(line, "CNI firewall plugin") && !strings.Contains(line, "CNI portfwd") {
			out = append(out, counted.ReplaceAllString(line, ""))
		}
	}
	return strings.Join(out, "")
}

// leases returns the addresses that host-local has leased. It skips empty files: a
// host-local that was killed after creating a lease's file has not leased the address,
// and no DEL can release it.
func (l *lab) leases() []string {
	var out []string
	files, _ := filepath.Glob(filepath.Join(l.dir, "ipam", "*", "*"))
	for _, f := range files {
		info, _ := os.Stat(f)
		if _, err := netip.ParseAddr(filepath.Base(f)); err == nil && info != nil && info.Size() > 0 {
			out = append(out, filepath.Base(f))
		}
	}
	return out
}

// nothingLeft waits until the inventory is as at the start.
func (l *lab) nothingLeft() {
	l.t.Helper()
	l.eventually(func() string {
		if now := l.inventory(); now != l.before {
			return "left behind:\n" + now + "\nbefore:\n" + l.before
		}
		return ""
	})
}

func (l *lab) eventually(ok func() string) {
	l.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		what := ok()
		if what == "" {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatal(what)
		}
	}
}

// conf writes a configuration. DATA stands for the lab's directory of leases.
func (l *lab) conf(file, content string) {
	l.t.Helper()
	content = strings.ReplaceAll(content, "DATA", filepath.Join(l.dir, "ipam"))
	must(l.t, os.WriteFile(filepath.Join(l.dir, "conf", file), []byte(content), 0o644))
}

func (l *lab) remove(file string) { must(l.t, os.Remove(filepath.Join(l.dir, "conf", file))) }

// plugin writes a plugin as a shell script.
func (l *lab) plugin(name, script string) {
	l.t.Helper()
	path := filepath.Join(l.dir, "bin", name)
	must(l.t, os.WriteFile(path+".tmp", []byte("#!/bin/sh\n"+script), 0o755))
	must(l.t, os.Rename(path+".tmp", path))
}

// answersVersion is the part of a plugin that handles VERSION.
const answersVersion = `
if [ "$CNI_COMMAND" = VERSION ]; then echo '{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.2.0","0.3.0","0.3.1","0.4.0","1.0.0","1.1.0"]}'; exit; fi
`

type option func(*Config)

func (l *lab) config(options ...option) Config {
	cfg := Config{
		Instance: pod.InstanceOf(l.dir), State: filepath.Join(l.dir, "state"), ConfDir: filepath.Join(l.dir, "conf"), BinDirs: []string{filepath.Join(l.dir, "bin"), debian},
		MaxNetworks: 1, CacheDir: filepath.Join(l.dir, "cache"), Netns: l.node, Builtin: l.builtin,
		Timeout: 20 * time.Second,
		Log:     slog.New(slog.NewTextHandler(io.MultiWriter(&l.log, testLog{l.t}), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, o := range options {
		o(&cfg)
	}
	return cfg
}

// host starts a Host on the lab's node. It is closed by stop or at the end of the test.
func (l *lab) host(live []pod.Attachment, options ...option) (h *Host, stop func()) {
	l.t.Helper()
	cfg := l.config(options...)
	j, _, err := journal.Open(filepath.Join(l.dir, "journal"))
	must(l.t, err)
	cfg.Journal = j
	h, bad := New(cfg)
	for _, err := range bad {
		l.t.Log(err)
	}
	must(l.t, h.Reconcile(l.t.Context(), live))
	stop = sync.OnceFunc(func() {
		h.Close()
		must(l.t, j.Close())
	})
	l.t.Cleanup(stop)
	return h, stop
}

// pod creates a namespace for a pod and returns its attachment.
func (l *lab) pod(ports ...pod.PortMapping) pod.Attachment {
	l.t.Helper()
	l.pods++
	name := fmt.Sprintf("pod%d", l.pods)
	return pod.Attachment{
		Sandbox: pod.NewID(), Pod: pod.Ref{Namespace: "default", Name: name, UID: "uid-" + name},
		Netns: l.namespace(name), IfName: firstLink, Ports: ports,
	}
}

// serve accepts TCP connections to port in a namespace and writes name to each.
func (l *lab) serve(ns, name string, port int) {
	l.t.Helper()
	var listener net.Listener
	must(l.t, netns.Do(ns, func() (err error) {
		listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, name)
			_ = conn.Close()
		}
	}()
	l.t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
}

// ask connects from a namespace and returns what the server writes.
func (l *lab) ask(ns string, addr netip.Addr, port uint16) string {
	l.t.Helper()
	var out []byte
	l.eventually(func() string {
		err := netns.Do(ns, func() error {
			conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(addr, port).String(), 2*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			out, err = io.ReadAll(conn)
			return err
		})
		if err != nil {
			return fmt.Sprintf("%s doesn't answer: %v", addr, err)
		}
		return ""
	})
	return string(out)
}

// builtin is a fake of the built-in network.
type builtin struct {
	mu       sync.Mutex
	attached []string // sandboxes
	live     []pod.Attachment
	last     pod.Attachment
}

func (b *builtin) Attach(_ context.Context, a pod.Attachment) (*pod.Attached, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.last = a
	if !slices.Contains(b.attached, a.Sandbox) {
		b.attached = append(b.attached, a.Sandbox)
	}
	return &pod.Attached{Network: "builtin", IfName: a.IfName}, nil
}

func (b *builtin) Detach(_ context.Context, a pod.Attachment) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attached = slices.DeleteFunc(b.attached, func(s string) bool { return s == a.Sandbox })
	return nil
}

func (b *builtin) Reconcile(_ context.Context, live []pod.Attachment) error {
	b.live = live
	return nil
}

func (b *builtin) Status() error { return errors.New("status of builtin") }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func attach(t testing.TB, h *Host, a pod.Attachment) pod.Attached {
	t.Helper()
	all, err := h.Attach(t.Context(), a)
	must(t, err)
	return all[0]
}

// refused checks that attaching fails with one line that contains all of want.
func refused(t testing.TB, h *Host, a pod.Attachment, want ...string) {
	t.Helper()
	_, err := h.Attach(t.Context(), a)
	oneLine(t, err, want...)
}

func oneLine(t testing.TB, err error, want ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got  %v\nwant …%s…", err, w)
		}
	}
	if strings.ContainsAny(err.Error(), "\n\x00\x1b") || len(err.Error()) > 1500 {
		t.Errorf("not one clear line: %q", err)
	}
}

// logs collects the log.
type logs struct {
	mu  sync.Mutex
	buf strings.Builder
}

func (w *logs) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *logs) has(s string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Contains(w.buf.String(), s)
}

type testLog struct{ t testing.TB }

func (w testLog) Write(p []byte) (int, error) {
	w.t.Logf("%s", strings.TrimSpace(string(p)))
	return len(p), nil
}

// pretty returns v as JSON for comparison.
func pretty(v any) string {
	data, _ := json.Marshal(v)
	return string(data)
}
