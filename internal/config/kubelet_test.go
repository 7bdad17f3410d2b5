package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

const kubeletHead = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func kubeletFile(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(path, []byte(kubeletHead+content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestPrecedence: flags override huskd's file, which overrides drop-ins, which override the
// kubelet's file, which overrides the defaults.
func TestPrecedence(t *testing.T) {
	kubelet := kubeletFile(t, "maxPods: 1\npodPidsLimit: 1\nclusterDomain: kubelet.example\nproviderID: x://kubelet\ncontainerLogMaxFiles: 9\nkubeReserved: {cpu: '1'}\ntracing: {endpoint: 'collector:4317'}\n")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "1.conf"), []byte(kubeletHead+"maxPods: 2\npodPidsLimit: 2\nclusterDomain: drop-in.example\nproviderID: x://drop-in\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	own := file(t, fmt.Sprintf("kubelet-config = %q\nmax-pods = 3\npod-pids-limit = 3\ncluster-domain = \"file.example\"\n[kube-reserved]\nmemory = \"1Gi\"\n[tracing]\nsampling = 0.5\n", kubelet))
	cfg, err := Parse([]string{"--config", own, "--kubelet-config-dir", dir, "--max-pods=4"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintln(cfg.MaxPods, cfg.PodPidsLimit, cfg.ClusterDomain, cfg.ProviderID, cfg.LogMaxFiles, cfg.LogMaxSize, cfg.KubeReserved, cfg.Tracing)
	if want := "4 3 file.example x://drop-in 9 10 map[memory:1Gi] {http://collector:4317 0.5}\n"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if want := []string{"cluster-domain", "kube-reserved", "max-pods", "pod-pids-limit", "tracing"}; !slices.Equal(cfg.Overridden, want) {
		t.Errorf("overridden: %v, want %v", cfg.Overridden, want)
	}
	if !strings.HasSuffix(cfg.Origin("provider-id"), "1.conf:6") || cfg.Origin("max-pods") != "" {
		t.Errorf("%q %q", cfg.Origin("provider-id"), cfg.Origin("max-pods"))
	}
	if cfg, err := Parse([]string{"--config", own, "--kubelet-config="}, io.Discard); err != nil || cfg.Translation != nil || cfg.ProviderID != "" {
		t.Errorf("a flag turns it off: %+v, %v", cfg.Translation, err)
	}
}

func TestKubeletErrors(t *testing.T) {
	for _, c := range []struct {
		content string
		flags   string
		want    string
	}{
		{"clusterDNS: [dns.example]\n", "", `cluster-dns: "dns.example" is not an IP address (clusterDNS in FILE:3)`},
		{"clusterDNS: [dns.example]\n", "--cluster-dns=192.0.2.1", ""},
		{"maxPods: -1\nimageGCHighThresholdPercent: 70\n", "", "image-gc-low: 80: must be a percentage not above image-gc-high, which is 70\nmax-pods: -1: must be at least 0 (maxPods in FILE:3)"},
		{"cgroupDriver: magic\n", "", `cgroup-driver: "magic" is neither cgroupfs nor systemd (cgroupDriver in FILE:3)`},
		{"tlsCipherSuites: [X]\n", "", `node-tls-cipher-suites: "X" is not a cipher suite`},
		{"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\n", "", "node-tls-cipher-suites: HTTP/2 with TLS 1.2 needs"},
		{"tlsCipherSuites: [TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384]\ntlsMinVersion: VersionTLS13\n", "", ""},
		{"tlsMinVersion: SSLv3\n", "", `node-tls-min-version: "SSLv3" is neither VersionTLS12 nor VersionTLS13 (tlsMinVersion in FILE:3)`},
		{"registerWithTaints: [{key: a}]\n", "", `node-taints: "a:" is not of the form KEY=VALUE:EFFECT`},
		{"serverTLSBootstrap: true\ntlsCertFile: /c\ntlsPrivateKeyFile: /k\n", "", "server-tls-bootstrap: node-tls-cert-file names a certificate already: set one of them (serverTLSBootstrap in FILE:3)"},
		{"evictionSoft: {memory.available: 5%}\n", "", "eviction: eviction-soft: memory.available needs a duration"},
		{"maxpods: 1\n", "", "FILE:3: maxpods: unknown field; did you mean maxPods?"},
		{"enableServer: false\n", "", "FILE:3: enableServer: false: huskd always serves"},
	} {
		path := kubeletFile(t, c.content)
		_, err := Parse(append(strings.Fields(c.flags), "--config=/dev/null", "--kubelet-config="+path), io.Discard)
		if want := strings.ReplaceAll(c.want, "FILE", path); want == "" != (err == nil) || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got  %v\nwant %s", c.content, err, want)
		}
	}
	for flags, want := range map[string]string{
		"--kubelet-config=config.yaml":                                       `kubelet-config: "config.yaml" is not an absolute path`,
		"--kubelet-config-dir=/etc/kubernetes/kubelet.conf.d":                "kubelet-config-dir: set kubelet-config too",
		"--kubelet-config=/nowhere/config.yaml":                              "stat /nowhere/config.yaml: no such file or directory: it may not be written yet",
		"--kubelet-config=/nowhere --max-pods=0 --kubelet-config-dir=/dev/x": "/nowhere: no such file or directory",
	} {
		_, err := Parse(append([]string{"--config=/dev/null"}, strings.Fields(flags)...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) || errors.Is(err, ErrNotYet) != errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotYet) != strings.Contains(flags, "/nowhere") {
			t.Errorf("%s: %v, want %s", flags, err, want)
		}
	}
}

// TestTranslationIsAFile: the translation that is printed makes the same configuration as the file
// that it was made from, and huskd starts with it. Every key that can be translated is huskd's.
func TestTranslationIsAFile(t *testing.T) {
	files, err := filepath.Glob("../kubeletconfig/testdata/*")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(f string) bool { return filepath.Ext(f) == ".toml" })
	if len(files) < 5 {
		t.Fatal("there are no examples")
	}
	for _, name := range files {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		direct, err := Parse([]string{"--config=/dev/null", "--kubelet-config=" + path}, io.Discard)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		printed, err := Parse([]string{"--config", file(t, direct.Translation.TOML())}, io.Discard)
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, direct.Translation.TOML())
			continue
		}
		want, got := direct.Values(), printed.Values()
		delete(want, "kubelet-config")
		delete(got, "kubelet-config")
		if !maps.Equal(want, got) || !reflect.DeepEqual(direct.Tracing, printed.Tracing) {
			t.Errorf("%s: got  %v\nwant %v", name, got, want)
		}
	}
}
