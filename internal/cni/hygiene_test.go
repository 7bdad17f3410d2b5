package cni

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/huskd/husk/internal/pod"
)

// delWorks is the part of a bad plugin that makes its DEL succeed.
const delWorks = answersVersion + "[ $CNI_COMMAND = DEL ] && exit 0\n"

// TestBadPlugins checks that a plugin that misbehaves in ADD leads to one clear line, and
// that the plugin before it is undone.
func TestBadPlugins(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         []string
	}{
		{"garbage", `printf 'Segmentation\n\033[31mfault\n'`, []string{"plugin bad: ADD: its output is not a CNI result: invalid character 'S'"}},
		{"nothing", `exit 0`, []string{"plugin bad: ADD: it returned nothing"}},
		{"null", `echo null`, []string{"not a CNI result: null"}},
		{"a list", `echo '[1]'`, []string{"not a CNI result"}},
		{"dies silently", `exit 1`, []string{"plugin bad: ADD: exit status 1, without an error message"}},
		{"dies with words", `echo 'panic: no
		such thing' >&2; exit 2`, []string{"exit status 2: panic: no such thing"}},
		{"dies with garbage", `echo '<html>'; exit 1`, []string{"exit status 1: <html>"}},
		{"killed", `kill -9 $$`, []string{"signal: killed, without an error message"}},
		{"error with code", `printf '%s' '{"cniVersion":"1.0.0","code":11,"msg":"try again","details":"x"}'; exit 1`, []string{"plugin bad: ADD: try again; x"}},
		{"hangs with a child", `sleep 1000 & echo $! > DIR/child; sleep 1000`, []string{"it took too long and was killed"}},
		{"ignores signals", `trap '' TERM INT HUP; echo $$ > DIR/child; while :; do sleep 1; done`, []string{"it took too long and was killed"}},
		{"100 MB", `echo $$ > DIR/child; exec head -c 100000000 /dev/zero`, []string{"it wrote more than 1048576 bytes and was killed"}},
		{"100 MB of stderr", `head -c 100000000 /dev/zero | tr '\0' 'x' >&2; echo END >&2; exit 1`, []string{"exit status 1: …xxx", "xEND"}},
		{"another version", `echo '{"cniVersion":"9.9.9","ips":[]}'`, []string{`it returned a result of cniVersion "9.9.9" instead of 1.0.0: unknown version`}},
		{"bad index", `echo '{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","sandbox":"s"}],"ips":[{"address":"10.0.0.1/8","interface":1}]}'`, []string{"ips[0] of its result refers to interface 1 of 1"}},
		{"null entries", `echo '{"cniVersion":"0.4.0","interfaces":[null],"ips":[null]}'`, []string{"interfaces[0] of its result is null"}},
		{"twice", `echo '{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"},{"address":"10.0.0.1/16"}]}'`, []string{"10.0.0.1 is listed twice"}},
		{"no input", `exec <&-; exit 1`, []string{"exit status 1, without an error message"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.plugin("bad", delWorks+strings.ReplaceAll(c.script, "DIR", l.dir))
			l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"ptp",`+hostLocal+`},{"type":"bad"}]}`)
			h, _ := l.host(nil, func(c *Config) { c.Timeout = 6 * time.Second })
			refused(t, h, l.pod(), append(c.want, "network web: ")...)
			l.nothingLeft()
			l.owed(h, 0)
			if pid, err := os.ReadFile(filepath.Join(l.dir, "child")); err == nil {
				l.gone(strings.TrimSpace(string(pid)))
			}
		})
	}
}

// gone waits until a process has ended.
func (l *lab) gone(pid string) {
	l.t.Helper()
	l.eventually(func() string {
		if stat, err := os.ReadFile("/proc/" + pid + "/stat"); err == nil && !strings.Contains(string(stat), ") Z ") {
			return "process " + pid + " is left"
		}
		return ""
	})
}

// TestPluginLeavesChild checks that a plugin that succeeds and leaves a child behind, with
// its stdout open, succeeds immediately, and that the child is killed.
func TestPluginLeavesChild(t *testing.T) {
	l := newLab(t)
	l.plugin("parent", delWorks+`sleep 1000 & echo $! > `+l.dir+`/child; echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.5/24"}]}'`)
	l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"parent"}]}`)
	h, _ := l.host(nil)
	began := time.Now()
	a := l.pod()
	if got := attach(t, h, a); got.Addresses[0].String() != "10.66.0.5/24" {
		t.Errorf("got %+v", got)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
	pid, err := os.ReadFile(filepath.Join(l.dir, "child"))
	must(t, err)
	l.gone(strings.TrimSpace(string(pid)))
	if !l.log.has("left processes behind") {
		t.Error("it is not logged")
	}
	must(t, h.Detach(t.Context(), a))
}

// TestDelHangs checks that a DEL that hangs is killed at its deadline, with its child
// processes.
func TestDelHangs(t *testing.T) {
	l := newLab(t)
	l.plugin("bad", answersVersion+`[ $CNI_COMMAND = ADD ] && { echo '{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.5/24"}]}'; exit; }
	echo $$ > `+l.dir+`/child; [ -e `+l.dir+`/go ] || sleep 1000`)
	l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"bad"}]}`)
	h, _ := l.host(nil, func(c *Config) { c.Timeout = time.Second })
	a := l.pod()
	attach(t, h, a)
	must(t, h.Detach(t.Context(), a))
	if debt := l.owed(h, 1)[0]; !strings.Contains(debt.Error, "it took too long and was killed") {
		t.Errorf("debt: %+v", debt)
	}
	must(t, os.WriteFile(filepath.Join(l.dir, "go"), nil, 0o600))
	l.owed(h, 0)
}

