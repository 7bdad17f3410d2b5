package probe

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/journal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is a prober in a synctest bubble. Its programs have the results that the test sets.
type fixture struct {
	*Prober
	journal *journal.Journal
	mu      sync.Mutex
	began   time.Time
	calls   []string          // run.program@second
	code    map[string]int    // exit codes by run.program
	stuck   map[string]bool   // programs that don't end
	errs    map[string]string // errors of programs that can't be run
	changes int
	failed  []string
}

func openJournal(t testing.TB) *journal.Journal {
	t.Helper()
	j, damage, err := journal.Open(t.TempDir())
	if err != nil || len(damage) > 0 {
		t.Fatal(err, damage)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
	return j
}

func withFixture(t *testing.T, fn func(t *testing.T, c *fixture)) {
	synctest.Test(t, func(t *testing.T) {
		c := &fixture{began: time.Now(), code: map[string]int{}, stuck: map[string]bool{}, errs: map[string]string{}}
		c.journal = openJournal(t)
		c.Prober = New(c.run, c.journal)
		fn(t, c)
		c.Close()
	})
}

func (c *fixture) run(ctx context.Context, id string, args []string) (int, string, error) {
	name := id + "." + args[0]
	c.mu.Lock()
	c.calls = append(c.calls, fmt.Sprintf("%s@%g", name, time.Since(c.began).Seconds()))
	code, stuck, err := c.code[name], c.stuck[name], c.errs[name]
	c.mu.Unlock()
	if stuck {
		<-ctx.Done()
		return 0, "", ctx.Err()
	}
	if err != "" {
		return 0, "", fmt.Errorf("%s", err)
	}
	return code, "", nil
}

func (c *fixture) set(name string, code int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.code[name] = code
}

// takeCalls returns the calls since the last time.
func (c *fixture) takeCalls() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.SortStableFunc(c.calls, func(a, b string) int { // those at the same time by name
		if _, x, _ := strings.Cut(a, "@"); !strings.HasSuffix(b, "@"+x) {
			return 0
		}
		return strings.Compare(a, b)
	})
	out := strings.Join(c.calls, " ")
	c.calls = nil
	return out
}

func (c *fixture) change() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes++
}

// newRun returns a run of a container with exec probes, which run programs with the name of the
// probe. The values of probes are initialDelay:period:successThreshold:failureThreshold.
func (c *fixture) newRun(id string, probes map[string]string) Run {
	container := &corev1.Container{Name: id}
	for name, times := range probes {
		p := &corev1.Probe{TimeoutSeconds: 1}
		if _, err := fmt.Sscanf(times, "%d:%d:%d:%d", &p.InitialDelaySeconds, &p.PeriodSeconds, &p.SuccessThreshold, &p.FailureThreshold); err != nil {
			panic(err)
		}
		p.Exec = &corev1.ExecAction{Command: []string{name}}
		switch name {
		case "startup":
			container.StartupProbe = p
		case "liveness":
			container.LivenessProbe = p
		case "readiness":
			container.ReadinessProbe = p
		}
	}
	return Run{Target: Target{ID: id, Container: container}, Started: time.Now()}
}

func (c *fixture) fail(t Target, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed = append(c.failed, t.ID+" "+message)
}

func (c *fixture) watch(runs ...Run) {
	c.Watch("p", runs, Watcher{Changed: c.change, Failed: c.fail, Warned: c.fail})
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %s\nwant %s", what, got, want)
	}
}

func TestPeriods(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.watch(c.newRun("a", map[string]string{"liveness": "0:10:1:3", "readiness": "5:4:1:1"}))
		time.Sleep(20 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.liveness@0 a.readiness@5 a.readiness@9 a.liveness@10 a.readiness@13 a.readiness@17 a.liveness@20")
		if h := c.Health("p", "a"); h != (podplan.Health{Liveness: podplan.Healthy, Readiness: podplan.Healthy}) || c.changes != 2 {
			t.Errorf("%+v after %d changes", h, c.changes)
		}
		c.watch()
		time.Sleep(time.Minute)
		expect(t, "calls after it was dropped", c.takeCalls(), "")
		if len(c.pods) != 0 || len(c.queue) != 0 {
			t.Errorf("left: %v %v", c.pods, c.queue)
		}
	})
}

