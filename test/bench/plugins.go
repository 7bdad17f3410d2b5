package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
)

// benchmarks are the results of package benchmarks: by name, without the prefix Benchmark, and
// unit.
type benchmarks map[string]map[string]float64

// The benchmarks that the table shows, and their units.
const (
	listInHuskd    = "Attach/husk-cni_in_process"
	listByPrograms = "Attach/ptp+host-local+portmap"
	huskCNI        = "Programs/husk-cni/0"
	chain          = "Programs/ptp+host-local+portmap/0"
	huskCNIVersion = "Programs/VERSION"
	startUnit      = "ms-p50"
	addUnit        = "ms-p50-add"
	delUnit        = "ms-p50-del"
)

// plugins measures husk-cni and the reference plugins.
func plugins(ctx context.Context, p plan) (benchmarks, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkAttach$/.|^BenchmarkPrograms$/^VERSION$|^BenchmarkPrograms$/^(husk-cni|ptp.*)$/^0$",
		"-benchtime", strconv.Itoa(p.Rounds)+"x", "./internal/cni", "./internal/network/daemonless")
	cmd.Env = append(os.Environ(), "HUSK_BENCH_NETNS=own")
	return runBenchmarks(cmd)
}

func runBenchmarks(cmd *exec.Cmd) (benchmarks, error) {
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", cmd, err, out)
	}
	return parseBenchmarks(out), nil
}

// parseBenchmarks parses the output of go test, which has lines such as BenchmarkX/y-2 50 3119
// ns/op 2.1 ms-p50-add.
func parseBenchmarks(out []byte) benchmarks {
	all := benchmarks{}
	for line := range bytes.Lines(out) {
		words := strings.Fields(string(line))
		if len(words) < 4 || !strings.HasPrefix(words[0], "Benchmark") {
			continue
		}
		name := strings.TrimPrefix(words[0], "Benchmark")
		if i := strings.LastIndexByte(name, '-'); i >= 0 { // the number of CPUs
			if _, err := strconv.Atoi(name[i+1:]); err == nil {
				name = name[:i]
			}
		}
		found := map[string]float64{}
		for i := 2; i+1 < len(words); i += 2 {
			if value, err := strconv.ParseFloat(words[i], 64); err == nil {
				found[words[i+1]] = value
			}
		}
		if len(found) > 0 {
			all[name] = found
		}
	}
	return all
}

// of returns a value; nil if it wasn't measured.
func (b benchmarks) of(name, unit string) *float64 {
	if value, ok := b[name][unit]; ok {
		return &value
	}
	return nil
}
