package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDamagedFiles overwrites files of running containers while huskd is down. The next huskd
// starts; containers whose records are damaged run anew, others run on, all pods can be removed,
// and nothing is left of them.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for pattern, restarts := range map[string]int{
		"monitor/containers/*/record.json": 1, "monitor/containers/*/pid": 0, "containers/*/config.json": 0,
		"monitor/runtime/*/*/state.json": 0, "monitor/runtime.json": 0, "sandboxes/*/memory/hosts": 0, "sandboxes/*/infra/cgroup": 0,
	} {
		glob := func() []string {
			files, err := filepath.Glob(w.Path(w.State) + "/" + pattern)
			if err != nil {
				t.Fatal(err)
			}
			return files
		}
		others := glob()
		w.run(podOf("one", only("command: [sleep, '1000']")+", shareProcessNamespace: true"), "--wait")
		w.d.Kill()
		files := glob()
		if strings.Contains(pattern, "*") {
			files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(others, f) })
		}
		if len(files) != 1 {
			t.Fatalf("%s: %v", pattern, files)
		}
		for _, f := range files {
			if err := os.WriteFile(f, []byte(`{"rubbish`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.d = w.Huskd()
		w.eventually("one", "ready after "+pattern, func(p listed) bool { return p.Ready && p.Containers[0].Restarts == restarts })
		w.remove("one")
	}
	w.end()
}