// TestSharedTicks checks that checks of containers that started at different times are repeated at
// the same times, because each wake-up costs more than a check.
func TestSharedTicks(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		var runs []Run
		for i, name := range []string{"a", "b", "c", "d"} {
			time.Sleep(time.Duration(i) * 30 * time.Millisecond) // at 0, 30, 90 and 180 ms
			runs = append(runs, c.newRun(name, map[string]string{"readiness": "0:1:1:1"}))
			c.watch(runs...)
		}
		time.Sleep(2 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.readiness@0 b.readiness@0.03 c.readiness@0.09 d.readiness@0.18 "+
			"a.readiness@1 b.readiness@1 c.readiness@1 d.readiness@1.2 a.readiness@2 b.readiness@2 c.readiness@2")
	})
}

// TestClockIsSetBack: a container that was started in the future, by the clock of now, is probed
// after its initial delay.
func TestClockIsSetBack(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		r := c.newRun("a", map[string]string{"liveness": "5:10:1:3", "readiness": "0:100:1:1"})
		r.Started = r.Started.Add(time.Hour)
		c.watch(r)
		time.Sleep(16 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.readiness@0 a.liveness@5 a.liveness@15")
	})
}

func TestStartupHoldsBackTheOthers(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.set("a.startup", 1)
		c.watch(c.newRun("a", map[string]string{"startup": "0:2:1:10", "liveness": "1:100:1:1", "readiness": "7:100:1:1"}))
		time.Sleep(5 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.startup@0 a.startup@2 a.startup@4")
		if h := c.Health("p", "a"); h.Startup != podplan.Unknown || h.Message != "startup probe failed: startup: exit code 1" {
			t.Errorf("%+v", h)
		}
		c.set("a.startup", 0)
		time.Sleep(5 * time.Second)
		expect(t, "later calls", c.takeCalls(), "a.liveness@6 a.startup@6 a.readiness@7")
		if h := c.Health("p", "a"); h != (podplan.Health{Startup: podplan.Healthy, Liveness: podplan.Healthy, Readiness: podplan.Healthy}) {
			t.Errorf("%+v", h)
		}
	})
}

func TestFailing(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		a := c.newRun("a", map[string]string{"liveness": "0:1:1:3", "readiness": "0:1:2:2"})
		c.watch(a)
		time.Sleep(3500 * time.Millisecond)
		c.takeCalls()
		c.set("a.liveness", 7)
		c.set("a.readiness", 8)
		time.Sleep(4 * time.Second)
		// After the liveness probe has failed, only the readiness probe continues.
		expect(t, "calls", c.takeCalls(), "a.liveness@4 a.readiness@4 a.liveness@5 a.readiness@5 a.liveness@6 a.readiness@6 a.readiness@7")
		h := c.Health("p", "a")
		if h.Liveness != podplan.Failing || h.Readiness != podplan.Failing || h.Message != "liveness probe failed: liveness: exit code 7" || len(c.failed) != 7 {
			t.Errorf("%+v %v", h, c.failed)
		}
		c.set("a.readiness", 0)
		a.Ended = true
		c.watch(a)
		time.Sleep(time.Minute)
		expect(t, "calls after the end", c.takeCalls(), "")
		if c.Health("p", "a") != h {
			t.Errorf("its health has changed to %+v", c.Health("p", "a"))
		}
	})
}

// TestSlow has a probe that doesn't answer. It runs again at the next multiple of its period and
// doesn't delay others.
func TestSlow(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.stuck["a.liveness"] = true
		a, b := c.newRun("a", map[string]string{"liveness": "0:2:1:2"}), c.newRun("b", map[string]string{"liveness": "1:2:1:1"})
		a.Container.LivenessProbe.TimeoutSeconds = 3
		c.watch(a, b)
		time.Sleep(8 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.liveness@0 b.liveness@1 b.liveness@3 a.liveness@4 b.liveness@5 b.liveness@7")
		if h := c.Health("p", "a"); h.Liveness != podplan.Failing || !strings.Contains(h.Message, "did not end in time") {
			t.Errorf("%+v", h)
		}
	})
}