// TestProgramBusy checks that a program that is being written is retried.
func TestProgramBusy(t *testing.T) {
	l := newLab(t)
	program := filepath.Join(l.dir, "bin", "host-local")
	data, err := os.ReadFile(filepath.Join(debian, "host-local"))
	must(t, err)
	must(t, os.WriteFile(program, data, 0o755))
	l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"host-local",`+hostLocal+`}]}`)
	h, _ := l.host(nil)
	busy, err := os.OpenFile(program, os.O_WRONLY, 0)
	must(t, err)
	timer := time.AfterFunc(300*time.Millisecond, func() { _ = busy.Close() })
	defer timer.Stop()
	a := l.pod()
	attach(t, h, a)
	must(t, h.Detach(t.Context(), a))
	l.nothingLeft()
}

// TestPluginInput checks the environment and stdin of plugins.
func TestPluginInput(t *testing.T) {
	l := newLab(t)
	l.plugin("spy", answersVersion+`f=`+l.dir+`/$CNI_COMMAND; env | grep ^CNI_ > $f.env; cat > $f.stdin; echo '{"cniVersion":"0.4.0","interfaces":[{"name":"eth0","sandbox":"s"}],"ips":[{"version":"4","address":"10.66.0.5/24","interface":0}]}'`)
	l.conf("1.conflist", `{"cniVersion":"0.4.0","name":"web","plugins":[{"type":"spy","x":{"y":[1]},"capabilities":{
	 "portMappings":true,"bandwidth":true,"dns":true,"ips":true,"mac":true,"ipRanges":true,"aliases":true,"cgroupPath":true,"io.kubernetes.cri.pod-annotations":true,"infinibandGUID":true,"deviceID":false}}]}`)
	h, stop := l.host(nil, func(c *Config) { c.Ranges = nil })
	a := l.pod(pod.PortMapping{Protocol: pod.UDP, HostPort: 53, Port: 5353})
	a.DNS = &pod.DNS{Servers: []string{"10.0.0.10"}, Options: []string{"ndots:5"}}
	a.Cgroup = "/husk/pod-1"
	a.Annotations = map[string]string{"kubernetes.io/egress-bandwidth": "10M", "cni.husk.dev/mac": "02:00:00:00:00:01", "cni.husk.dev/ips": "10.66.0.5/24,fd00::5"}
	attach(t, h, a)
	must(t, h.Check(t.Context(), a.Sandbox))
	stop()
	h, _ = l.host([]pod.Attachment{a})
	must(t, h.Detach(t.Context(), pod.Attachment{Sandbox: a.Sandbox, Netns: a.Netns}))
	stdin := map[string]string{}
	for _, op := range []string{"ADD", "CHECK", "DEL"} {
		env, err := os.ReadFile(filepath.Join(l.dir, op+".env"))
		must(t, err)
		for _, want := range []string{
			"CNI_COMMAND=" + op, "CNI_CONTAINERID=" + a.Sandbox, "CNI_NETNS=" + a.Netns, "CNI_IFNAME=eth0",
			"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + a.Pod.Name + ";K8S_POD_INFRA_CONTAINER_ID=" + a.Sandbox + ";K8S_POD_UID=" + a.Pod.UID,
			"CNI_PATH=/opt/spy/bin:" + l.dir + "/bin:" + debian,
		} {
			if !strings.Contains(string(env)+"\n", want+"\n") {
				t.Errorf("%s: want %s in\n%s", op, want, env)
			}
		}
		data, err := os.ReadFile(filepath.Join(l.dir, op+".stdin"))
		must(t, err)
		stdin[op] = string(data)
	}
	want := `{"cniVersion":"0.4.0","name":"web","runtimeConfig":{"aliases":["` + a.Pod.Name + `"],"bandwidth":{"egressRate":10000000,"egressBurst":2097152},"cgroupPath":"/husk/pod-1",` +
		`"dns":{"servers":["10.0.0.10"],"options":["ndots:5"]},"io.kubernetes.cri.pod-annotations":{"cni.husk.dev/ips":"10.66.0.5/24,fd00::5","cni.husk.dev/mac":"02:00:00:00:00:01","kubernetes.io/egress-bandwidth":"10M"},` +
		`"ips":["10.66.0.5/24","fd00::5"],"mac":"02:00:00:00:00:01","portMappings":[{"protocol":"udp","hostPort":53,"containerPort":5353}]},"type":"spy","x":{"y":[1]}}`
	if stdin["ADD"] != want {
		t.Errorf("ADD gets\n%s\nwant\n%s", stdin["ADD"], want)
	}
	if stdin["DEL"] != stdin["CHECK"] || !strings.Contains(stdin["DEL"], `"prevResult":{"cniVersion":"0.4.0"`) || !strings.Contains(stdin["DEL"], "portMappings") {
		t.Errorf("CHECK gets\n%s\nDEL\n%s", stdin["CHECK"], stdin["DEL"])
	}
}

// recorder writes a slow plugin that records in a file when it begins and ends.
func (l *lab) recorder() (lines func() []string) {
	file := filepath.Join(l.dir, "operations")
	l.plugin("recorder", answersVersion+`echo "$CNI_COMMAND begins" >> `+file+`; sleep 0.1; echo "$CNI_COMMAND ends" >> `+file+`
	[ $CNI_COMMAND = ADD ] && echo '{"cniVersion":"1.1.0","ips":[{"address":"10.66.0.9/24"}]}'; exit 0`)
	l.conf("1.conflist", `{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"recorder"}]}`)
	return func() []string {
		data, _ := os.ReadFile(file)
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
}

// TestOperationsOfASandboxAreSerialized checks that no two operations on one sandbox run
// concurrently.
func TestOperationsOfASandboxAreSerialized(t *testing.T) {
	l := newLab(t)
	lines := l.recorder()
	h, _ := l.host(nil)
	a := l.pod()
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { _, _ = h.Attach(t.Context(), a) })
		wg.Go(func() { _ = h.Check(t.Context(), a.Sandbox) })
		wg.Go(func() { _ = h.Detach(t.Context(), a) })
	}
	wg.Wait()
	must(t, h.Detach(t.Context(), a))
	var open string
	for _, line := range lines() {
		op, what, _ := strings.Cut(line, " ")
		switch {
		case op == opGC: // runs at start
		case what == "begins" && open != "":
			t.Errorf("%s begins during %s", op, open)
		case what == "begins":
			open = op
		default:
			open = ""
		}
	}
	l.owed(h, 0)
}

// TestGCExcludesOperations checks that GC and operations on attachments exclude each other.
func TestGCExcludesOperations(t *testing.T) {
	l := newLab(t)
	lines := l.recorder()
	h, _ := l.host(nil)
	var pods []pod.Attachment
	for range 4 {
		pods = append(pods, l.pod())
	}
	var wg sync.WaitGroup
	for _, a := range pods {
		wg.Go(func() {
			_, _ = h.Attach(t.Context(), a)
			_ = h.Detach(t.Context(), a)
		})
	}
	busy := 0
	for range 50 {
		if err := h.GC(t.Context()); err != nil {
			busy++
			time.Sleep(5 * time.Millisecond)
		}
	}
	wg.Wait()
	at := map[string]int{}
	for _, line := range lines() {
		op, what, _ := strings.Cut(line, " ")
		if what == "ends" {
			at[op]--
			continue
		}
		at[op]++
		if at[opGC] > 0 && at[opAdd]+at[opDel] > 0 || at[opGC] > 1 {
			t.Fatalf("GC runs concurrently with others: %v", lines())
		}
	}
	if busy == 0 {
		t.Log("GC never met a running operation")
	}
}

// TestVersions checks that the highest version is used that the configuration and all its
// plugins support, and that a network without one is skipped before any ADD.
func TestVersions(t *testing.T) {
	l := newLab(t)
	supports := func(versions string) string {
		return `[ $CNI_COMMAND = VERSION ] && echo '{"cniVersion":"1.1.0","supportedVersions":[` + versions + `]}'; exit 0`
	}
	l.plugin("new", supports(`"0.4.0","1.0.0","1.1.0"`))
	l.plugin("middle", supports(`"0.3.1","0.4.0","1.0.0"`))
	l.plugin("old", supports(`"0.3.1","0.4.0"`))
	l.plugin("first", `echo '{"code":4,"msg":"unknown CNI_COMMAND: VERSION"}'; exit 1`)
	l.plugin("mute", `exit 0`)
	l.conf("1.conflist", `{"cniVersion":"0.3.1","cniVersions":["0.4.0","1.0.0","1.1.0"],"name":"a","plugins":[{"type":"new"},{"type":"middle"}]}`)
	l.conf("2.conflist", `{"cniVersion":"1.0.0","cniVersions":["0.4.0"],"name":"b","plugins":[{"type":"new"},{"type":"old"}]}`)
	l.conf("3.conf", `{"name":"c","type":"first"}`)
	l.conf("4.conflist", `{"cniVersion":"1.1.0","name":"d","plugins":[{"type":"old"}]}`)
	l.conf("5.conflist", `{"cniVersion":"1.1.0","name":"e","plugins":[{"type":"mute"}]}`)
	l.conf("6.conflist", `{"cniVersion":"1.1.0","name":"f","plugins":[{"type":"absent"}]}`)
	h, _ := l.host(nil)
	now := h.Networks()
	got := ""
	for _, n := range now.Networks {
		got += n.List.Name + " " + n.List.CNIVersion + ","
	}
	if want := "a 1.0.0,b 0.4.0,c 0.1.0,"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i, want := range []string{
		"plugin old doesn't support cniVersion 1.1.0, only 0.3.1, 0.4.0",
		"plugin mute: VERSION: its answer is malformed",
		"the program absent is in none of " + l.dir + "/bin, " + debian,
	} {
		if i >= len(now.Skipped) || !strings.Contains(now.Skipped[i].Why, want) {
			t.Errorf("skipped %+v, want %s", now.Skipped, want)
		}
	}
	// A program that is installed later makes the network usable.
	l.plugin("absent", answersVersion)
	l.eventually(func() string {
		if _, ok := h.Networks().Network("f"); !ok {
			return "the new program is not noticed"
		}
		return ""
	})
}

// TestStatus checks that STATUS decides whether pods can be attached, from 1.1.0 on.
func TestStatus(t *testing.T) {
	l := newLab(t)
	l.plugin("full", answersVersion+`[ $CNI_COMMAND = STATUS ] && { printf '%s' '{"code":50,"msg":"no address is left"}'; exit 1; }; exit 0`)
	l.conf("1.conflist", `{"cniVersion":"1.1.0","name":"web","plugins":[{"type":"full"}]}`)
	l.conf("2.conflist", `{"cniVersion":"1.0.0","name":"old","plugins":[{"type":"full"}]}`)
	h, _ := l.host(nil)
	oneLine(t, h.Status(t.Context()), "network web: plugin full: STATUS: no address is left")
	l.remove("1.conflist")
	l.eventually(func() string {
		if h.Status(t.Context()) != nil {
			return "the change is not noticed"
		}
		return ""
	})
}

// TestPluginInProcess runs a plugin of this process between two programs.
func TestPluginInProcess(t *testing.T) {
	l := newLab(t)
	var mu sync.Mutex
	var seen []string
	inside := func(_ context.Context, getenv func(string) string, _ []byte) ([]byte, error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, getenv("CNI_COMMAND"))
		switch getenv("CNI_COMMAND") {
		case "VERSION":
			return []byte(`{"cniVersion":"1.1.0","supportedVersions":["1.0.0"]}`), nil
		case "ADD":
			return []byte(`{"cniVersion":"1.0.0","ips":[{"address":"10.66.0.5/24"}]}`), nil
		case "CHECK":
			return nil, types.NewError(100, "changed", "")
		}
		return nil, nil
	}
	l.plugin("after", answersVersion+`[ $CNI_COMMAND = DEL ] && exit; sed 's/.*"prevResult"://; s/,"type":"after"}$//'`)
	l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"tuning"},{"type":"husk-cni"},{"type":"after"}]}`)
	l.plugin("tuning", answersVersion+`[ $CNI_COMMAND = ADD ] && echo '{}'; exit 0`)
	h, _ := l.host(nil, func(c *Config) { c.Plugins = map[string]Plugin{"husk-cni": inside} })
	a := l.pod()
	if got := attach(t, h, a); fmt.Sprint(got.Addresses) != "[10.66.0.5/24]" {
		t.Errorf("got %+v", got)
	}
	oneLine(t, h.Check(t.Context(), a.Sandbox), "network web: plugin husk-cni: CHECK: changed")
	must(t, h.Detach(t.Context(), a))
	if got := fmt.Sprint(seen); got != "[VERSION ADD CHECK DEL]" {
		t.Errorf("seen %s", got)
	}
}

