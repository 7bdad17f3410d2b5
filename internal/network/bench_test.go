package network

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/pod"
)

// BenchmarkAttachDetach reports the median of each; ns/op is of both.
func BenchmarkAttachDetach(b *testing.B) {
	port := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
	for _, c := range []struct {
		name   string
		change func(*Config)
		ports  []pod.PortMapping
	}{
		{"v4", func(c *Config) { c.Subnets = c.Subnets[:1] }, nil},
		{"dual", func(*Config) {}, nil},
		{"dual,port", func(*Config) {}, []pod.PortMapping{port}},
		{"dual,bridge", func(c *Config) { c.Mode = "bridge" }, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLab(b)
			cfg := l.config()
			cfg.Quarantine = -1
			c.change(&cfg)
			n := l.open(cfg)
			var attach, detach []time.Duration
			for b.Loop() {
				b.StopTimer()
				a := l.attachment(c.ports...)
				b.StartTimer()
				start := time.Now()
				if _, err := n.Attach(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				attached := time.Now()
				if err := n.Detach(b.Context(), a); err != nil {
					b.Fatal(err)
				}
				attach, detach = append(attach, attached.Sub(start)), append(detach, time.Since(attached))
			}
			report(b, "attach", attach)
			report(b, "detach", detach)
		})
	}
}

func report(b *testing.B, what string, d []time.Duration) {
	slices.Sort(d)
	b.ReportMetric(float64(d[len(d)/2].Microseconds()), "µs-p50-"+what)
	b.ReportMetric(float64(d[len(d)*9/10].Microseconds()), "µs-p90-"+what)
}

var _ = fmt.Sprint
