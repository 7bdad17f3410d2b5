package monitor

import (
	"compress/gzip"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/huskd/husk/internal/oci/conmon"
)

// cures are the versions of runc without a vulnerability: the first of each release branch that had
// it. Other branches are free of it if they are newer. crun isn't listed: it was hardened against
// the first in 1.14.1, but not affected, and its authors found none of the others in it
// (github.com/containers/crun/issues/1906).
var cures = []struct {
	vulnerabilities []string
	versions        []string
}{
	{[]string{"CVE-2024-21626"}, []string{"1.1.12"}},
	{[]string{"CVE-2025-31133", "CVE-2025-52565", "CVE-2025-52881"}, []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
}

// Vulnerabilities returns the known ways out of containers that a runtime still has. Distributions
// cure older versions, so what the changelog of the program's package names is left out.
func Vulnerabilities(name, version, path string) []string {
	found := vulnerabilities(name, version)
	if len(found) == 0 {
		return nil
	}
	changes := changelog(path)
	return slices.DeleteFunc(found, func(id string) bool { return strings.Contains(changes, id) })
}

func vulnerabilities(name, number string) (found []string) {
	v, err := version.ParseSemantic(number)
	if name != "runc" || err != nil {
		return nil
	}
	for _, c := range cures {
		cured := true // unless a branch says otherwise
		for i, text := range c.versions {
			first := version.MustParseSemantic(text)
			sameBranch := v.Major() == first.Major() && v.Minor() == first.Minor()
			if v.LessThan(first) && (i == 0 || sameBranch) {
				cured = false
			}
		}
		if !cured {
			found = append(found, c.vulnerabilities...)
		}
	}
	return found
}

// changelogLimit bounds the wait for rpm, and maxChangelog what is unpacked.
const (
	changelogLimit = 10 * time.Second
	maxChangelog   = 4 << 20
)

// changelog returns the changelog of the package that has a program; "" if there is none.
func changelog(path string) string {
	name := filepath.Base(path)
	files, _ := os.ReadFile(filepath.Join("/var/lib/dpkg/info", name+".list"))
	if slices.Contains(strings.Split(string(files), "\n"), path) {
		return unpack(filepath.Join("/usr/share/doc", name, "changelog.Debian.gz"))
	}
	rpm := conmon.Locate("rpm")
	if rpm == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), changelogLimit)
	defer cancel()
	text, err := exec.CommandContext(ctx, rpm, "-q", "--changelog", "-f", path).Output()
	if err != nil {
		return ""
	}
	return string(text)
}

// unpack returns the text of a compressed file, as far as it can be read.
func unpack(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	plain, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(plain, maxChangelog))
	return string(text)
}
