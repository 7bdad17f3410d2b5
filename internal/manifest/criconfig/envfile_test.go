package criconfig

import (
	"strings"
	"testing"
)

func TestParseEnvFile(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		"":                                       "none",
		"A='1'":                                  "1",
		"# A='0'\n\n \t\n  A='1' # one\nB='2'\n": "1",
		"B='2'\nA='1'":                           "1",
		"A='1'\nA='2'\n":                         "1",
		"B='x\nA=\\'y'\n":                        "! line 1: only a comment may follow the value of B",
		"B='x\nA=y'\nA='$B \"\\n'\n":             `$B "\n`,
		"A='one\ntwo\n'\n":                       "one\ntwo\n",
		"A='1'\r\nB='2'\r\n":                     "1",
		"A= '1'\n":                               "",
		"A=''\n":                                 "",
		"B= '2'\nA='1'\n":                        "1",
		"A='1'\nrubbish\n":                       "1",
		"rubbish\nA='1'\n":                       "! line 1 is not NAME='value'",
		"B='\n\n'\n=x":                           "! line 4 is not NAME='value'",
		"A ='1'\n":                               "! line 1 is not NAME='value'",
		"A=1\n":                                  "! line 1: the value of A is not in single quotes",
		"A=\"1\"\n":                              "! line 1: the value of A is not in single quotes",
		"A='1\n":                                 "! line 1: the value of A has no closing quote",
		"A='1'2\n":                               "! line 1: only a comment may follow the value of A",
		"AB='1'\n":                               "none",
	} {
		got, found, err := parseEnvFile(content, "A")
		switch {
		case err != nil:
			got = "! " + err.Error()
		case !found:
			got = "none"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", content, got, want)
		}
	}
}

func FuzzParseEnvFile(f *testing.F) {
	f.Add("A='1'\nB='2\n3' # x\n", "B")
	f.Fuzz(func(t *testing.T, content, key string) {
		if value, found, err := parseEnvFile(content, key); (!found || err != nil) && value != "" || !strings.Contains(strings.ReplaceAll(content, "\r\n", "\n"), value) {
			t.Errorf("%q, %t, %v", value, found, err)
		}
	})
}

func TestFileKeyRef(t *testing.T) {
	t.Parallel()
	files := map[EnvFile][]byte{{"v", "dir/env"}: []byte("A='1'\nEMPTY=''\n"), {"v", "bad"}: []byte("A\n")}
	for _, c := range []struct{ ref, want string }{
		{"path: dir/env, key: A", "A=1"},
		{"path: dir/env, key: EMPTY", "A="},
		{"path: dir/env, key: B", `! container "a": env[0].valueFrom: file dir/env of volume v has no variable B`},
		{"path: dir/env, key: B, optional: true", ""},
		{"path: none, key: A", `! container "a": env[0].valueFrom: volume v has no file none: write it in an init container`},
		{"path: none, key: A, optional: true", ""},
		{"path: bad, key: A, optional: true", `! container "a": env[0].valueFrom: file bad of volume v: line 1 is not NAME='value'`},
	} {
		p := pod(t, "  volumes: [{name: v}]\n  containers: [{name: a, image: 'a:1', env: [{name: A, valueFrom: {fileKeyRef: {volumeName: v, "+c.ref+"}}}]}]\n")
		env, err := environment(p, &p.Spec.Containers[0], Run{EnvFiles: files}, node())
		got := ""
		for _, v := range env {
			got += v.name + "=" + v.value
		}
		if err != nil {
			got = "! " + err.Error()
		}
		if got != c.want {
			t.Errorf("%s: got %s, want %s", c.ref, got, c.want)
		}
	}
}
