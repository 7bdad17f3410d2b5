package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/pod"
)

// web returns a pod with a port, so that every plugin of bridgeChain has something to do.
func (l *lab) web() pod.Attachment {
	return l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
}

// owed waits until there are exactly want debts.
func (l *lab) owed(h *Host, want int) []Attachment {
	l.t.Helper()
	var list []Attachment
	l.eventually(func() string {
		list = nil
		for _, a := range h.Attachments() {
			if a.Owed() {
				list = append(list, a)
			}
		}
		if len(list) != want {
			return fmt.Sprintf("%d debts, want %d: %+v", len(list), want, list)
		}
		return ""
	})
	return list
}

// Leak 1: ADD fails after other plugins have succeeded. DEL of those gets their result,
// which firewall needs to remove its rules.
func TestHalfDoneAdd(t *testing.T) {
	l := newLab(t)
	l.plugin("last", answersVersion+`[ $CNI_COMMAND = DEL ] && exit 0; printf '%s' '{"code":7,"msg":"bad subnet","details":"see\nlog"}'; exit 1`)
	l.conf("10-web.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[
	 {"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,`+hostLocal+`},
	 {"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall","backend":"iptables"},{"type":"last"}]}`)
	h, _ := l.host(nil)
	refused(t, h, l.web(), "network web: plugin last: ADD: bad subnet; see log")
	l.nothingLeft()
	l.owed(h, 0)
}

// Leak 2: every plugin succeeds, but the result is unusable.
func TestUnusableResult(t *testing.T) {
	l := newLab(t)
	l.plugin("noip", answersVersion+`[ $CNI_COMMAND = DEL ] && exit 0; echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"x"}]}'`)
	l.conf("10-web.conflist", strings.Replace(bridgeChain, `{"type":"portmap"`, `{"type":"noip"},{"type":"portmap"`, 1))
	h, _ := l.host(nil)
	refused(t, h, l.web(), "no address for eth0")
	l.nothingLeft()
	l.owed(h, 0)
}

// Leak 3: DEL fails. It becomes a debt, the address stays leased, and the other plugins'
// DEL is run anyway.
func TestFailedDelIsOwed(t *testing.T) {
	l := newLab(t)
	closed := filepath.Join(l.dir, "closed")
	l.plugin("gate", answersVersion+`if [ $CNI_COMMAND = DEL ]; then [ -e `+closed+` ] && { echo "gate is closed" >&2; exit 3; }; exit 0; fi
	 sed 's/.*"prevResult"://; s/,"type":"gate"}$//'`)
	l.conf("10-web.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[
	 {"type":"ptp",`+hostLocal+`},{"type":"gate"},{"type":"portmap","capabilities":{"portMappings":true}}]}`)
	h, stop := l.host(nil)
	a := l.web()
	attach(t, h, a)
	must(t, os.WriteFile(closed, nil, 0o600))
	must(t, h.Detach(t.Context(), a)) // a debt is not an error
	debt := l.owed(h, 1)[0]
	if debt.Error != "network web: plugin gate: DEL: exit status 3: gate is closed" || debt.Pod != a.Pod || debt.Since.IsZero() {
		t.Errorf("debt: %+v", debt)
	}
	if got := l.inventory(); got != l.before {
		t.Errorf("the other plugins' part is left:\n%s", got)
	}
	oneLine(t, h.Retry(t.Context()), "gate is closed")
	stop()
	must(t, netns.Remove(a.Netns)) // before huskd restarts
	h, _ = l.host(nil)
	l.owed(h, 1)
	must(t, os.Remove(closed))
	must(t, h.Retry(t.Context()))
	l.owed(h, 0)
}

// Leak 3, continued: bridge removes its masquerading rules only if it finds the interface,
// so the pod's namespace is retained until DEL succeeds.
func TestNamespaceOfDebtIsRetained(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		must(t, os.Symlink(filepath.Join(debian, name), filepath.Join(l.dir, "bin", name)))
	}
	l.conf("10-web.conflist", bridgeChain)
	short := func(c *Config) { c.BinDirs = c.BinDirs[:1] }
	h, stop := l.host(nil, short)
	a := l.web()
	attach(t, h, a)
	must(t, os.Remove(filepath.Join(l.dir, "bin", "bridge")))
	must(t, h.Detach(t.Context(), a))
	must(t, netns.Remove(a.Netns))
	if !strings.Contains(l.rules(), "MASQUERADE") {
		t.Fatal("the bridge has no rule for the pod: the test proves nothing")
	}
	stop()
	h, _ = l.host(nil, short)
	must(t, os.Symlink(filepath.Join(debian, "bridge"), filepath.Join(l.dir, "bin", "bridge")))
	l.owed(h, 0)
	l.nothingLeft()
	if left, _ := filepath.Glob(filepath.Join(l.dir, "state", "cni", "*")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// Leak 4: the configuration is removed or replaced before DEL.
func TestDelWithoutConfiguration(t *testing.T) {
	for name, change := range map[string]func(l *lab){
		"removed": func(l *lab) { l.remove("10-web.conflist") },
		"broken":  func(l *lab) { l.conf("10-web.conflist", "{") },
		"another": func(l *lab) {
			l.conf("10-web.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"static"}]}`)
		},
		"directory": func(l *lab) { must(l.t, os.RemoveAll(filepath.Join(l.dir, "conf"))) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.conf("10-web.conflist", bridgeChain)
			h, stop := l.host(nil)
			a := l.web()
			attach(t, h, a)
			change(l)
			stop()
			h, _ = l.host([]pod.Attachment{a})
			must(t, h.Detach(t.Context(), a))
			l.nothingLeft()
			l.owed(h, 0)
		})
	}
}

