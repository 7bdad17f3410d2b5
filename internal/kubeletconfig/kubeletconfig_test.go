package kubeletconfig

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/huskd/husk/internal/golden"
)

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

// write writes files below a new directory and returns it.
func write(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func translation(t *testing.T, text string) *Translation {
	t.Helper()
	out, err := Read(filepath.Join(write(t, map[string]string{"config.yaml": head + text}), "config.yaml"), "")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestProvisioners translates files such as provisioners write, with the fields that their sources
// and documentation set: kubeadm, kubespray, k3s, and those of EKS and GKE.
func TestProvisioners(t *testing.T) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, file := range files {
		if filepath.Ext(file) == ".toml" {
			continue
		}
		tried++
		out, err := Read(file, "")
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		dir, _ := filepath.Abs("testdata")
		golden.Check(t, strings.TrimSuffix(file, filepath.Ext(file))+".toml", strings.ReplaceAll(out.TOML(), dir+"/", "/var/lib/kubelet/"))
	}
	if tried < 5 {
		t.Errorf("only %d files", tried)
	}
}

// TestTOML reads what TOML writes.
func TestTOML(t *testing.T) {
	out := translation(t, `
evictionHard: {"a\nb = 1": "1%", "memory.available": 100Mi}
clusterDomain: "a\"b\\c\u007f\n[tracing]\x1b[31m<&>"
clusterDNS: ["1", "2\u202e"]
tracing: {samplingRatePerMillion: 1}
cpuManagerPolicy: "x\nlisten = 1"
maxPods: 7
seccompDefault: false
`)
	var got map[string]any
	if err := toml.Unmarshal([]byte(out.TOML()), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.TOML())
	}
	if !reflect.DeepEqual(got, out.Values) {
		t.Errorf("got %#v\nwant %#v", got, out.Values)
	}
}

