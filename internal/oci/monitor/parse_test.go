package monitor

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/oci"
)

// TestRefusal has what the runtimes say, runc 1.1.5 and crun 1.8.1.
func TestRefusal(t *testing.T) {
	for message, want := range map[string]int{
		`runc create failed: unable to start container process: exec: "nosuch": executable file not found in $PATH`:       127,
		`runc create failed: unable to start container process: exec: "/nosuch": stat /nosuch: no such file or directory`: 127,
		`runc create failed: unable to start container process: exec: "/x": permission denied`:                            126,
		`runc create failed: unable to start container process: exec: "/bin": is a directory`:                             126,
		"executable file `nosuch` not found in $PATH: No such file or directory":                                          127,
		"executable file `/nosuch` not found: No such file or directory":                                                  127,
		"open executable: Permission denied":                                                                              126,
		"error mounting \"/x\" to rootfs: stat /x: no such file or directory":                                             128,
		"permission denied": 128,
		"":                  128,
	} {
		var got *oci.StartError
		if err := refusal(message); !errors.As(err, &got) || got.Code != want || got.Message == "" {
			t.Errorf("%q: %+v, want code %d", message, got, want)
		}
	}
}

func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "\n\n": "", "a": "a", "a\n": "a", "a\nb\r\nc\n": "a; b; c", strings.Repeat("x", 5000): strings.Repeat("x", 2048) + "…",
	} {
		if got := oneLine(in); got != want {
			t.Errorf("%.20q: %.20q, want %.20q", in, got, want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for out, want := range map[string][2]string{
		"runc version 1.1.5+ds1\ncommit: x\n": {"runc", "1.1.5+ds1"},
		"crun version 1.8.1\n":                {"crun", "1.8.1"},
		"youki version 0.5.0":                 {"youki", "0.5.0"},
		"":                                    {}, "\n": {}, "runc": {}, "../x version 1": {}, "a b version 1": {}, " version 1": {},
	} {
		if name, version := parseVersion(out); name != want[0] || version != want[1] {
			t.Errorf("%q: %q %q", out, name, version)
		}
	}
}

func TestCheckID(t *testing.T) {
	for _, id := range []string{"a", "A-b_c.9", strings.Repeat("f", 64)} {
		if err := checkID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", ".", "..", ".a", "-a", "a/b", "a\x00", "a b", "a\n", "é", "*", strings.Repeat("f", 129)} {
		if checkID(id) == nil {
			t.Errorf("%q was taken", id)
		}
	}
}

func TestExecProcess(t *testing.T) {
	spec := `{"ociVersion":"1.0.2","process":{"terminal":false,"consoleSize":{"height":1,"width":1},"user":{"uid":7,"gid":8,"additionalGids":[9]},
		"args":["old"],"env":["A=1"],"cwd":"/w","capabilities":{"bounding":["CAP_KILL"]},"noNewPrivileges":true,
		"rlimits":[{"type":"RLIMIT_NOFILE","hard":10,"soft":5},{"type":"RLIMIT_LOCKS","hard":1,"soft":1}],"unknownToUs":{"x":[1]}}}`
	for _, tty := range []bool{false, true} {
		raw, err := execProcess([]byte(spec), []string{"new", "args"}, tty, 1234)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(raw, &got); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{
			"terminal": "false", "user": `{"uid":7,"gid":8,"additionalGids":[9]}`, "args": `["new","args"]`, "env": `["A=1"]`, "cwd": `"/w"`,
			"capabilities": `{"bounding":["CAP_KILL"]}`, "noNewPrivileges": "true", "unknownToUs": `{"x":[1]}`, "consoleSize": "",
			"rlimits": `[{"type":"RLIMIT_NOFILE","hard":10,"soft":5},{"type":"RLIMIT_LOCKS","hard":1234,"soft":1234}]`,
		}
		if tty {
			want["terminal"], want["env"] = "true", `["A=1","TERM=xterm"]`
		}
		for field, value := range want {
			if string(got[field]) != value {
				t.Errorf("%s is %s, want %s", field, got[field], value)
			}
		}
	}
	if raw, err := execProcess([]byte(`{"process":{"env":["TERM=vt100"]}}`), nil, true, 1); err != nil || strings.Contains(string(raw), "xterm") {
		t.Errorf("%s, %v", raw, err)
	}
	for _, spec := range []string{"", "{}", "null", "[]", `{"process":null}`, `{"process":[]}`, `{"process":{"env":1}}`, `{"process":{"rlimits":"x"}}`} {
		if raw, err := execProcess([]byte(spec), nil, false, 1); err == nil {
			t.Errorf("%q: %s", spec, raw)
		}
	}
}

func TestMark(t *testing.T) {
	seen := map[mark]bool{}
	for range 100 {
		m := newMark()
		if m < 2 || seen[m] || m > 1<<62 {
			t.Fatalf("mark %d", m)
		}
		seen[m] = true
		if m.on(os.Getpid()) {
			t.Errorf("this process has the mark %d", m)
		}
	}
	if mark(1).on(1<<30) || mark(0).on(os.Getpid()) {
		t.Error("marked")
	}
}
