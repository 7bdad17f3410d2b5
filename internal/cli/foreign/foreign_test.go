package foreign

import (
	"slices"
	"strings"
	"testing"
)

func TestLookup(t *testing.T) {
	for _, c := range []struct {
		args  string
		known int
		want  string
	}{
		{"get pods -o wide", 0, `husk has no command "get pods": for kubectl get pods, use husk ps`},
		{"-n kube-system get", 0, `husk has no command "get": for kubectl get, use husk ps; husk objects, husk rollout status and husk volume ls list the rest`},
		{"--context=a get deploy web", 0, `husk has no command "get deploy": for kubectl get deploy, use husk rollout status`},
		{"rmi -f web", 0, `husk has no command "rmi": for docker rmi, use husk image rm IMAGE`},
		{"build -t web .", 0, `husk has no command "build": ` + noBuild},
		{"image build web", 1, `husk has no command "image build": ` + noBuild},
		{"rollout pause deployment/web", 1, `husk has no command "rollout pause": ` + noEdit},
		{"compose up -d", 0, `husk has no command "compose up": for docker compose up, use husk run FILE; with a manifest: kompose convert writes one`},
		{"images", 1, ""},
		{"nothing get", 0, ""},
		{"-- get", 0, ""},
	} {
		a, ok := Lookup(Words(strings.Fields(c.args)), c.known)
		if got := a.String(); ok != (c.want != "") || ok && got != c.want {
			t.Errorf("%s: %v %q, want %q", c.args, ok, got, c.want)
		}
	}
}

// Every answer has Husk's command or a reason, and names a tool.
func TestTable(t *testing.T) {
	tools := []string{"docker", "podman", "kubectl", "crictl", "ctr"}
	for words, a := range answers {
		tool, rest, _ := strings.Cut(a.Typed, " ")
		if a.Husk == "" && a.Why == "" || a.Husk != "" && !strings.HasPrefix(a.Husk, "husk ") || rest != words || !slices.Contains(tools, tool) || strings.Contains(a.Why, "{") {
			t.Errorf("%q: %+v", words, a)
		}
	}
	seen := map[string]bool{}
	for _, l := range Lines {
		if seen[l.Typed] || !slices.Contains(tools, l.Tool()) {
			t.Errorf("%+v is twice, or has no tool", l)
		}
		seen[l.Typed] = true
	}
}
