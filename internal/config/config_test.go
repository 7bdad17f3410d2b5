package config

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/huskd/husk/internal/version"
)

func file(t *testing.T, content string) string {
	path := filepath.Join(t.TempDir(), "huskd.toml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFlagsOverrideFileOverridesDefaults(t *testing.T) {
	path := file(t, "root = \"/a\"\nstate = \"/b\"\nmasquerade = false\npod-subnets = [\"10.9.0.0/24\"]\n")
	cfg, err := Parse([]string{"--config", path, "--state=/c/", "--log-level", "debug"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Root != "/a" || cfg.State != "/c" || cfg.Masquerade || cfg.LogLevel != "debug" || cfg.LogFormat != "text" {
		t.Errorf("got %+v", cfg)
	}
	if p, err := cfg.Prefixes(); err != nil || len(p) != 1 || p[0].String() != "10.9.0.0/24" {
		t.Errorf("prefixes: %v, %v", p, err)
	}
}

func TestDefaultsAreValid(t *testing.T) {
	cfg, err := Parse(nil, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := cfg.Prefixes(); len(p) != 2 {
		t.Errorf("prefixes: %v", p)
	}
}

func TestEveryErrorIsReported(t *testing.T) {
	for _, c := range []struct {
		name, file string
		args       []string
		want       []string
	}{
		{"syntax", "root = \n", nil, []string{"huskd.toml:1:"}},
		{"capabilities", "default-capabilities = [\"kill\", \"CAP_NET\", \"ALL\"]\n", nil, []string{"default-capabilities: no capability is called \"CAP_NET\": see capabilities(7)", "no capability is called \"ALL\""}},
		{"shutdown", "shutdown-grace-period = 5\n", nil, []string{"shutdown-grace-period-critical-pods: 10: must be at least 0 and not above"}},
		{"unknown keys", "rot = \"/a\"\nzoo = 1\n", nil, []string{"huskd.toml: rot: unknown key", "huskd.toml: zoo: unknown key"}},
		{"wrong types", "root = 1\nmasquerade = \"yes\"\npod-subnets = [1]\n", nil,
			[]string{"root: must be a string", "masquerade: must be true or false", "pod-subnets: must be a list of strings"}},
		{"values", "root = \"a\"\nlisten = \"tcp://:1\"\nlog-format = \"xml\"\nnetwork-mode = \"l2\"\n", nil,
			[]string{`root: "a" is not an absolute path`, `listen: "tcp://:1" is not of the form`, `log-format: "xml" is not one of text, json`, `network-mode: "l2" is not one of ptp, bridge`}},
		{"Services among pods", "service-subnets = [\"10.201.128.0/24\"]\n", nil, []string{"service-subnets: 10.201.128.0/24 overlaps 10.201.0.0/16 of pod-subnets: use another"}},
		{"Services of no family", "service-subnets = [\"fd00::/112\"]\npod-subnets = [\"10.9.0.0/24\"]\n", nil, []string{"service-subnets: none is of an address family of pod-subnets: give one that is"}},
		{"link-local Services", "service-subnets = [\"169.254.0.0/16\"]\n", nil, []string{"service-subnets: 169.254.0.0/16 has addresses that no Service can have: use a private one, such as 10.203.0.0/16"}},
		{"few Services", "service-subnets = [\"10.9.0.0/30\"]\n", nil, []string{"service-subnets: 10.9.0.0/30: use a prefix length of 8 to 28"}},
		{"image verification", "image-pull-credentials-verification-policy = \"always\"\n", nil, []string{`image-pull-credentials-verification-policy: "always" is not one of NeverVerifyPreloadedImages, `}},
		{"an allowlist without its policy", "preloaded-images-verification-allowlist = [\"quay.io/me/*\"]\n", nil, []string{"preloaded-images-verification-allowlist: it has no effect: set image-pull-credentials-verification-policy to NeverVerifyAllowlistedImages"}},
		{"an allowlist with a tag", "image-pull-credentials-verification-policy = \"NeverVerifyAllowlistedImages\"\npreloaded-images-verification-allowlist = [\"quay.io/me:1\"]\n", nil, []string{`preloaded-images-verification-allowlist: "quay.io/me:1" is not of the form REGISTRY/PATH`}},
		{"short names", "short-names = \"https://x\"\n", nil, []string{`short-names: "https://x" is neither a registry, such as docker.io or registry.example:5000/team, nor refuse`}},
		{"network only", "network-only = true\nmanifests = \"/m\"\nkubeconfig = \"/k\"\n", nil,
			[]string{"kubeconfig: with network-only this machine is no node by huskd: use network-kubeconfig", "manifests: huskd runs no pods with network-only"}},
		{"subnet", "", []string{"--pod-subnets=10.1.2.3/16"}, []string{"pod-subnets: 10.1.2.3/16 has host bits set: use 10.1.0.0/16"}},
		{"URL", "manifest-url-interval = 0\nmanifest-url-header = [\"A: b\", \"no secret\"]\n", []string{"--manifest-url=ftp://me:secret@host/"},
			[]string{"manifest-url: must be of the form https://host/path", "manifest-url-header: header 2 is not of the form NAME: VALUE", "manifest-url-interval: 0: must be at least 1"}},
		{"subnet text", "", []string{"--pod-subnets=ten"}, []string{`pod-subnets: "ten" is not a prefix`}},
		{"subnet twice", "", []string{"--pod-subnets=10.1.0.0/16,10.2.0.0/16"}, []string{"are of the same address family"}},
		{"NRI", "nri-socket = \"nri.sock\"\nnri-plugin-dir = \"\"\n", nil, []string{`nri-socket: "nri.sock" is not an absolute path`, `nri-plugin-dir: "" is not an absolute path`}},
		{"no subnet", "pod-subnets = []\n", nil, []string{"pod-subnets: is empty"}},
		{"metrics address", "", []string{"--metrics-listen=9477"}, []string{`metrics-listen: "9477" is not of the form 127.0.0.1:9477`}},
		{"same directories", "", []string{"--root=/x", "--state=/x/"}, []string{"state: /x is also the root directory"}},
		{"runtimes", "runtimes = 1\n", nil, []string{"huskd.toml: runtimes: must be tables"}},
		{"runtime", "[runtimes]\nkata = \"/bin/kata\"\n", nil, []string{"runtimes.kata: must be a table, [runtimes.kata]"}},
		{"runtime's keys", "[runtimes.kata]\npath = 1\nbinary = \"x\"\n[runtimes.gvisor]\nshim = true\n", nil,
			[]string{"runtimes.kata.path: must be a string", "runtimes.kata.binary: unknown key", "runtimes.gvisor.shim: unknown key"}},
		{"runtime's values", "[runtimes.kata]\ntype = \"shim\"\nconfig = \"kata.toml\"\n[runtimes.crun]\nconfig = \"/x\"\n[runtimes.a]\ntype = \"vm\"\n[runtimes.b]\npath = \"bin/b\"\n[runtimes.\"../C\"]\n[runtimes.d]\nnetwork = \"late\"\n", nil,
			[]string{`runtimes.kata: config "kata.toml" is not an absolute path`, `runtimes.crun: config "/x" is only for type shim`, `runtimes.a: type "vm" is neither oci nor shim`, `runtimes.b: path "bin/b" is not an absolute path`, "runtimes.../C: not a valid handler name", `runtimes.d: network "late" is neither before-start nor after-start`}},
		{"unknown flag", "", []string{"--rot=/x"}, []string{"unknown flag: --rot"}},
		{"argument", "", []string{"web.yaml"}, []string{"pods are run with husk run"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(append(c.args, "--config", file(t, c.file)), &bytes.Buffer{})
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %v\nwant …%s…", err, want)
				}
			}
		})
	}
	if _, err := Parse([]string{"--config=/nowhere/x.toml"}, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "/nowhere/x.toml") {
		t.Errorf("missing file: %v", err)
	}
}

func TestRuntimes(t *testing.T) {
	cfg, err := Parse([]string{"--config", file(t, "[runtimes.crun]\n[runtimes.next]\ntype = \"oci\"\npath = \"/opt/next\"\nnetwork = \"after-start\"\n[runtimes.kata]\ntype = \"shim\"\nconfig = \"/etc/kata.toml\"\n")}, os.Stderr)
	want := map[string]Runtime{"crun": {Type: "oci", Network: "before-start"}, "next": {Type: "oci", Path: "/opt/next", Network: "after-start"}, "kata": {Type: "shim", Config: "/etc/kata.toml", Network: "before-start"}}
	if err != nil || !maps.Equal(cfg.Runtimes, want) {
		t.Errorf("got %+v, %v", cfg.Runtimes, err)
	}
}

func TestValuesHideSecrets(t *testing.T) {
	cfg, err := Parse([]string{"--config", "/dev/null", "--manifest-url=https://host/x", "--manifest-url-header=Authorization: Bearer hush", "--pids-limit=7"}, os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	values := cfg.Values()
	if values["pids-limit"] != "7" || values["root"] != "/var/lib/husk" || values["masquerade"] != "true" {
		t.Errorf("%v", values)
	}
	for key, value := range values {
		if strings.Contains(value, "hush") {
			t.Errorf("%s: %s", key, value)
		}
	}
}

func TestPodLogs(t *testing.T) {
	for args, want := range map[string]string{
		"": "/var/lib/husk/logs/pods", "--kubeconfig=/k": "/var/log/pods", "--kubeconfig=/k --root=/r": "/r/logs/pods",
		"--root=/r --pod-logs-dir=/var/log/pods/": "/var/log/pods", "--pod-logs-dir=logs": "", "--root=/r --pod-logs-dir=/r/logs": "", "--pod-logs-dir=/x/containers": "",
	} {
		cfg, err := Parse(append([]string{"--config", "/dev/null"}, strings.Fields(args)...), os.Stderr)
		if want == "" != (err != nil) || err == nil && cfg.PodLogs != want {
			t.Errorf("%q: %q, %v", args, cfg.PodLogs, err)
		}
	}
}

func TestHelpListsEveryKey(t *testing.T) {
	var out bytes.Buffer
	if _, err := Parse([]string{"--help"}, &out); !errors.Is(err, pflag.ErrHelp) {
		t.Fatal(err)
	}
	cfg := New()
	for _, o := range options(&cfg) {
		if o.key == "" || o.help == "" || !strings.Contains(out.String(), "--"+o.key) || !strings.Contains(Reference(), "`"+o.key+"`") {
			t.Errorf("option %q is not documented", o.key)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	if _, err := Parse([]string{"--version", "--config", "/does/not/exist"}, &out); !errors.Is(err, pflag.ErrHelp) || out.String() != "huskd "+version.Version+"\n" {
		t.Errorf("%v: %q", err, out.String())
	}
}
