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
	seed   = flag.Uint64("seed", 0, "run the schedule of this seed only")
	replay = flag.String("replay", "", "run this schedule only, as a failure prints it")
	steps  = flag.Int("steps", 0, "go on until so many steps are done; 0 is for some seconds")
)

// scratch is where machines have their files; memory if the host has some.
var scratch = func() string {
	if info, err := os.Stat("/dev/shm"); err == nil && info.IsDir() {
		return "/dev/shm"
	}
	return os.TempDir()
}()

// simulate carries out a schedule in a time of its own.
func simulate(t *testing.T, s schedule, tracing bool) (m *machine) {
	synctest.Test(t, func(t *testing.T) {
		cryptotest.SetGlobalRandom(t, s.Seed) // IDs
		m = carryOut(t, s, tracing)
	})
	return m
}

// someSeconds is how long TestSchedule runs unless it is told.
const someSeconds = 8 * time.Second

// TestSchedule carries out one schedule after the other, each of a seed.
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
	for next := uint64(1); *steps == 0 && time.Since(began) < someSeconds || done < *steps; next++ {
		m := simulate(t, newSchedule(next), false)
		if len(m.wrong) > 0 {
			report(t, newSchedule(next))
			t.Fatalf("seed %d: %s, but not a second time", next, m.wrong[0])
		}
		done, lives, faults, last = done+m.steps+m.disk.Writes, lives+m.lives, faults+len(m.fired), next
	}
	t.Logf("%d steps of %d schedules, %d lives of huskd, %d faults, in %v: %.1f million steps a minute",
		done, last, lives, faults, time.Since(began).Round(time.Second), float64(done)/1e6/time.Since(began).Minutes())
}

// tries is how often a schedule is carried out to see whether it fails: what
// happens at the very same time happens in any order.
const tries = 4

// attempt carries out a schedule until it fails.
func attempt(t *testing.T, s schedule, tracing bool) (m *machine) {
	for range tries {
		if m = simulate(t, s, tracing); len(m.wrong) > 0 {
			break
		}
	}
	return m
}

// report tells of a failure by the shortest schedule that has it.
func report(t *testing.T, s schedule) {
	m := attempt(t, s, true)
	if len(m.wrong) == 0 {
		t.Logf("seed %d: nothing fails in %d steps", s.Seed, m.steps)
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