// Leak 5: DEL after a restart needs ADD's capability arguments. Without them portmap does
// nothing and leaves its rules. The caller of Detach doesn't know the ports.
func TestDelWithCapabilitiesOfAdd(t *testing.T) {
	l := newLab(t)
	l.conf("10-web.conflist", bridgeChain)
	h, stop := l.host(nil)
	a := l.web()
	attach(t, h, a)
	if !strings.Contains(l.rules(), "8080") {
		t.Fatal("there is no rule for the port")
	}
	stop()
	h, _ = l.host([]pod.Attachment{a})
	must(t, h.Detach(t.Context(), pod.Attachment{Sandbox: a.Sandbox, Netns: a.Netns, IfName: a.IfName}))
	l.nothingLeft()
}

// Leak 6: the plugin's program is missing at DEL. DEL becomes a debt and succeeds once the
// program is back.
func TestDelWithoutProgram(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"bridge", "host-local", "portmap"} {
		must(t, os.Symlink(filepath.Join(debian, name), filepath.Join(l.dir, "bin", name)))
	}
	l.conf("10-web.conflist", bridgeChain)
	h, _ := l.host(nil, func(c *Config) { c.BinDirs = c.BinDirs[:1] })
	a := l.web()
	attach(t, h, a)
	must(t, os.Remove(filepath.Join(l.dir, "bin", "bridge")))
	must(t, h.Detach(t.Context(), a))
	debt := l.owed(h, 1)[0]
	if !strings.Contains(debt.Error, "network web: plugin bridge: DEL: the program bridge is in none of") {
		t.Errorf("debt: %s", debt.Error)
	}
	if len(l.leases()) != 1 {
		t.Errorf("leases: %v", l.leases())
	}
	must(t, os.Symlink(filepath.Join(debian, "bridge"), filepath.Join(l.dir, "bin", "bridge")))
	l.owed(h, 0) // without Retry
	l.nothingLeft()
}

// stuck writes a plugin that returns the previous result, but blocks in operation op until
// the file proceed exists. It creates the file reached when it blocks.
func (l *lab) stuck(op string) (reached, proceed string) {
	reached, proceed = filepath.Join(l.dir, "reached"), filepath.Join(l.dir, "go")
	l.plugin("stuck", answersVersion+`
	if [ $CNI_COMMAND = `+op+` ]; then echo $$ > `+reached+`.tmp; mv `+reached+`.tmp `+reached+`; while [ ! -e `+proceed+` ]; do sleep 0.02; done; fi
	[ $CNI_COMMAND = ADD ] && sed 's/.*"prevResult"://; s/,"type":"stuck"}$//'; exit 0`)
	return reached, proceed
}

// Leak 7: huskd is killed during ADD. The running plugin is killed before DEL, so that it
// can't continue after it.
func TestKilledInAdd(t *testing.T) {
	l := newLab(t)
	reached, _ := l.stuck("ADD")
	l.conf("10-web.conflist", strings.Replace(bridgeChain, `{"type":"portmap"`, `{"type":"stuck"},{"type":"portmap"`, 1))
	a := l.web()
	l.crash(a, false, reached)
	if len(l.leases()) != 1 {
		t.Fatalf("leases: %v", l.leases())
	}
	pid, err := os.ReadFile(reached)
	must(t, err)
	alive := func() bool {
		_, err := os.Stat("/proc/" + strings.TrimSpace(string(pid)) + "/exe")
		return err == nil
	}
	if !alive() {
		t.Fatal("the plugin didn't outlive huskd: the test proves nothing")
	}
	h, _ := l.host(nil)
	if alive() {
		t.Error("the plugin is still running")
	}
	l.owed(h, 0)
	l.nothingLeft()
}

