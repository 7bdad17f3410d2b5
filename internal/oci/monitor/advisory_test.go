package monitor

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci/conmon"
)

func TestVulnerabilities(t *testing.T) {
	t.Parallel()
	leak, races := []string{"CVE-2024-21626"}, []string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}
	for version, want := range map[string][]string{
		"1.0.3": slices.Concat(leak, races), "1.1.5+ds1": slices.Concat(leak, races), "1.1.11": slices.Concat(leak, races), "1.1.12": races, "1.1.15": races,
		"1.2.0": races, "1.2.7": races, "1.2.8": nil, "1.2.9": nil, "1.3.0": races, "1.3.2": races, "1.3.3": nil,
		"1.4.0-rc.2": races, "1.4.0-rc.3": nil, "1.4.0": nil, "1.5.0": nil, "2.0.0": nil, "none": nil,
	} {
		if got := vulnerabilities("runc", version); !slices.Equal(got, want) {
			t.Errorf("runc %s: %q, want %q", version, got, want)
		}
		if got := vulnerabilities("crun", version); got != nil {
			t.Errorf("crun %s: %q", version, got)
		}
	}
}

// TestVulnerabilitiesOfPackage checks that the cures of a Debian package count, and that they don't
// count for a program beside the package.
func TestVulnerabilitiesOfPackage(t *testing.T) {
	hosttest.Root(t)
	path := conmon.Locate("runc")
	out, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "runc").Output()
	if err != nil || path == "" {
		t.Fatal(path, err)
	}
	if text, err := exec.Command("zgrep", "-c", "CVE-2024-21626", "/usr/share/doc/runc/changelog.Debian.gz").Output(); err != nil || strings.TrimSpace(string(text)) == "0" {
		t.Fatalf("the changelog of runc %s doesn't name CVE-2024-21626, so the test proves nothing: %v", out, err)
	}
	if got := Vulnerabilities("runc", "1.1.5", path); slices.Contains(got, "CVE-2024-21626") {
		t.Errorf("runc of the package: %q", got)
	}
	other := t.TempDir() + "/runc"
	must(t, os.WriteFile(other, nil, 0o755))
	if got := Vulnerabilities("runc", "1.1.5", other); !slices.Contains(got, "CVE-2024-21626") {
		t.Errorf("another runc: %q", got)
	}
}
