package cni

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/plugin"
	"github.com/huskd/husk/internal/pod"
)

// freeTime is how long to wait after DEL for the kernel to free what it deleted.
// Otherwise the next ADD would wait for that.
const freeTime = 30 * time.Millisecond

// BenchmarkAttach measures ADD and DEL of a pod with a mapped port, by husk-cni, which
// runs in this process, and by the reference plugins, which are programs. The network is
// in a namespace of the benchmark. With HUSK_BENCH_NETNS=own it is in this process's
// namespace, as in huskd, which saves a thread for each operation; then run the benchmark
// in a network namespace of its own.
func BenchmarkAttach(b *testing.B) {
	for _, c := range []struct{ name, conf string }{
		{"husk-cni in process", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"husk-cni","subnet":"10.66.0.0/16","dataDir":"DATA","capabilities":{"portMappings":true}}]}`},
		{"ptp+host-local+portmap", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"ptp","ipMasq":true,` + hostLocal + `},{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLab(b)
			l.conf("1.conflist", c.conf)
			inside := &plugin.Plugin{Netns: l.node, Linger: 50 * time.Millisecond, Log: l.config().Log}
			if os.Getenv("HUSK_BENCH_NETNS") == "own" {
				inside.Netns = ""
			}
			h, stop := l.host(nil, func(cfg *Config) {
				cfg.Plugins = map[string]Plugin{plugin.Type: func(ctx context.Context, getenv func(string) string, stdin []byte) ([]byte, error) {
					return inside.Call(ctx, plugin.ArgsOf(getenv), stdin)
				}}
			})
			defer inside.Close()
			defer stop()
			var add, del []time.Duration
			for b.Loop() {
				b.StopTimer()
				a := l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
				time.Sleep(freeTime)
				b.StartTimer()
				began := time.Now()
				attach(b, h, a)
				attached := time.Now()
				must(b, h.Detach(b.Context(), a))
				add, del = append(add, attached.Sub(began)), append(del, time.Since(attached))
			}
			for unit, all := range map[string][]time.Duration{"ms-p50-add": add, "ms-p50-del": del} {
				slices.Sort(all)
				b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, unit)
			}
		})
	}
}
