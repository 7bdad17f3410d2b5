package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
)

func of(v float64) *float64 { return &v }

func TestCells(t *testing.T) {
	for _, c := range []struct {
		row  row
		want string
	}{
		{row{"run", "ms", of(100), of(5), part(1.0/15, "1/15")}, "run|100 ms|5.00 ms|0.0500×|≤ 1/15|yes"},
		{row{"run", "ms", of(100), of(7), part(1.0/15, "1/15")}, "run|100 ms|7.00 ms|0.0700×|≤ 1/15|no"},
		{row{"pods", "a second", of(10), of(100), fold(10)}, "pods|10.0 a second|100 a second|10.0×|≥ 10×|yes"},
		{row{"pods", "a second", of(10), of(99), fold(10)}, "pods|10.0 a second|99.0 a second|9.90×|≥ 10×|no"},
		{row{"memory", "MB", nil, of(0), atMost(0.1, " MB")}, "memory|–|0 MB||≤ 0.100 MB|yes"},
		{row{"memory", "MB", of(4), nil, atMost(0.1, " MB")}, "memory|4.00 MB|–||≤ 0.100 MB|"},
		{row{"run", "ms", nil, of(5), part(0.5, "half")}, "run|–|5.00 ms||≤ half|"},
		{row{"flushes", "", of(4), of(0), goal{}}, "flushes|4.00|0|0×||"},
		{row{"nothing", "", nil, nil, goal{}}, "nothing|–|–|||"},
	} {
		if got := strings.Join(c.row.cells(), "|"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}

// measuredSample returns findings such as the table reads.
func measuredSample() findings {
	op := func(name string, d time.Duration) report.Operation {
		return report.Summarise(name, []time.Duration{d}, 0, 0)
	}
	one := report.Report{Results: []report.Result{
		{Workload: "pods", Endpoint: peerName, Operations: []report.Operation{op(bench.RunPod, 90*time.Millisecond)}},
		{Workload: "pods", Endpoint: huskName, Operations: []report.Operation{op(bench.RunPod, 5*time.Millisecond)}},
		{Workload: "containers", Endpoint: peerName, Operations: []report.Operation{op(bench.CreateStart, 60*time.Millisecond)}},
		{Workload: "containers", Endpoint: crunName, Operations: []report.Operation{op(bench.CreateStart, 15*time.Millisecond)}},
		{Workload: "net", Endpoint: bench.BuiltIn, Operations: []report.Operation{op(bench.Attach, time.Millisecond)}},
		{Workload: "ipam", Endpoint: bench.Leased(0), Operations: []report.Operation{op(bench.LeaseRecord, 100*time.Microsecond)}},
		{Workload: "ipam", Endpoint: bench.Leased(hostLocalFill), Operations: []report.Operation{op(bench.LeaseRecord, 200*time.Microsecond)}},
	}}
	many := report.Report{Results: []report.Result{
		{Workload: "list, 7 pods", Endpoint: huskName, Figures: []report.Figure{{Name: bench.MonitorMemory, Value: 0.5}}},
	}}
	return findings{map[string]report.Report{"one": one, "many": many}, hostLocalTimes{2, 198}, benchmarks{listInHuskd: {addUnit: 2.5}, listByPrograms: {addUnit: 75}},
		benchmarks{"Services/husk/10000": {"load-ms": 2000}, "Services/kube-proxy/10000": {"load-ms": 28000}}}
}

func TestRows(t *testing.T) {
	var got []string
	for line := range strings.Lines(plain(rows(measuredSample()))) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"containerd Husk ratio goal reached",
		"RunPodSandbox 90.0 ms 5.00 ms 0.0556× ≤ 1/15 yes",
		"the same, Husk with crun 60.0 ms 15.0 ms 0.250× ≤ 1/3 yes",
		"memory of a container, PSS – 0.500 MB ≤ 0.600 MB yes",
		"ADD with 20000 leases, relative to none 99.0 × 1.10 × 0.0111× ≤ 1.20× yes",
		"ADD of a CNI list with a port mapping: husk-cni in huskd 75.0 ms 2.50 ms 0.0333× ≤ 3.00 ms yes",
		"ExecSync – –",
	} {
		if !slices.Contains(got, want) {
			t.Errorf("not in the table: %q\n%s", want, strings.Join(got, "\n"))
		}
	}
}

func TestMarkdown(t *testing.T) {
	for line := range strings.Lines(markdown(rows(measuredSample()))) {
		if strings.Count(line, "|") != len(header)+1 {
			t.Errorf("%d bars in %q", strings.Count(line, "|"), line)
		}
	}
}

func TestDocumentWarnsOfLoad(t *testing.T) {
	f := measuredSample()
	quiet := document(f, nil, "containerd 2")
	r := f.reports["one"]
	r.Machine.LoadBefore = 9
	f.reports["one"] = r
	if strings.Contains(quiet, "Other programs were running") || !strings.Contains(document(f, nil, ""), "Other programs were running") {
		t.Error("a busy machine is not mentioned")
	}
}

func TestWritePage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	for name, content := range map[string]string{"no place": "text\n", "no end": pageBegin + "text\n", "nothing": ""} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := writePage(path, "new\n"); err == nil {
			t.Errorf("writePage accepts a document with %s", name)
		}
		if data, _ := os.ReadFile(path); string(data) != content {
			t.Errorf("a document with %s became %q", name, data)
		}
	}
	if err := os.WriteFile(path, []byte("before\n"+pageBegin+"old\n"+pageEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := writePage(path, "new\n"); err != nil {
			t.Fatal(err)
		}
	}
	if data, _ := os.ReadFile(path); string(data) != "before\n"+pageBegin+"new\n"+pageEnd+"after\n" {
		t.Errorf("the document became %q", data)
	}
	if err := writePage(path+"-gone", "new"); err == nil {
		t.Error("writePage accepts a missing document")
	}
}

// TestDocumentHasMarkers checks that a run can update the repository's document.
func TestDocumentHasMarkers(t *testing.T) {
	data, err := os.ReadFile("../../docs/performance.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := slices.Collect(strings.Lines(string(data)))
	if begin, end := slices.Index(lines, pageBegin), slices.Index(lines, pageEnd); begin < 0 || end < begin {
		t.Error("docs/performance.md has no place for the table")
	}
}
