package doctor

import (
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// escapes are the known ways out of a container of an old runc, and the first release of each
// branch that is free of them. A later branch is free of them too.
var escapes = []struct {
	cve   string
	fixed []string
}{
	{"CVE-2024-21626", []string{"1.1.12"}},
	{"CVE-2025-31133", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
	{"CVE-2025-52565", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
	{"CVE-2025-52881", []string{"1.2.8", "1.3.3", "1.4.0-rc.3"}},
}

// openEscapes returns the escapes that a release of runc has.
func openEscapes(release string) (cves []string) {
	v, err := version.ParseSemantic(strings.Replace(release, "~rc", "-rc.", 1)) // 1.4.0~rc2 in Debian
	if err != nil {
		return nil
	}
	for _, e := range escapes {
		closed := slices.ContainsFunc(e.fixed, func(fixed string) bool {
			f := version.MustParseSemantic(fixed)
			return v.AtLeast(f) && (fixed == e.fixed[len(e.fixed)-1] || v.Minor() == f.Minor())
		})
		if !closed {
			cves = append(cves, e.cve)
		}
	}
	return cves
}

// escapes warns of a runc with known escapes. A distribution adds patches to old releases and names
// them in the package's changelog, which may be empty.
func (d *diagnosis) escapes(runtime, release, path, changelog string) {
	if runtime != "runc" {
		return
	}
	open := slices.DeleteFunc(openEscapes(release), func(cve string) bool { return strings.Contains(changelog, cve) })
	if len(open) > 0 {
		d.add("runtime", warn, fmt.Sprintf("%s is runc %s, from which containers can break out by %s, unless your distribution has patched it", path, release, strings.Join(open, ", ")),
			"install runc 1.2.8, 1.3.3, 1.4.0 or later, or a package of your distribution that names these in its changelog, or use crun; huskd picks it up when it restarts")
	}
}

// debianChangelog returns the changelog of Debian's package of runc if the program at path is in
// it. It is empty if there is none.
func debianChangelog(path string) string {
	if path != "/usr/sbin/runc" && path != "/usr/bin/runc" {
		return ""
	}
	f, err := os.Open("/usr/share/doc/runc/changelog.Debian.gz")
	if err != nil {
		return ""
	}
	defer f.Close()
	unzipped, err := gzip.NewReader(f)
	if err != nil {
		return ""
	}
	text, _ := io.ReadAll(io.LimitReader(unzipped, 1<<20))
	return string(text)
}