func TestTranslation(t *testing.T) {
	cores := runtime.NumCPU()
	for _, c := range []struct {
		name, text string
		want       map[string]any
		// named has the beginnings of the notes about what is missing.
		named []string
	}{
		{"nothing", "", map[string]any{}, nil},
		{"zeros that kubeadm writes", "shutdownGracePeriod: 0s\nmaxPods: 0\nclusterDomain: ''\nclusterDNS: []\nport: 0\nmemorySwap: {}\nimageMinimumGCAge: 0s\nlogging: {verbosity: 0}\nevictionSoft: {}\ncrashLoopBackOff: {}\n", map[string]any{}, nil},
		{"zeros that say something", "podPidsLimit: 0\nhealthzPort: 0\nseccompDefault: false\nimageGCLowThresholdPercent: 0\nresolvConf: ''\n",
			map[string]any{"pod-pids-limit": int64(0), "node-healthz-listen": "", "seccomp-default": false, "image-gc-low": int64(0), "resolv-conf": ""}, nil},
		{"nulls", "podPidsLimit: null\nevictionHard: null\nauthentication: null\n", map[string]any{}, nil},
		{"no limit", "podPidsLimit: -1\n", map[string]any{"pod-pids-limit": int64(0)}, nil},
		{"addresses", "address: '::1'\nport: 10255\nhealthzBindAddress: 0.0.0.0\n", map[string]any{"node-listen": "[::1]:10255", "node-healthz-listen": "0.0.0.0:10248"}, nil},
		{"port", "port: 1\nhealthzPort: 2\n", map[string]any{"node-listen": ":1", "node-healthz-listen": "127.0.0.1:2"}, nil},
		{"pods", "maxPods: 50\npodsPerCore: 1000\n", map[string]any{"max-pods": int64(50)}, nil},
		{"pods per core", "maxPods: 1000000\npodsPerCore: 10\n", map[string]any{"max-pods": int64(10 * cores)}, nil},
		{"CPUs", "reservedSystemCPUs: 0-1,4\nkubeReserved: {cpu: '2', memory: 1Gi}\nsystemReserved: {cpu: 100m, pid: '7'}\n",
			map[string]any{"kube-reserved": map[string]any{"memory": "1Gi"}, "system-reserved": map[string]any{"cpu": "3", "pid": "7"}}, []string{"reservedSystemCPUs"}},
		{"one threshold turns the others off", "evictionHard: {memory.available: 5%}\n", map[string]any{"eviction-hard": map[string]any{
			"memory.available": "5%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"}}, nil},
		{"none turns all off", "evictionHard: {}\n", map[string]any{"eviction-hard": map[string]any{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"}}, nil},
		{"merged defaults", "evictionHard: {memory.available: 5%}\nmergeDefaultEvictionSettings: true\n", map[string]any{"eviction-hard": map[string]any{"memory.available": "5%"}}, nil},
		{"containerfs", "evictionSoft: {containerfs.available: 5%, pid.available: 10%}\nevictionSoftGracePeriod: {containerfs.available: 1m, pid.available: 90s}\nevictionMinimumReclaim: {pid.available: '100'}\n",
			map[string]any{"eviction-soft": map[string]any{"pid.available": "10%"}, "eviction-soft-grace-period": map[string]any{"pid.available": "90s"}, "eviction-minimum-reclaim": map[string]any{"pid.available": "100"}},
			[]string{"evictionSoft.containerfs.available", "evictionSoftGracePeriod.containerfs.available"}},
		{"whole seconds", "imageMinimumGCAge: 1m30s\nhttpCheckFrequency: 1500ms\n", map[string]any{"image-gc-min-age": int64(90), "manifest-url-interval": int64(2)}, []string{"httpCheckFrequency"}},
		{"whole MiB", "containerLogMaxSize: 10Mi\n", map[string]any{"log-max-size": int64(10)}, nil},
		{"no whole MiB", "containerLogMaxSize: 50M\n", map[string]any{"log-max-size": int64(47)}, []string{"containerLogMaxSize"}},
		{"less than a MiB", "containerLogMaxSize: 256Ki\n", map[string]any{"log-max-size": int64(1)}, []string{"containerLogMaxSize"}},
		{"shutdown", "shutdownGracePeriod: 1m\n", map[string]any{"shutdown-grace-period": int64(60), "shutdown-grace-period-critical-pods": int64(0)}, nil},
		{"shutdown in two steps", "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 20}, {priority: 2000000000, shutdownGracePeriodSeconds: 10}]\n",
			map[string]any{"shutdown-grace-period": int64(30), "shutdown-grace-period-critical-pods": int64(10)}, nil},
		{"shutdown in three", "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 20}, {priority: 10, shutdownGracePeriodSeconds: 5}]\n",
			map[string]any{"shutdown-grace-period": int64(25), "shutdown-grace-period-critical-pods": int64(0)}, []string{"shutdownGracePeriodByPodPriority"}},
		{"taints", "registerWithTaints: [{key: a, value: b, effect: NoSchedule}, {key: c, effect: NoExecute, timeAdded: null}]\n", map[string]any{"node-taints": []any{"a=b:NoSchedule", "c:NoExecute"}}, nil},
		{"log", "logging: {format: json, verbosity: 4, flushFrequency: 5s, vmodule: [{filePattern: x, verbosity: 9}]}\n", map[string]any{"log-format": "json", "log-level": "debug"}, []string{"logging.vmodule"}},
		{"tracing", "tracing: {}\n", map[string]any{"tracing": map[string]any{"endpoint": "http://localhost:4317", "sampling": 0.0}}, nil},
		{"tracing to", "tracing: {endpoint: 'h:1', samplingRatePerMillion: 500000}\n", map[string]any{"tracing": map[string]any{"endpoint": "http://h:1", "sampling": 0.5}}, nil},
		{"TLS", "tlsMinVersion: VersionTLS11\ntlsCipherSuites: [TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305]\n", map[string]any{"node-tls-cipher-suites": []any{"TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"}}, []string{"tlsMinVersion"}},
		{"what fits", "cpuManagerPolicy: none\nserializeImagePulls: false\nenforceNodeAllocatable: [pods]\nenableServer: true\ncrashLoopBackOff: {maxContainerRestartPeriod: 300s}\nfeatureGates: {NodeSwap: true}\nauthorization: {mode: Webhook}\n", map[string]any{}, nil},
		{"what doesn't", "cpuManagerPolicy: static\nserializeImagePulls: true\nenforceNodeAllocatable: [pods, kube-reserved]\ncrashLoopBackOff: {maxContainerRestartPeriod: 60s}\nfeatureGates: {NodeSwap: false, X: true}\nauthorization: {mode: AlwaysAllow}\nreadOnlyPort: 10255\nauthentication: {anonymous: {enabled: true}}\n", map[string]any{},
			[]string{"readOnlyPort", "authentication.anonymous.enabled", "authorization.mode", "cpuManagerPolicy", "serializeImagePulls", "featureGates", "enforceNodeAllocatable", "crashLoopBackOff.maxContainerRestartPeriod"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := translation(t, c.text)
			if !reflect.DeepEqual(got.Values, c.want) {
				t.Errorf("got  %#v\nwant %#v", got.Values, c.want)
			}
			var named []string
			for _, n := range got.Missing {
				named = append(named, n.Field)
			}
			if fmt.Sprint(named) != fmt.Sprint(c.named) {
				t.Errorf("named %v, want %v", named, c.named)
			}
			for key := range got.Values {
				if !strings.Contains(got.Origin[key], "config.yaml:") {
					t.Errorf("%s comes from %q", key, got.Origin[key])
				}
			}
		})
	}
}

// TestDropIns: drop-ins are merged as by the kubelet, whose tests in cmd/kubelet/app/server_test.go
// have the same cases.
func TestDropIns(t *testing.T) {
	dir := write(t, map[string]string{
		"config.yaml":      head + "maxPods: 10\npodPidsLimit: 5\nclusterDNS: [192.0.2.1, 192.0.2.2]\nkubeReserved: {cpu: \"1\", memory: 1Gi}\nclusterDomain: base\nproviderID: x://1\nstaticPodPath: manifests\n",
		"d/20-late.conf":   head + "maxPods: 30\nclusterDNS: [192.0.2.9]\n",
		"d/10-early.conf":  head + "maxPods: 20\nkubeReserved: {memory: 2Gi, pid: \"7\"}\npodPidsLimit: null\nproviderID: null\nrotateCertificates: false\n",
		"d/20-late.yaml":   "not read",
		"d/README":         "not read",
		"d/15-sub/1.conf":  `{"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "clusterDomain": "sub"}`,
		"d/.hidden.conf":   head + "maxPods: 99\n",
		"d/30-x.conf.d/no": "not read",
	})
	want := map[string]any{
		"max-pods": int64(30), "cluster-dns": []any{"192.0.2.9"}, "kube-reserved": map[string]any{"cpu": "1", "memory": "2Gi", "pid": "7"},
		"cluster-domain": "sub", "manifests": filepath.Join(dir, "manifests"),
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("d", link); err != nil {
		t.Fatal(err)
	}
	for _, drops := range []string{filepath.Join(dir, "d"), link} {
		got, err := Read(filepath.Join(dir, "config.yaml"), drops)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got.Values, want) {
			t.Errorf("got  %v\nwant %v", got.Values, want)
		}
		if !strings.HasSuffix(got.Origin["max-pods"], "maxPods in "+dir+"/d/20-late.conf:3") || len(got.Files) != 5 {
			t.Errorf("%v %v", got.Origin, got.Files)
		}
	}
}

// TestDropInThresholds: drop-ins add to the thresholds of the first file, or to the kubelet's
// defaults if it has none.
func TestDropInThresholds(t *testing.T) {
	for base, want := range map[string]map[string]any{
		"": {"pid.available": "5%"},
		"evictionHard: {memory.available: 1Gi}\n":                                     {"pid.available": "5%", "memory.available": "1Gi", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%"},
		"evictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true\n": {"pid.available": "5%", "memory.available": "1Gi"},
	} {
		dir := write(t, map[string]string{"c": head + base, "d/1.conf": head + "evictionHard: {pid.available: 5%}\nmergeDefaultEvictionSettings: true\n"})
		got, err := Read(dir+"/c", dir+"/d")
		if err != nil || !reflect.DeepEqual(got.Values["eviction-hard"], any(want)) {
			t.Errorf("%q: %v %v", base, got, err)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for _, c := range []struct{ name, content, want string }{
		{"empty", "", "is empty: write apiVersion"},
		{"comment", "# nothing\n", "is empty: write apiVersion"},
		{"no kind", "maxPods: 1\n", "c:1: apiVersion: missing: write kubelet.config.k8s.io/v1beta1\nDIR/c:1: kind: missing: write KubeletConfiguration"},
		{"another kind", "apiVersion: kubelet.config.k8s.io/v1\nkind: CredentialProviderConfig\n", `c:1: apiVersion: "kubelet.config.k8s.io/v1" is not kubelet.config.k8s.io/v1beta1` + "\nDIR/c:2: kind: "},
		{"list", "- 1\n", "c:1: must be a KubeletConfiguration, not a list"},
		{"two", head + "---\n" + head, "c:4: has 2 documents: leave only the KubeletConfiguration"},
		{"syntax", head + "a: [\n", "c:3: YAML: "},
		{"unknown", head + "maxpods: 1\n", "c:3: maxpods: unknown field; did you mean maxPods?"},
		{"flag", head + "max-pods: 1\n", "c:3: max-pods: unknown field; did you mean maxPods?"},
		{"elsewhere", head + "clientCAFile: /x\n", "c:3: clientCAFile: unknown field; did you mean authentication.x509.clientCAFile?"},
		{"from nowhere", head + "authentication:\n  quantumEntanglement: 1\n", "c:4: authentication.quantumEntanglement: unknown field of kubelet.config.k8s.io/v1beta1: remove it"},
		{"twice", head + "maxPods: 1\nmaxPods: 2\n", "c:4: maxPods: set twice: also at line 3"},
		{"key twice", head + "evictionHard:\n  memory.available: 1Gi\n  memory.available: 2Gi\n", "c:5: evictionHard.memory.available: set twice: also at line 4"},
		{"text", head + "clusterDomain: 7\n", `c:3: clusterDomain: must be a string, not a number: quote it ("7")`},
		{"amount", head + "kubeReserved: {cpu: 1}\n", `c:3: kubeReserved.cpu: must be a string, not a number: quote it ("1")`},
		{"number", head + "maxPods: \"7\"\n", "c:3: maxPods: must be a number, not a string"},
		{"fraction", head + "maxPods: 1.5\n", "c:3: maxPods: 1.5 is not a whole number"},
		{"large", head + "maxPods: 4294967296\n", "c:3: maxPods: 4294967296 is too large"},
		{"boolean", head + "seccompDefault: 1\n", "c:3: seccompDefault: must be a boolean, not a number"},
		{"duration", head + "syncFrequency: 1 minute\n", `c:3: syncFrequency: "1 minute" is not a duration such as 1m30s`},
		{"object", head + "authentication: true\n", "c:3: authentication: must be an object, not a boolean"},
		{"items", head + "clusterDNS: [1, null]\n", `c:3: clusterDNS[0]: must be a string, not a number: quote it ("1")` + "\nDIR/c:3: clusterDNS[1]: empty: remove it"},
		{"taint", head + "registerWithTaints: [{key: a, effekt: b}]\n", "c:3: registerWithTaints[0].effekt: unknown field; did you mean effect?"},
		{"refused", head + "enableDebuggingHandlers: false\nregisterNode: false\ntlsCurvePreferences: [29]\n", "c:5: tlsCurvePreferences: [29]: huskd leaves"},
		{"refused too", head + "enableDebuggingHandlers: false\nregisterNode: false\n", "c:3: enableDebuggingHandlers: false: huskd always serves logs, exec, attach and port-forward to clients with the permission: override it in a drop-in"},
		{"static pod", head + "staticPodPath: c\n", `c:3: staticPodPath: "c" is a file: move it into a directory`},
		{"CPUs", head + "reservedSystemCPUs: 0-99999999\n", `c:3: reservedSystemCPUs: "0-99999999" is not a list of CPUs such as 0-1,4`},
		{"endless quantity in quotes", head + "kubeReserved: {cpu: \"1e2000000000\"}\n", `c:3: kubeReserved.cpu: "1e2000000000" can't be read`},
		{"endless threshold", head + "evictionHard: {memory.available: \"1e2000000000\"}\n", `c:3: evictionHard.memory.available: "1e2000000000" can't be read`},
		{"endless size", head + "containerLogMaxSize: \"1e2000000000\"\n", `c:3: containerLogMaxSize: "1e2000000000" is not a quantity`},
		{"controls", head + "\"a\\e[31m\\nb\": 1\n", `c:3: a\x1b[31m\nb: unknown field`},
		{"deep", head + "evictionHard: " + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + "\n", "c:3: nested deeper than 100"},
		{"bomb", head + bomb(), "expand to more than 10 MiB"},
		{"many", head + strings.Repeat("x: 1\n", 100), "and 50 more problems"},
		{"huge", head + "# " + strings.Repeat("x", 11<<20), "larger than 10 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := write(t, map[string]string{"c": c.content})
			_, err := Read(dir+"/c", "")
			if err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(c.want, "DIR", dir)) {
				t.Errorf("got %v\nwant …%s…", err, c.want)
			}
			if err != nil && len(err.Error()) > 50<<10 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

// bomb returns a document whose aliases expand to 10^9 strings.
func bomb() string {
	var b strings.Builder
	b.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 9; i++ {
		fmt.Fprintf(&b, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	return b.String()
}

func TestBadPlaces(t *testing.T) {
	dir := write(t, map[string]string{"c": head, "empty.d/1.conf": "", "type.d/1.conf": head + "maxPods: x\n", "kind.d/1.conf": "maxPods: 1\n"})
	if err := syscall.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir+"/dangling.d", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", dir+"/dangling.d/1.conf"); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file, dir, want string
		absent          bool
	}{
		{"nowhere", "", "the kubelet's configuration: stat " + dir + "/nowhere: no such file", true},
		{"fifo", "", "fifo: is not a regular file", false},
		{"kind.d", "", "kind.d: is not a regular file", false},
		{"c", "nowhere.d", "the kubelet's drop-ins: ", true},
		{"c", "c", "c is not a directory", false},
		{"c", "empty.d", "empty.d/1.conf: is empty", false},
		{"c", "type.d", "type.d/1.conf:3: maxPods: must be a number", false},
		{"c", "kind.d", "kind.d/1.conf:1: apiVersion: missing", false},
		{"c", "dangling.d", "dangling.d/1.conf: no such file", true},
	} {
		drops := c.dir
		if drops != "" {
			drops = dir + "/" + drops
		}
		_, err := Read(dir+"/"+c.file, drops)
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.Is(err, fs.ErrNotExist) != c.absent {
			t.Errorf("%s %s: %v\nwant …%s…, absent: %v", c.file, c.dir, err, c.want, c.absent)
		}
	}
}

// FuzzRead: any file is translated or refused with an error, and what is written can be read.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"", head, head + "maxPods: 1\nevictionHard: {memory.available: 1%}\n", head + "tracing: {endpoint: null}\nregisterWithTaints: [{}]\n", head + "logging: {vmodule: [], flushFrequency: 1}\n", head + "featureGates: {a: true}\nshutdownGracePeriodByPodPriority: [{priority: 1}]\n", `{"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1", "staticPodURLHeader": {"a": ["b"]}}`} {
		f.Add([]byte(seed), []byte(head+"clusterDNS: null\n"))
	}
	f.Fuzz(func(t *testing.T, base, drop []byte) {
		dir := write(t, map[string]string{"c": string(base), "d/1.conf": string(drop)})
		out, err := Read(dir+"/c", dir+"/d")
		if err != nil {
			if err.Error() == "" {
				t.Error("an empty error")
			}
			return
		}
		var got map[string]any
		if err := toml.Unmarshal([]byte(out.TOML()), &got); err != nil {
			t.Fatalf("%v\n%s", err, out.TOML())
		}
		if len(got) != len(out.Values) {
			t.Errorf("got %v, want %v", got, out.Values)
		}
	})
}