// TestMany attaches and detaches many sandboxes concurrently and checks that nothing is
// left.
func TestMany(t *testing.T) {
	l := newLab(t)
	l.conf("10-web.conflist", bridgeChain)
	h, _ := l.host(nil)
	var pods []pod.Attachment
	for i := range 12 {
		pods = append(pods, l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: uint16(9000 + i), Port: 80}))
	}
	// Concurrent portmaps fail if their chains don't exist yet, because both create them.
	attach(t, h, pods[0])
	var wg sync.WaitGroup
	var mu sync.Mutex
	addresses := make([]string, len(pods))
	for i, a := range pods {
		for range 2 { // the same request twice
			wg.Go(func() {
				got, err := h.Attach(t.Context(), a)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				addresses[i] = got[0].Addresses[0].String()
			})
		}
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, s := range addresses {
		if seen[s] {
			t.Errorf("%s was leased twice", s)
		}
		seen[s] = true
	}
	if len(l.leases()) != len(pods) {
		t.Errorf("%d leases for %d pods: %s", len(l.leases()), len(pods), strconv.Quote(strings.Join(l.leases(), " ")))
	}
	for _, a := range pods {
		wg.Go(func() {
			if err := h.Detach(t.Context(), a); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	l.nothingLeft()
	l.owed(h, 0)
}
