package monitor

import "testing"

func TestParseVersion(t *testing.T) {
	for out, want := range map[string][2]string{
		"runc version 1.1.5+ds1\ncommit: x\n": {"runc", "1.1.5+ds1"},
		"crun version 1.8.1\n":                {"crun", "1.8.1"},
		"youki version 0.5.0":                 {"youki", "0.5.0"},
		"":                                    {}, "\n": {}, "runc": {}, "../x version 1": {}, "a b version 1": {}, " version 1": {},
	} {
		if name, version := parseVersion(out); name != want[0] || version != want[1] {
			t.Errorf("name and version in %q are %q and %q, want %q", out, name, version, want)
		}
	}
}
