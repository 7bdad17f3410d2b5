package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

const kubeProxy = "kube-proxy"

// buildKubeProxy builds kube-proxy from its module, unless it was built before.
func buildKubeProxy(ctx context.Context, dir string) error {
	path := filepath.Join(dir, kubeProxy)
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	fmt.Fprintln(os.Stderr, "building kube-proxy, which takes a few minutes")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "k8s.io/kubernetes/cmd/kube-proxy")
	cmd.Dir = "test/interop/kubelet"
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build kube-proxy: %w\n%s", err, out)
	}
	return nil
}

// services measures how connections to Services are led, by what huskd does and by kube-proxy.
func services(ctx context.Context, p plan) (benchmarks, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^BenchmarkServices$", "-benchtime", "2000x", "-timeout", "30m", "./test/proxy")
	cmd.Env = append(os.Environ(), "HUSK_BENCH_KUBE_PROXY="+filepath.Join(p.Peers, kubeProxy))
	return runBenchmarks(cmd)
}

// serviceRows are beside kube-proxy, not containerd.
func serviceRows(f findings) (out []row) {
	add := func(what, shown, unit string, n int, g goal) {
		value := func(kind string) *float64 { return f.services.of(fmt.Sprintf("Services/%s/%d", kind, n), unit) }
		out = append(out, row{what, shown, value(kubeProxy), value("husk"), g})
	}
	for i, n := range []int{1, 1000, 10_000} {
		what := fmt.Sprintf("the same with %d Services", n)
		if i == 0 {
			what = "kube-proxy and Husk: a connection to a Service with request and response"
		}
		add(what, "µs", "crr-us-p50", n, part(1.1, "1.1×"))
	}
	add("kube-proxy and Husk: start with 10000 Services of 10 endpoints, until connections are led", "ms", "load-ms", 10_000, part(0.1, "1/10"))
	add("one endpoint of them changed, until connections lead there", "ms", "change-ms", 10_000, atMost(50, " ms"))
	add("memory with them, PSS", "MB", "memory-MB", 10_000, part(0.5, "1/2"))
	return out
}
