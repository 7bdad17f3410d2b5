package doctor

import (
	"strings"
	"testing"
)

func TestEscapes(t *testing.T) {
	t.Parallel()
	const of2025 = "CVE-2025-31133 CVE-2025-52565 CVE-2025-52881"
	for release, want := range map[string]string{
		"1.1.5+ds1": "CVE-2024-21626 " + of2025, "1.1.11": "CVE-2024-21626 " + of2025, "1.1.12": of2025, "1.1.15": of2025,
		"1.2.7": of2025, "1.2.8": "", "1.2.10": "", "1.3.0": of2025, "1.3.2-rc.1": of2025, "1.3.3": "", "1.3.3+ds1": "",
		"1.4.0-rc.2": of2025, "1.4.0~rc2+ds1": of2025, "1.4.0-rc.3": "", "1.4.0": "", "1.5.0": "", "2.0.0": "", "unknown": "",
	} {
		if got := strings.Join(openEscapes(release), " "); got != want {
			t.Errorf("runc %s: %s, want %s", release, got, want)
		}
	}
	for name, c := range map[string]struct{ runtime, changelog, want string }{
		"old":          {"runc", "", "CVE-2024-21626, CVE-2025-31133, CVE-2025-52565, CVE-2025-52881,"},
		"half patched": {"runc", "* CVE-2024-21626: leaked fds", "by CVE-2025-31133, CVE-2025-52565, CVE-2025-52881,"},
		"patched":      {"runc", "CVE-2024-21626 CVE-2025-31133\nCVE-2025-52565 CVE-2025-52881", ""},
		"crun":         {"crun", "", ""},
	} {
		var d diagnosis
		d.escapes(c.runtime, "1.1.5+ds1", "/usr/sbin/runc", c.changelog)
		if got := strings.Join(texts(d), "\n"); !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
