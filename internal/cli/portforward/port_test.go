package portforward

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Port{
		"5000":       {0, true, "5000"},
		"8888:5000":  {8888, false, "5000"},
		":5000":      {0, false, "5000"},
		"0:5000":     {0, false, "5000"},
		"https":      {0, true, "https"},
		"8443:https": {8443, false, "https"},
		":https":     {0, false, "https"},
		"65535:1":    {65535, false, "1"},
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%q is %+v, %v, want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", ":", "80:", "65536", "65536:80", "0", "8080:0", "-1:80", "a:80", "1:2:3", "99999999999999999999:80", " 80:80"} {
		if got, err := Parse(in); err == nil || !strings.Contains(err.Error(), `"`+in+`"`) {
			t.Errorf("%q is %+v, %v", in, got, err)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"localhost", "127.0.0.1", "::", "2001:db8::1", "0.0.0.0"} {
		if err := CheckAddress(good); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []string{"", "host", "127.0.0.1:80", "[::1]", "1.2.3", "10.0.0.0/8"} {
		if CheckAddress(bad) == nil {
			t.Errorf("CheckAddress accepts %q", bad)
		}
	}
}
