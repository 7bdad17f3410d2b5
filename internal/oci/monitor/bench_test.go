package monitor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/pod"
)

// BenchmarkLifecycle reports how long each stage of a container takes in milliseconds: with the
// driver doing what it can itself, and with the runtime doing all.
func BenchmarkLifecycle(b *testing.B) {
	for _, own := range []bool{false, true} {
		b.Run(fmt.Sprintf("runtime does all=%v", own), func(b *testing.B) {
			d, bundle := pauseDriver(b)
			var stages [4]time.Duration
			for b.Loop() {
				id := pod.NewID()
				spec(b, bundle, id, own)
				stage := time.Now()
				lap := func(i int) { now := time.Now(); stages[i] += now.Sub(stage); stage = now }
				_, err := d.Create(b.Context(), oci.Create{ID: id, Bundle: bundle, Log: filepath.Join(bundle, "log")})
				must(b, err)
				lap(0)
				must(b, d.Start(b.Context(), id))
				lap(1)
				must(b, d.Signal(b.Context(), id, unix.SIGKILL))
				_, err = d.Wait(b.Context(), id)
				must(b, err)
				lap(2)
				must(b, d.Delete(b.Context(), id))
				lap(3)
			}
			for i, name := range []string{"create-ms", "start-ms", "kill-ms", "delete-ms"} {
				b.ReportMetric(float64(stages[i].Microseconds())/1000/float64(b.N), name)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkExec runs a program that exits at once.
func BenchmarkExec(b *testing.B) {
	d, bundle := pauseDriver(b)
	id := pod.NewID()
	spec(b, bundle, id, false)
	_, err := d.Create(b.Context(), oci.Create{ID: id, Bundle: bundle})
	must(b, err)
	must(b, d.Start(b.Context(), id))
	for b.Loop() {
		code, err := d.Exec(b.Context(), oci.Exec{ID: id, Args: []string{"/pause", "now"}})
		if code != 0 || err != nil {
			b.Fatal(code, err)
		}
	}
	must(b, d.Delete(b.Context(), id))
}

// pauseDriver returns a driver and a bundle in memory, as /run is on a node.
func pauseDriver(b *testing.B) (*Driver, string) {
	dir, err := os.MkdirTemp("/dev/shm", "husk-bench-")
	must(b, err)
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := config(b)
	cfg.StateDir = filepath.Join(dir, "state")
	runtime, _, err := Find(b.Context(), cfg)
	must(b, err)
	bundle := filepath.Join(dir, "bundle")
	must(b, os.Mkdir(bundle, 0o755))
	return New(cfg, Only(runtime, nil)), bundle
}

// spec writes the spec of a probe. Hooks, which do nothing, make the runtime start and delete the
// container.
func spec(t testing.TB, dir, id string, hooks bool) {
	must(t, bundle.WriteProbe(dir, "/"+id, "", "/pause"))
	if !hooks {
		return
	}
	file := filepath.Join(dir, "config.json")
	raw, err := os.ReadFile(file)
	must(t, err)
	var s specs.Spec
	must(t, json.Unmarshal(raw, &s))
	hook := []specs.Hook{{Path: "/bin/true"}}
	s.Hooks = &specs.Hooks{Poststart: hook, Poststop: hook}
	raw, err = json.Marshal(s)
	must(t, err)
	must(t, os.WriteFile(file, raw, 0o600))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
