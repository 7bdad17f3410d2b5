package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/bench/gauge"
	"github.com/huskd/husk/test/node"
)

// BenchmarkMemory reports huskd's memory without pods and with 100, 400 and 1,000, each with one
// container, and how much of it is a pod's, which must not depend on how many there are.
func BenchmarkMemory(b *testing.B) {
	for _, pods := range []int{100, 400, 1000} {
		b.Run(fmt.Sprint(pods), func(b *testing.B) {
			n, d := start(b)
			for b.Loop() {
				idle := rest(b, d)
				var names []string
				manifest := ""
				for i := range pods {
					names = append(names, fmt.Sprintf("p%d", i))
					manifest += "---" + fmt.Sprintf(sleeper, names[i])
				}
				n.MustHusk("run", write(b, n, "pods.yaml", manifest))
				node.Eventually(b, 20*time.Minute, func() string {
					if running := strings.Count(n.MustHusk("ps"), "Running"); running < pods {
						return fmt.Sprintf("%d pods are running", running)
					}
					return ""
				})
				full := rest(b, d)
				b.ReportMetric(float64(idle)/1e6, "MB-idle")
				b.ReportMetric(float64(full)/1e6, "MB-with-pods")
				b.ReportMetric(float64(full-idle)/float64(pods), "B/pod")
				n.MustHusk(append([]string{"rm", "-f"}, names...)...)
			}
			d.Stop()
		})
	}
}

// settling is how long huskd is left alone before its memory is read, so that it returns to the
// kernel what it needed only for a moment.
const settling = 30 * time.Second

// rest returns the PSS of a huskd, in bytes, that has had nothing to do for a while.
func rest(b *testing.B, d *node.Daemon) int64 {
	b.Helper()
	time.Sleep(settling)
	size, err := gauge.PSS(d.Pid())
	if err != nil {
		b.Fatal(err)
	}
	return size
}
