package bundle

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCheckID(t *testing.T) {
	for _, id := range []string{"a", "A-b_c.9", strings.Repeat("f", 64)} {
		if err := CheckID(id); err != nil {
			t.Errorf("CheckID(%q): %v", id, err)
		}
	}
	for _, id := range []string{"", ".", "..", ".a", "-a", "a/b", "a\x00", "a b", "a\n", "é", "*", strings.Repeat("f", 129)} {
		if CheckID(id) == nil {
			t.Errorf("CheckID(%q) returned no error", id)
		}
	}
}

func TestExecProcess(t *testing.T) {
	spec := `{"ociVersion":"1.0.2","process":{"terminal":false,"consoleSize":{"height":1,"width":1},"user":{"uid":7,"gid":8,"additionalGids":[9]},
		"args":["old"],"env":["A=1"],"cwd":"/w","capabilities":{"bounding":["CAP_KILL"]},"noNewPrivileges":true,
		"rlimits":[{"type":"RLIMIT_NOFILE","hard":10,"soft":5},{"type":"RLIMIT_LOCKS","hard":1,"soft":1}],"unknownToUs":{"x":[1]}}}`
	for _, tty := range []bool{false, true} {
		raw, err := ExecProcess([]byte(spec), []string{"new", "args"}, tty, 1234)
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
	if raw, err := ExecProcess([]byte(`{"process":{"env":["TERM=vt100"]}}`), nil, true, 1); err != nil || strings.Contains(string(raw), "xterm") {
		t.Errorf("a process with TERM becomes %s, %v", raw, err)
	}
	for _, spec := range []string{"", "{}", "null", "[]", `{"process":null}`, `{"process":[]}`, `{"process":{"env":1}}`, `{"process":{"rlimits":"x"}}`} {
		if raw, err := ExecProcess([]byte(spec), nil, false, 1); err == nil {
			t.Errorf("process of spec %q is %s, want an error", spec, raw)
		}
	}
}

// TestSetCgroup checks that unknown fields of the spec stay as they are.
func TestSetCgroup(t *testing.T) {
	b := &Bundle{Dir: t.TempDir(), Raw: []byte(`{"x":[1],"linux":{"cgroupsPath":"/a/b","y":{"z":12345678901234567890}}}`)}
	if err := b.SetCgroup("a.slice:cri-husk:1"); err != nil {
		t.Fatal(err)
	}
	const want = `{"linux":{"cgroupsPath":"a.slice:cri-husk:1","y":{"z":12345678901234567890}},"x":[1]}`
	if got, err := os.ReadFile(filepath.Join(b.Dir, SpecFile)); string(got) != want || string(b.Raw) != want || err != nil {
		t.Errorf("the spec is %s, %v; want %s", got, err, want)
	}
	b.Raw = []byte(`{"linux":`)
	if b.SetCgroup("x") == nil {
		t.Error("no error for an invalid spec")
	}
}
