package spec

import (
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestArgs(t *testing.T) {
	t.Parallel()
	list := strings.Fields
	for _, c := range []struct{ entrypoint, cmd, command, args, want []string }{
		{list("/e x"), list("c y"), nil, nil, list("/e x c y")},
		{list("/e x"), list("c y"), nil, list("a b"), list("/e x a b")},
		{list("/e x"), list("c y"), list("k l"), nil, list("k l")},
		{list("/e x"), list("c y"), list("k l"), list("a b"), list("k l a b")},
		{nil, list("c y"), nil, nil, list("c y")},
		{nil, list("c y"), nil, list("a b"), list("a b")},
		{nil, nil, nil, list("a b"), list("a b")},
		{list("/e"), nil, nil, nil, list("/e")},
		{[]string{""}, list("c y"), nil, nil, list("c y")},
		{list("/e"), []string{""}, nil, nil, []string{"/e", ""}},
	} {
		got := must(t, with(func(r *Request) {
			r.Image.Entrypoint, r.Image.Cmd = c.entrypoint, c.cmd
			r.Config.Command, r.Config.Args = c.command, c.args
		})).Spec.Process.Args
		if !slices.Equal(got, c.want) {
			t.Errorf("entrypoint %q cmd %q command %q args %q: %q, want %q", c.entrypoint, c.cmd, c.command, c.args, got, c.want)
		}
	}
	_, err := Container(with(func(r *Request) { r.Image.Entrypoint, r.Image.Cmd = nil, nil }))
	fails(t, err, "command: nothing to run", "localhost/web:1")
	_, err = Container(with(func(r *Request) { r.Config.Command = []string{"", "x"} }))
	fails(t, err, "command: its first word is empty")
}

func TestEnv(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Request)
		want   string
	}{
		{"none of the image", func(r *Request) { r.Image.Env = nil }, "PATH=" + defaultPath + "|HOSTNAME=web|PORT=80|HOME=/root"},
		{"overridden in place", func(r *Request) {
			r.Config.Envs = []*runtimeapi.KeyValue{{Key: "B", Value: []byte("2=3")}, {Key: "VERSION", Value: []byte("9")}, {Key: "B", Value: nil}}
		}, "PATH=/bin|HOSTNAME=web|VERSION=9|B=|HOME=/root"},
		{"defaults overridden", func(r *Request) {
			r.Config.Tty = true
			r.Config.Envs = []*runtimeapi.KeyValue{
				{Key: "TERM", Value: []byte("vt100")}, {Key: "HOSTNAME", Value: []byte("h")}, {Key: "HOME", Value: []byte("/h")},
			}
		}, "PATH=/bin|TERM=vt100|HOSTNAME=h|VERSION=1|HOME=/h"},
		{"malformed in the image", func(r *Request) {
			r.Image.Env = []string{"NOVALUE", "=x", "A\x00=b", "GOOD=1", "GOOD=2"}
			r.Config.Envs = nil
		},
			"PATH=" + defaultPath + "|HOSTNAME=web|GOOD=2|HOME=/root"},
		{"no hostname", func(r *Request) { r.Sandbox.Hostname, r.NodeName, r.Home = "", "", "" }, "PATH=/bin|VERSION=1|PORT=80"},
		{"the node's hostname", func(r *Request) { r.Sandbox.Hostname = "" }, "PATH=/bin|HOSTNAME=node|VERSION=1|PORT=80|HOME=/root"},
	} {
		if got := strings.Join(must(t, with(c.change)).Spec.Process.Env, "|"); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
	for _, key := range []string{"", "A=B", "="} {
		_, err := Container(with(func(r *Request) { r.Config.Envs[0].Key = key }))
		fails(t, err, "envs: ")
	}
}

func TestCwd(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"", "", "/"}, {"/img", "", "/img"}, {"img/x", "", "/img/x"}, {"/img", "/own", "/own"}, {"/img", "own", "/own"}, {"", "/a/../../b/", "/b"},
	} {
		got := must(t, with(func(r *Request) { r.Image.WorkingDir, r.Config.WorkingDir = c[0], c[1] })).Spec.Process.Cwd
		if got != c[2] {
			t.Errorf("image %q config %q: %q, want %q", c[0], c[1], got, c[2])
		}
	}
}

func TestOOMScore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		asked       int64
		floor, want int
		notes       int
	}{{1000, -1000, 1000, 0}, {-997, -1000, -997, 0}, {-997, 0, 0, 1}, {0, 0, 0, 0}, {2, 500, 500, 1}} {
		out := must(t, with(func(r *Request) {
			r.Config.Linux.Resources.OomScoreAdj, r.Host.OOMScoreFloor = c.asked, c.floor
		}))
		if got := *out.Spec.Process.OOMScoreAdj; got != c.want || len(out.Notes) != c.notes {
			t.Errorf("asked %d, floor %d: %d with notes %q, want %d", c.asked, c.floor, got, out.Notes, c.want)
		}
	}
	if got := must(t, with(func(r *Request) { r.Config.Linux.Resources = nil })).Spec.Process.OOMScoreAdj; got != nil {
		t.Errorf("no resources: %d", *got)
	}
}
