// Package install builds the packages, and tests how they are installed, upgraded and removed.
package install

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
)

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	var errs strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, errs.String())
	}
	return strings.TrimSpace(string(out))
}

// packages builds the packages of the working tree and returns their directory.
func packages(t *testing.T) string {
	t.Helper()
	began, dir := time.Now(), t.TempDir()
	run(t, "../../packaging/packages.sh", dir)
	t.Logf("built after %v", time.Since(began).Round(time.Second))
	return dir
}

// releases are the directories of packages by their version, and where they are.
var (
	releases   = map[string]string{}
	releaseDir string
)

func TestMain(m *testing.M) {
	var err error
	if releaseDir, err = os.MkdirTemp("", "husk-releases-"); err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.RemoveAll(releaseDir)
	os.Exit(code)
}

// release returns the directory of the packages for amd64 of a version, which are built once.
func release(t *testing.T, version string) string {
	t.Helper()
	if releases[version] == "" {
		dir := filepath.Join(releaseDir, version)
		run(t, "env", "PACKAGE_VERSION="+version, "../../packaging/packages.sh", dir, "amd64")
		releases[version] = dir
	}
	return releases[version]
}

// one returns the only file that matches a pattern.
func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s in %s: %v, %v; want one file", pattern, dir, found, err)
	}
	return found[0]
}

// TestPackages checks that the packages are the same when built again, and what is in them.
func TestPackages(t *testing.T) {
	hosttest.Root(t)
	first, again := packages(t), packages(t)
	sums := func(dir string) string {
		data, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if a, b := sums(first), sums(again); a != b || strings.Count(a, "\n") != 14 {
		t.Errorf("built twice:\n%s\n%s\nwant the same sums of 14 files", a, b)
	}
	for _, arch := range []string{"amd64", "arm64"} {
		checkDeb(t, first, arch)
		checkBill(t, one(t, first, "husk_*_linux_"+arch+".cdx.json"))
		if got := run(t, "tar", "-tzf", one(t, first, "husk_*_linux_"+arch+".tar.gz")); !strings.Contains(got, "./bin/huskd\n") || strings.Contains(got, "etc/") {
			t.Errorf("the tarball has %s", got)
		}
	}
	rpm := one(t, first, "husk-0*x86_64.rpm")
	if got := run(t, "rpm", "-qpR", rpm); got != "oci-runtime\nconmon" {
		t.Errorf("the rpm requires %q", got)
	}
	if got := run(t, "rpm", "-qpc", rpm); got != "/etc/husk/huskd.toml" {
		t.Errorf("the configuration files of the rpm are %q", got)
	}
}

func checkDeb(t *testing.T, dir, arch string) {
	t.Helper()
	deb := one(t, dir, "husk_*_"+arch+".deb")
	for field, want := range map[string]string{"Depends": "runc | crun, conmon", "Architecture": arch, "Recommends": "", "Pre-Depends": ""} {
		if got := run(t, "dpkg-deb", "-f", deb, field); got != want {
			t.Errorf("%s: %s is %q, want %q", deb, field, got, want)
		}
	}
	if got := run(t, "dpkg-deb", "-I", deb, "conffiles"); got != "/etc/husk/huskd.toml" {
		t.Errorf("configuration files: %q", got)
	}
	modes := map[string]string{}
	for line := range strings.Lines(run(t, "dpkg-deb", "-c", deb)) {
		f := strings.Fields(line)
		modes[f[5]] = f[0] + " " + f[1]
	}
	for path, want := range map[string]string{
		"./etc/husk/pods/":                                "drwxr-xr-x root/root",
		"./usr/bin/huskd":                                 "-rwxr-xr-x root/root",
		"./usr/bin/husk":                                  "-rwxr-xr-x root/root",
		"./usr/bin/husk-bgp":                              "-rwxr-xr-x root/root",
		"./usr/bin/husk-wireguard":                        "-rwxr-xr-x root/root",
		"./usr/lib/systemd/system/huskd.service":          "-rw-r--r-- root/root",
		"./usr/share/bash-completion/completions/husk":    "-rw-r--r-- root/root",
		"./usr/share/zsh/vendor-completions/_husk":        "-rw-r--r-- root/root",
		"./usr/share/fish/vendor_completions.d/husk.fish": "-rw-r--r-- root/root",
		"./usr/share/man/man1/husk-run.1.gz":              "-rw-r--r-- root/root",
		"./usr/share/man/man8/huskd.8.gz":                 "-rw-r--r-- root/root",
		"./usr/share/doc/husk/copyright":                  "-rw-r--r-- root/root",
	} {
		if modes[path] != want {
			t.Errorf("%s: %s is %q, want %q", deb, path, modes[path], want)
		}
	}
	plugin := run(t, "dpkg-deb", "-c", one(t, dir, "husk-cni_*_"+arch+".deb"))
	if last := strings.Fields(plugin); last[len(last)-1] != "./opt/cni/bin/husk-cni" || strings.Count(plugin, "-rwxr-xr-x") != 1 {
		t.Errorf("husk-cni has %s", plugin)
	}
}

// checkBill checks that a bill of materials names a module that only one program has.
func checkBill(t *testing.T, path string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BOMFormat  string
		Components []struct {
			Name       string
			PURL       string
			Properties []struct{ Name, Value string }
		}
	}
	if err := json.Unmarshal(data, &bill); err != nil {
		t.Fatal(err)
	}
	var programs []string
	for _, c := range bill.Components {
		for _, p := range c.Properties {
			if c.Name == "github.com/osrg/gobgp/v4" && strings.HasPrefix(c.PURL, "pkg:golang/github.com/osrg/gobgp/v4@v4.") && p.Name == "program" {
				programs = append(programs, p.Value)
			}
		}
	}
	if bill.BOMFormat != "CycloneDX" || !slices.Equal(programs, []string{"husk-bgp"}) {
		t.Errorf("%s: %s says that gobgp is in %v, want husk-bgp", path, bill.BOMFormat, programs)
	}
}
