package simulation

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"
)

var (
	seed   = flag.Uint64("seed", 0, "run only the schedule of this seed")
	replay = flag.String("replay", "", "run only this schedule, as a failure prints it")
	steps  = flag.Int("steps", 0, "run that many steps; 0 is for some seconds")
)

// scratch is the directory of the machines' files, in memory if possible.
var scratch = func() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}()

// simulate runs a schedule in simulated time.
func simulate(t *testing.T, s schedule, tracing bool) (m *machine) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, s.Seed) // IDs
		m = runSchedule(t, s, tracing)
	})
	return m
}

// defaultLength is how long TestSchedule runs by default.
const defaultLength = 8 * time.Second

// TestSchedule runs the schedules of one seed after the other.
func TestSchedule(t *testing.T) {
	if *replay != "" {
		var s schedule
		if err := json.Unmarshal([]byte(*replay), &s); err != nil {
			t.Fatal(err)
		}
		report(t, s)
		return
	}
	if *seed != 0 {
		report(t, newSchedule(*seed))
		return
	}
	began := time.Now()
	done, lives, faults := 0, 0, 0
	last := uint64(0)
	for next := uint64(1); *steps == 0 && time.Since(began) < defaultLength || done < *steps; next++ {
		m := simulate(t, newSchedule(next), false)
		if len(m.wrong) > 0 {
			report(t, newSchedule(next))
			t.Fatalf("seed %d: %s, but not when repeated", next, m.wrong[0])
		}
		done, lives, faults, last = done+m.steps+m.disk.Writes, lives+m.lives, faults+len(m.fired), next
	}
	t.Logf("%d steps of %d schedules, %d lives of huskd, %d faults, in %v: %.1f million steps a minute",
		done, last, lives, faults, time.Since(began).Round(time.Second), float64(done)/1e6/time.Since(began).Minutes())
}

// tries is how often a schedule is run to see whether it fails, as the order of simultaneous events
// is not determined.
const tries = 4

// attempt runs a schedule until it fails, at most tries times.
func attempt(t *testing.T, s schedule, tracing bool) (m *machine) {
	for range tries {
		if m = simulate(t, s, tracing); len(m.wrong) > 0 {
			break
		}
	}
	return m
}

// report fails t with the shortest schedule that has the failure.
func report(t *testing.T, s schedule) {
	m := attempt(t, s, true)
	if len(m.wrong) == 0 {
		t.Logf("seed %d: no failure in %d steps", s.Seed, m.steps)
		return
	}
	s.Faults, s.Exact = m.fired, true
	kind := m.wrong[0]
	least := shortest(s, func(less schedule) bool { return len(attempt(t, less, false).wrong) > 0 })
	if again := attempt(t, least, true); len(again.wrong) > 0 {
		m, kind = again, again.wrong[0]
	}
	t.Fatalf("%s\n\nThe shortest schedule that fails:\n%s\nWhat happens:\n%s\n\nAgain: go test ./internal/simulation -run TestSchedule -seed %d\nor:    go test ./internal/simulation -run TestSchedule -replay '%s'",
		strings.TrimSpace(kind), least, strings.Join(m.trace, "\n"), s.Seed, least.JSON())
}