// Leak 7, earlier: huskd is killed during the first plugin, before any result is recorded.
func TestKilledInFirstPlugin(t *testing.T) {
	l := newLab(t)
	lease, reached := filepath.Join(l.dir, "ipam", "10.66.0.9"), filepath.Join(l.dir, "reached")
	l.plugin("slow", answersVersion+`case $CNI_COMMAND in ADD) touch `+lease+` `+reached+`; sleep 1000;; DEL) rm -f `+lease+`;; esac`)
	l.conf("10-web.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"slow"}]}`)
	l.crash(l.pod(), false, reached)
	h, _ := l.host(nil)
	l.owed(h, 0)
	if _, err := os.Stat(lease); err == nil {
		t.Error("the lease is left")
	}
}

// Leak 8: huskd is killed during DEL.
func TestKilledInDel(t *testing.T) {
	l := newLab(t)
	reached, proceed := l.stuck("DEL")
	l.conf("10-web.conflist", strings.Replace(bridgeChain, `{"type":"portmap"`, `{"type":"stuck"},{"type":"portmap"`, 1))
	a := l.web()
	l.crash(a, true, reached)
	must(t, os.WriteFile(proceed, nil, 0o600))
	h, _ := l.host(nil)
	l.owed(h, 0)
	l.nothingLeft()
}

// Leak 9: the host reboots. host-local's leases survive on disk, network namespaces don't:
// DEL is run without one.
func TestReboot(t *testing.T) {
	l := newLab(t)
	// Some plugins fail if the namespace doesn't exist.
	l.plugin("strict", answersVersion+`if [ $CNI_COMMAND = DEL ]; then [ -z "$CNI_NETNS" ] || [ -e "$CNI_NETNS" ]; exit; fi; sed 's/.*"prevResult"://; s/,"type":"strict"}$//'`)
	conf := strings.Replace(bridgeChain, `"ipMasq":true,`, "", 1) // a reboot removes its rules, but DEL without a namespace doesn't
	l.conf("10-web.conflist", strings.Replace(conf, `{"type":"portmap"`, `{"type":"strict"},{"type":"portmap"`, 1))
	h, stop := l.host(nil)
	a := l.web()
	attach(t, h, a)
	stop()
	must(t, netns.Remove(a.Netns))
	h, _ = l.host(nil)
	l.owed(h, 0)
	l.nothingLeft()
}

// Leak 10: a lease without a record. GC gets all valid attachments, and is run only if all
// are known.
func TestGC(t *testing.T) {
	l := newLab(t)
	input := filepath.Join(l.dir, "input")
	closed := filepath.Join(l.dir, "closed")
	l.plugin("keeper", answersVersion+`case $CNI_COMMAND in GC) cat > `+input+`;; DEL) [ ! -e `+closed+` ]; exit;; ADD) echo '{"cniVersion":"1.1.0","ips":[{"address":"10.66.0.9/24"}]}';; esac; exit 0`)
	l.conf("10-web.conflist", `{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"keeper"}]}`)
	h, stop := l.host(nil)
	a := l.pod()
	attach(t, h, a)
	must(t, os.MkdirAll(filepath.Join(l.dir, "cache", "results"), 0o755))
	must(t, os.WriteFile(filepath.Join(l.dir, "cache", "results", "web-abc-eth0"), []byte(`{"kind":"cniCacheV1","containerId":"abc","ifName":"eth0","networkName":"web"}`), 0o600))
	gc := func() string {
		l.eventually(func() string {
			_ = os.Remove(input)
			if err := h.GC(t.Context()); err != nil {
				return err.Error()
			}
			return ""
		})
		data, _ := os.ReadFile(input)
		return string(data)
	}
	want := fmt.Sprintf(`"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":"abc","ifname":"eth0"}]`, a.Sandbox)
	if got := gc(); !strings.Contains(got, want) || !strings.Contains(got, `"name":"web"`) {
		t.Errorf("GC got %s\nwant %s", got, want)
	}
	must(t, os.WriteFile(closed, nil, 0o600))
	must(t, h.Detach(t.Context(), a)) // a debt is not valid
	if got := gc(); strings.Contains(got, a.Sandbox) || !strings.Contains(got, "abc") {
		t.Errorf("GC got %s", got)
	}
	must(t, os.Remove(closed))
	must(t, h.Retry(t.Context()))

	// GC is not run with an incomplete list.
	_ = os.Remove(input)
	must(t, os.WriteFile(filepath.Join(l.dir, "cache", "results", "web-def-eth0"), []byte(`{`), 0o600))
	oneLine(t, h.GC(t.Context()), "not every attachment is known")
	must(t, os.RemoveAll(filepath.Join(l.dir, "cache")))
	stop()
	must(t, h.cfg.Journal.Close())
	if _, err := os.Stat(input); err == nil {
		t.Error("GC was run with an incomplete list")
	}
}

// TestKilledInGC checks that a GC that outlives a killed huskd is killed at start, because it
// doesn't know what the next huskd attaches.
func TestKilledInGC(t *testing.T) {
	l := newLab(t)
	reached, proceed := l.stuck("GC")
	l.plugin("first", answersVersion+`[ $CNI_COMMAND = ADD ] && echo '{"ips":[{"address":"10.66.0.9/24"}]}'; exit 0`)
	l.conf("10-web.conflist", `{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"first"},{"type":"stuck"}]}`)
	l.crash(l.pod(), false, reached)
	pid, err := os.ReadFile(reached)
	must(t, err)
	if _, err := os.Stat("/proc/" + strings.TrimSpace(string(pid))); err != nil {
		t.Fatal("the plugin didn't outlive huskd: the test proves nothing")
	}
	h, _ := l.host(nil)
	l.gone(strings.TrimSpace(string(pid)))
	must(t, os.WriteFile(proceed, nil, 0o600))
	l.owed(h, 0)
}

// TestGCDisabled checks that GC is not run if it is disabled, nor before version 1.1.0.
func TestGCDisabled(t *testing.T) {
	for _, conf := range []string{
		`{"cniVersion":"1.1.0","disableGC":true,"name":"web","plugins":[{"type":"keeper"}]}`,
		`{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"keeper"}]}`,
	} {
		l := newLab(t)
		input := filepath.Join(l.dir, "input")
		l.plugin("keeper", answersVersion+`touch `+input)
		l.conf("10-web.conflist", conf)
		h, _ := l.host(nil)
		must(t, h.GC(t.Context()))
		if _, err := os.Stat(input); err == nil {
			t.Errorf("GC was run with %s", conf)
		}
	}
}

// Leak 11: the caller's context ends during ADD. DEL is run anyway.
func TestCallerGivesUp(t *testing.T) {
	l := newLab(t)
	reached, proceed := l.stuck("ADD")
	l.conf("10-web.conflist", strings.Replace(bridgeChain, `{"type":"portmap"`, `{"type":"stuck"},{"type":"portmap"`, 1))
	h, _ := l.host(nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for range 3000 {
			if _, err := os.Stat(reached); err == nil {
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	_, err := h.Attach(ctx, l.web())
	oneLine(t, err, "plugin stuck: ADD")
	if left := h.Attachments(); len(left) != 0 {
		t.Errorf("not undone immediately: %+v", left)
	}
	must(t, os.WriteFile(proceed, nil, 0o600))
	l.nothingLeft()
}

// TestBuiltinWithoutConfiguration checks that the built-in network reconciles its own
// attachments only.
func TestBuiltinWithoutConfiguration(t *testing.T) {
	l := newLab(t)
	h, stop := l.host(nil)
	a := l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	a.Annotations = map[string]string{"cni.husk.dev/ips": "10.1.2.3/16", "kubernetes.io/ingress-bandwidth": "1M"}
	if got := attach(t, h, a); got.Network != "builtin" {
		t.Errorf("got %+v", got)
	}
	if last := l.builtin.last; fmt.Sprint(last.IPs) != "[10.1.2.3]" || last.Bandwidth.IngressRate != 1e6 || len(last.Ports) != 1 {
		t.Errorf("asked %+v", last)
	}
	oneLine(t, h.Status(t.Context()), "status of builtin")
	// A network that is configured later doesn't affect existing attachments.
	l.conf("10-web.conflist", bridgeChain)
	l.eventually(func() string {
		if len(h.Networks().Networks) == 0 {
			return "the new network is not noticed"
		}
		return ""
	})
	b := l.pod()
	if got := attach(t, h, b); got.Network != "web" {
		t.Errorf("got %+v", got)
	}
	must(t, h.Status(t.Context()))
	stop()
	h, _ = l.host([]pod.Attachment{a, b})
	if len(l.builtin.live) != 1 || l.builtin.live[0].Sandbox != a.Sandbox {
		t.Errorf("builtin has %+v", l.builtin.live)
	}
	must(t, h.Detach(t.Context(), a))
	must(t, h.Detach(t.Context(), b))
	if len(l.builtin.attached) != 0 {
		t.Errorf("left: %v", l.builtin.attached)
	}
	l.nothingLeft()
}
