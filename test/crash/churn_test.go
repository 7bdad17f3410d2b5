package crash

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

var churned = flag.Int("pods", 60, "how many pods TestChurn makes and removes")

// figures are the counts and sizes that a leak in huskd would increase.
type figures struct {
	PSS                     int // kB
	goroutines, descriptors int
	threads                 int
	journal                 int // bytes of both journals
	nft                     int // lines of the ruleset, elements included
}

func (f figures) String() string {
	return fmt.Sprintf("PSS %.1f MB, %d goroutines, %d descriptors, %d threads, journals %d kB, nft %d lines",
		float64(f.PSS)/1024, f.goroutines, f.descriptors, f.threads, f.journal/1024, f.nft)
}

// measure returns the figures of the node's huskd.
func (m *machine) measure() (f figures) {
	m.t.Helper()
	pid := m.d.Pid()
	count := func(dir string) int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/%s", pid, dir))
		if err != nil {
			m.t.Fatal(err)
		}
		return len(entries)
	}
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		m.t.Fatal(err)
	}
	for line := range strings.Lines(string(rollup)) {
		if value, ok := strings.CutPrefix(line, "Pss:"); ok {
			f.PSS, _ = strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")))
		}
	}
	for line := range strings.Lines(m.Husk("doctor").Stdout) { // which fails where something of the node is amiss
		if before, _, ok := strings.Cut(line, " goroutines"); ok {
			fields := strings.Fields(before)
			f.goroutines, _ = strconv.Atoi(fields[len(fields)-1])
		}
	}
	f.descriptors, f.threads = count("fd"), count("task")
	for _, path := range []string{"journal/journal", "network/journal"} {
		if info, err := os.Stat(m.Path(filepath.Join(m.Root, path))); err == nil {
			f.journal += int(info.Size())
		}
	}
	f.nft = strings.Count(m.Must("nft", "list", "ruleset"), "\n")
	return f
}

// TestChurn creates and removes pods, several at a time, and compares huskd's figures before and
// after.
func TestChurn(t *testing.T) {
	m := newMachine(t, *seed, false)
	var made atomic.Int64
	rounds := func(count int) {
		var all sync.WaitGroup
		var next atomic.Int64
		for range 6 {
			all.Go(func() {
				for next.Add(1) <= int64(count) && !t.Failed() {
					m.round(int(made.Add(1)))
				}
			})
		}
		all.Wait()
	}
	rounds(60) // what is made once is there now
	before := m.settled(figures{})
	t.Logf("before: %v", before)
	began := time.Now()
	const parts = 4
	var early figures
	for part := range parts {
		rounds(*churned / parts)
		f := m.measure()
		if part == 0 {
			early = f
		}
		t.Logf("after %5d pods in %v: %v", (part+1)**churned/parts, time.Since(began).Round(time.Second), f)
	}
	after := m.settled(before)
	t.Logf("at the end: %v", after)
	// The heap settles within some hundred pods. With 10,000 pods, this limit allows less than
	// three kilobytes per pod.
	const heap = 24 << 10
	if limit := early.PSS + heap; after.PSS > limit {
		t.Errorf("the PSS has grown from %d kB to %d kB, more than to %d kB", early.PSS, after.PSS, limit)
	}
	if limit := before.threads + 10; after.threads > limit {
		t.Errorf("there were %d threads and are %d", before.threads, after.threads)
	}
	if limit := 6 << 20; after.journal > limit {
		t.Errorf("the journals have %d bytes: they are not compacted", after.journal)
	}
	m.checkBystander()
	m.empty()
}

// settled returns the figures once background work is done, and no count is higher than it was in
// before.
func (m *machine) settled(before figures) (f figures) {
	m.t.Helper()
	if before == (figures{}) {
		time.Sleep(time.Second)
		return m.measure()
	}
	node.Eventually(m.t, 30*time.Second, func() string {
		f = m.measure()
		if f.goroutines > before.goroutines+3 || f.descriptors > before.descriptors+3 || f.nft > before.nft {
			return fmt.Sprintf("huskd has grown from %v to %v", before, f)
		}
		return ""
	})
	return f
}

// round creates a pod and removes it.
func (m *machine) round(i int) {
	ctx, cancel := context.WithTimeout(m.t.Context(), 2*time.Minute)
	defer cancel()
	sandbox, _, err := m.up(ctx, fmt.Sprintf("churn-%d", i), 0)
	if err == nil {
		_, err = m.cri.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
	}
	if err == nil {
		_, err = m.cri.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	}
	if err != nil {
		m.t.Errorf("pod %d: %v", i, err)
	}
}
