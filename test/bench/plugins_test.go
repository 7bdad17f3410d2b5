package main

import "testing"

func TestParseBenchmarks(t *testing.T) {
	b := parseBenchmarks([]byte("goos: linux\nBenchmarkAttach/husk-cni_in_process-2 \t 60\t 7229449 ns/op\t 3.778 ms-p50-add\t 1.868 ms-p50-del\n" +
		"--- BENCH: BenchmarkAttach/husk-cni_in_process-2\n    lab_test.go:365: time=x\nBenchmarkPrograms/VERSION 50 1 ns/op 3.0 ms-p50\nBenchmarkBroken-2\nPASS\n"))
	for _, c := range []struct {
		name, unit string
		want       float64
	}{{listInHuskd, addUnit, 3.778}, {listInHuskd, delUnit, 1.868}, {huskCNIVersion, startUnit, 3}} {
		if got := b.of(c.name, c.unit); got == nil || *got != c.want {
			t.Errorf("%s %s: %v, want %v", c.name, c.unit, got, c.want)
		}
	}
	if len(b) != 2 || b.of(chain, addUnit) != nil || benchmarks(nil).of(huskCNIVersion, startUnit) != nil {
		t.Errorf("%v", b)
	}
}
