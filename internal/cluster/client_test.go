package cluster

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for name, text := range map[string]string{
		"empty": "", "rubbish": "{[", "HTML": "<html>",
		"no cluster":   "apiVersion: v1\nkind: Config\ncurrent-context: x\n",
		"no authority": "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://x', certificate-authority: /nowhere}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n",
		"bad URL":      "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'ht!tp://:'}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n",
	} {
		path := filepath.Join(t.TempDir(), "kubeconfig")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := New(path, log); err == nil || !strings.HasPrefix(err.Error(), "kubeconfig "+path+": ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := New("/nowhere", log); err == nil {
		t.Error("a missing kubeconfig is accepted")
	}
}

func TestLogOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := &Client{log: slog.New(slog.NewTextHandler(&out, nil)), logged: map[string]string{}}
	for range 3 {
		c.LogOnce("pods", errors.New("no\nanswer  today"))
	}
	c.LogOnce("pods", errors.New(strings.Repeat("<p>é", 1000)))
	c.LogOnce("pods", nil)
	c.LogOnce("pods", nil)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "no answer today") || len(lines[1]) > 700 || !strings.Contains(lines[2], "answers again") {
		t.Errorf("the log is:\n%s", out.String())
	}
}
