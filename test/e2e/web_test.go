package e2e

import (
	"path/filepath"
	"strings"
	"testing"
)

const example = "../../examples/web.yaml"

// TestWeb runs the example manifest until its address answers, and removes the pod without leaving
// a trace.
func TestWeb(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	path, err := filepath.Abs(example)
	if err != nil {
		t.Fatal(err)
	}
	out := n.MustHusk("run", "--wait", path)
	t.Log(out)
	pod := inspect(t, n, "web")
	if len(pod.IPs) != 2 {
		t.Fatalf("the pod has the addresses %v", pod.IPs)
	}
	answer := mustGet(t, n.Net(), pod.IPs[0]+":80")
	if fields := strings.Fields(answer); fields[0] != "web" || fields[1] != pod.IPs[0] {
		t.Errorf("the pod answers %q", answer)
	}
	t.Log(n.MustHusk("ps"))
	n.MustHusk("stop", "web")
	t.Log(n.MustHusk("ps", "-a"))
	n.MustHusk("rm", "web")
	d.Stop()
	n.NothingLeft()
}
