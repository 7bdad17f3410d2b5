package benchcmd

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/internal/cli/render"
)

// parse parses a command line. problem is the error, if any.
func parse(t *testing.T, args ...string) (cfg bench.Config, problem string) {
	t.Helper()
	c := &command{App: App{Out: os.Stdout, Errs: os.Stderr, Socket: func() string { return "unix:///run/husk.sock" }, CleansUp: func() {}}}
	cmd := c.command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		cfg, err = c.config(cmd, args)
		return err
	}
	cmd.SetArgs(args)
	if err := cmd.Execute(); err != nil {
		problem = err.Error()
	}
	return cfg, problem
}

func TestEndpoints(t *testing.T) {
	for args, want := range map[string][]bench.Endpoint{
		"pods": {{Socket: "/run/husk.sock"}},
		"net":  nil,
		"pods --endpoint /a.sock --endpoint unix:/b.sock --endpoint c=unix:///c=d.sock": {{Socket: "/a.sock"}, {Socket: "/b.sock"}, {Name: "c", Socket: "/c=d.sock"}},
		"restart --restart true": {{Socket: "/run/husk.sock", Restart: []string{"true"}}},
	} {
		cfg, problem := parse(t, strings.Fields(args)...)
		if problem != "" || !reflect.DeepEqual(cfg.Endpoints, want) {
			t.Errorf("%s: %+v, %s", args, cfg.Endpoints, problem)
		}
	}
	for args, want := range map[string]string{
		"":                             "needs a WORKLOAD",
		"pods --endpoint relative":     "is not a Unix socket",
		"pods --endpoint a=":           "is not a Unix socket",
		"pods --endpoint http://x/y":   "is not a Unix socket",
		"pods --restart a --restart b": "more --restart",
		"pods nap":                     "unknown workload",
		"pods -n 0":                    "--samples must be at least 1",
		"churn --for 0s":               "--for must be positive",
	} {
		if _, problem := parse(t, strings.Fields(args)...); !strings.Contains(problem, want) {
			t.Errorf("%s: %q, want %q", args, problem, want)
		}
	}
}

func TestView(t *testing.T) {
	v := &view{}
	if lines := v.frame(render.Canvas{Width: 80}); len(lines) != 1 {
		t.Errorf("before the first step: %q", lines)
	}
	step := func(workload, endpoint string, took time.Duration, err error) bool {
		return v.record(bench.Step{Workload: workload, Endpoint: endpoint, Operation: "run", Took: took, Err: err, Done: 1, Total: 2})
	}
	if !step("pods", "a", 9*time.Millisecond, nil) || step("pods", "a", time.Millisecond, nil) || step("pods", "longer", time.Millisecond, errors.New("no")) {
		t.Error("record doesn't report the first step of a workload")
	}
	step("pods", "a", 5*time.Millisecond, nil)
	got := strings.Join(v.frame(render.Canvas{Width: 80}), "\n")
	for _, want := range []string{"pods  ############............ 1 of 2", "  run  a       3     p50 5.00", "  run  longer  0     p50 0 ", "1 failed"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if !step("exec", "a", 0, nil) || len(v.rows) != 1 {
		t.Error("rows of the previous workload are still shown")
	}
	if lines := v.frame(render.Canvas{Width: 80, UTF8: true}); !strings.Contains(lines[0], "█") {
		t.Errorf("%q", lines)
	}
}

func TestEarlier(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.json")
	c := &command{}
	if r, err := c.earlier(); r != nil || err != nil {
		t.Errorf("without a file: %v, %v", r, err)
	}
	c.compare = path
	if _, err := c.earlier(); err == nil {
		t.Error("a missing file is accepted")
	}
	for _, text := range []string{"", "[]", "{}", `{"format": 2}`, `{"format": "1"}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.earlier(); err == nil || !strings.Contains(err.Error(), "not a report of husk bench") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestFailures(t *testing.T) {
	r := report.Report{Results: []report.Result{{Workload: "pods", Endpoint: "a", Operations: []report.Operation{{Name: "run", Errors: 2}}, Failures: []string{"run: no"}}}}
	if err := failures(r); err == nil || err.Error() != "pods: a: run: no\n2 operations failed" {
		t.Errorf("%v", err)
	}
	if err := failures(report.Report{}); err != nil {
		t.Error(err)
	}
}
