package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestLogFlood: the log of a pod that writes as fast as it can is bounded by what is written, not
// by the time of the next pass. All of it would be 300 MB and more.
func TestLogFlood(t *testing.T) {
	t.Parallel()
	const size, files, written = 5, 3, 300 // MiB
	w := newTestEnv(t, node.Flags("--log-max-size", fmt.Sprint(size), "--log-max-files", fmt.Sprint(files)))
	flood := fmt.Sprintf("yes $(head -c 1000 /dev/zero | tr '\\0' x) | head -c %d; touch /dev/shm/done; exec sleep 1000", written<<20)
	w.run(podOf("flood", only("command: "+shell(flood)+", readinessProbe: {exec: {command: [test, -e, /dev/shm/done]}, periodSeconds: 1}")))
	pattern := filepath.Join(w.Root, "logs/pods/default_flood_*/c/*")
	var largest, all int64
	for i, end := 0, time.Now().Add(2*time.Minute); ; i++ {
		time.Sleep(5 * time.Millisecond)
		paths, _ := filepath.Glob(pattern)
		sum := int64(0)
		for _, path := range paths {
			if info, err := os.Stat(path); err == nil {
				largest, sum = max(largest, info.Size()), sum+info.Size()
			}
		}
		all = max(all, sum)
		if i%100 == 0 && len(paths) == files && w.pod("flood").Ready {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the pod is still writing; the log's files are %v", paths)
		}
	}
	t.Logf("the largest file had %d MiB, and all %d MiB", largest>>20, all>>20)
	// Mostly it is less than twice what its files may have. How much the pod writes before huskd
	// gets a processor depends on what else the machine does.
	if all > written/2<<20 {
		t.Errorf("the log had %d of %d MiB, and its files may have %d times %d", all>>20, written, files, size)
	}
	w.remove("flood")
	w.end()
}
