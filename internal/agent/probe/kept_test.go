package probe

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
)

// restart replaces the prober by one that knows what the journal has, of the runs that exist.
func (c *fixture) restart(t *testing.T, runs ...Run) {
	t.Helper()
	c.takeCalls()
	c.Close()
	c.Prober = New(c.run, c.journal)
	if bad := c.Load(); len(bad) > 0 {
		t.Fatal(bad)
	}
	c.watch(runs...)
	c.Loaded()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.began, c.changes = time.Now(), 0
}

// recorded returns the IDs of the runs that have records.
func (c *fixture) recorded() string {
	return strings.Join(slices.Sorted(maps.Keys(maps.Collect(c.journal.All("probe/")))), " ")
}

var up = podplan.Health{Startup: podplan.Healthy, Readiness: podplan.Healthy}

// TestKeptThroughRestart: a run that has started up and is ready stays so through a restart.
func TestKeptThroughRestart(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		probes := map[string]string{"startup": "5:10:1:3", "readiness": "5:10:2:3"}
		a, b := c.newRun("a", probes), c.newRun("b", probes)
		c.set("b.readiness", 1)
		c.watch(a, b)
		time.Sleep(30 * time.Second)
		c.restart(t, a, b)
		if h := c.Health("p", "a"); h != up {
			t.Errorf("a was ready: %+v", h)
		}
		if h := c.Health("p", "b"); h != (podplan.Health{Startup: podplan.Healthy}) {
			t.Errorf("b wasn't ready: %+v", h)
		}
		time.Sleep(15 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.readiness@0 b.readiness@0 a.readiness@10 b.readiness@10")
		if h := c.Health("p", "a"); h != up || c.changes == 0 {
			t.Errorf("a is still ready: %+v, %d changes", h, c.changes)
		}
		// A new run of the same container starts anew, and nothing is kept of what is gone.
		later := c.newRun("a2", probes)
		c.restart(t, later, b)
		if h := c.Health("p", "a2"); h != (podplan.Health{}) || c.recorded() != "probe/b" {
			t.Errorf("a new run: %+v; the records are %s", h, c.recorded())
		}
		b.Ended = true
		c.watch(later, b)
		if c.recorded() != "" {
			t.Errorf("a run has ended, and the records are %s", c.recorded())
		}
	})
}

// TestReadinessThatIsLost: a run that was ready, and has failed while huskd was down, is unready
// soon. A single failed check, which a busy node may cause, doesn't matter.
func TestReadinessThatIsLost(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		probes := map[string]string{"readiness": "0:100:1:3"}
		a, b, d := c.newRun("a", probes), c.newRun("b", probes), c.newRun("d", probes)
		c.watch(a, b, d)
		time.Sleep(time.Second)
		c.set("a.readiness", 1)
		c.set("b.readiness", 1)
		c.errs["d.readiness"] = "no such container"
		c.restart(t, a, b, d)
		time.Sleep(500 * time.Millisecond)
		c.set("b.readiness", 0)
		time.Sleep(time.Second)
		for _, id := range []string{"a", "b", "d"} {
			if h := c.Health("p", id); h.Readiness != podplan.Healthy {
				t.Errorf("%s, after too few checks: %+v", id, h)
			}
		}
		time.Sleep(100 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.readiness@0 b.readiness@0 d.readiness@0 d.readiness@0 d.readiness@0 a.readiness@1 b.readiness@1 a.readiness@2 d.readiness@100 d.readiness@100 d.readiness@100 b.readiness@101")
		if h := c.Health("p", "a"); h.Readiness != podplan.Failing || c.recorded() != "probe/b probe/d" {
			t.Errorf("a has failed: %+v; the records are %s", h, c.recorded())
		}
		c.restart(t, a, b, d)
		if a, b := c.Health("p", "a"), c.Health("p", "b"); a.Readiness != podplan.Unknown || b.Readiness != podplan.Healthy {
			t.Errorf("after another restart: %+v, %+v", a, b)
		}
	})
}