// TestCheckImpossible has a check that can't be carried out. It is tried three times and yields no
// verdict.
func TestCheckImpossible(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.errs["a.liveness"] = "runtime is down"
		c.watch(c.newRun("a", map[string]string{"liveness": "0:5:1:1"}))
		time.Sleep(6 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.liveness@0 a.liveness@0 a.liveness@0 a.liveness@5 a.liveness@5 a.liveness@5")
		if h := c.Health("p", "a"); h.Liveness != podplan.Unknown || !strings.Contains(h.Message, "runtime is down") {
			t.Errorf("%+v", h)
		}
	})
}

// TestTallies: checks are counted by their results over all runs of a container, until its pod is
// gone.
func TestTallies(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		first, second := c.newRun("a", map[string]string{"liveness": "0:5:1:9", "readiness": "0:60:1:1"}), c.newRun("b", map[string]string{"liveness": "0:60:1:1"})
		second.Container.Name = "a"
		c.watch(first)
		time.Sleep(time.Second)
		c.set("a.liveness", 1)
		time.Sleep(6 * time.Second)
		c.mu.Lock()
		c.errs["b.liveness"] = "runtime is down"
		c.mu.Unlock()
		c.watch(second)
		synctest.Wait()
		got := c.Tallies()
		if len(got) != 2 || got[0].Succeeded != 1 || got[0].Failed != 1 || got[0].Unknown != 1 || got[1].Succeeded != 1 || got[0].Pod != "p" || got[0].Container != "a" || got[0].Kind != "liveness" {
			t.Errorf("%+v", got)
		}
		if got[0].Checks() != 3 || got[0].Within[0] != 3 || got[0].Seconds != 0 {
			t.Errorf("%+v", got[0])
		}
		c.watch()
		if got := c.Tallies(); len(got) != 0 {
			t.Errorf("%+v", got)
		}
	})
}

// TestEndDuringProbe checks that a probe in progress neither counts nor delays the end of its run.
// TestStopping: while a run is being stopped, only its readiness is probed.
func TestStopping(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.stuck["a.liveness"] = true
		a := c.newRun("a", map[string]string{"liveness": "0:100:1:1", "readiness": "0:5:1:1"})
		b := c.newRun("b", map[string]string{"startup": "6:5:1:1", "readiness": "0:5:1:1"})
		a.Container.LivenessProbe.TimeoutSeconds = 8
		c.watch(a, b)
		time.Sleep(4 * time.Second)
		a.Stopping, b.Stopping = true, true
		c.watch(a, b)
		time.Sleep(7 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.liveness@0 a.readiness@0 a.readiness@5 a.readiness@10")
		if h := c.Health("p", "a"); h != (podplan.Health{Readiness: podplan.Healthy}) || len(c.failed) != 0 {
			t.Errorf("%+v %v", h, c.failed)
		}
		c.set("a.readiness", 1)
		time.Sleep(5 * time.Second)
		if h := c.Health("p", "a"); h.Readiness != podplan.Failing {
			t.Errorf("%+v", h)
		}
		a.Ended = true
		c.watch(a)
		c.takeCalls()
		time.Sleep(time.Minute)
		expect(t, "calls after the end", c.takeCalls(), "")
	})
}

func TestEndDuringProbe(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		c.stuck["a.liveness"] = true
		a := c.newRun("a", map[string]string{"liveness": "0:5:1:1"})
		a.Container.LivenessProbe.TimeoutSeconds = 100
		c.watch(a)
		time.Sleep(time.Second)
		a.Ended = true
		c.watch(a)
		time.Sleep(10 * time.Second)
		expect(t, "calls", c.takeCalls(), "a.liveness@0")
		if h := c.Health("p", "a"); h != (podplan.Health{}) || c.changes != 0 {
			t.Errorf("%+v", h)
		}
	})
}

// TestIdleProbesAreCheap checks a thousand containers with probes.
func TestIdleProbesAreCheap(t *testing.T) {
	t.Parallel()
	withFixture(t, func(t *testing.T, c *fixture) {
		var runs []Run
		for i := range 1000 {
			runs = append(runs, c.newRun(fmt.Sprint("r", i), map[string]string{"liveness": "1:10:1:3", "readiness": "1:10:1:3"}))
		}
		c.watch(runs...)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.calls) != 4000 || c.changes != 2000 {
			t.Errorf("%d calls, %d changes", len(c.calls), c.changes)
		}
	})
}
