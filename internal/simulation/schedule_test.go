package simulation

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// schedule is what happens to a machine from outside. The flag -replay takes it as JSON.
type schedule struct {
	Seed uint64 `json:"seed"`
	// Rate is how many of a thousand acts have a fault.
	Rate  int    `json:"rate,omitempty"`
	Steps []step `json:"steps"`
	// Faults are, if Exact, the faults of acts, and no others happen.
	Faults []string `json:"faults,omitempty"`
	Exact  bool     `json:"exact,omitempty"`
}

// step is a call of huskd, or something that happens to it.
type step struct {
	At        span   `json:"at"`
	Do        string `json:"do"`
	Pod       string `json:"pod,omitempty"`
	Container string `json:"container,omitempty"`
	Attempt   int    `json:"attempt,omitempty"`
	// For is how long the client waits, huskd is away or the disk is full.
	For span `json:"for,omitzero"`
}

// span is a duration that is readable in JSON.
type span struct{ time.Duration }

func (s span) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (s *span) UnmarshalText(text []byte) (err error) {
	s.Duration, err = time.ParseDuration(string(text))
	return err
}

func (s step) String() string {
	words := []string{s.Do}
	switch {
	case s.Container != "":
		words = append(words, fmt.Sprintf("%s/%s.%d", s.Pod, s.Container, s.Attempt))
	case s.Pod != "":
		words = append(words, fmt.Sprintf("%s.%d", s.Pod, s.Attempt))
	}
	return strings.Join(append(words, "for", s.For.String()), " ")
}

func (s schedule) String() string {
	var b strings.Builder
	for _, st := range s.Steps {
		fmt.Fprintf(&b, "%9.3f %v\n", st.At.Seconds(), st)
	}
	if s.Exact {
		fmt.Fprintf(&b, "          faults: %s\n", strings.Join(s.Faults, ", "))
	}
	return b.String()
}

// JSON returns the schedule for -replay.
func (s schedule) JSON() string {
	data, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(data)
}

// fault returns the fault of an act.
func (s schedule) fault(key string, r *rand.Rand) string {
	kinds := []string{fails, fails, half, half, hangs, sticks, slow}
	fault, hit := kinds[r.IntN(len(kinds))], r.IntN(1000) < s.Rate
	if s.Exact {
		for _, f := range s.Faults {
			if name, kind, _ := strings.Cut(f, "="); name == key {
				return kind
			}
		}
		return fine
	}
	if !hit {
		return fine
	}
	return fault
}

// verbs are the kinds of steps. Frequent ones are listed more than once.
var verbs = strings.Fields(`
	run run run run run create create create create create create start start start start start
	stop remove remove end end delete delete exit exit infra-exit unpin
	crash crash crash crash crash term term reboot full damage`)

// pods are the names of pods: see config.
var pods = []string{"web", "db", "shared", "late", "host"}

// newSchedule returns the schedule of a seed.
func newSchedule(seed uint64) schedule {
	r := rand.New(rand.NewPCG(seed, 0x5eed))
	s := schedule{Seed: seed, Rate: []int{0, 10, 50, 200}[r.IntN(4)]}
	pods := pods[r.IntN(len(pods)):]
	pace := []time.Duration{20 * time.Millisecond, 200 * time.Millisecond, 3 * time.Second}[r.IntN(3)]
	waits := []time.Duration{30 * time.Millisecond, time.Second, time.Minute, 10 * time.Minute, 10 * time.Minute}
	at := time.Duration(0)
	for range 10 + r.IntN(60) {
		at += time.Duration(r.Int64N(int64(pace)))
		st := step{At: span{at}, Do: verbs[r.IntN(len(verbs))]}
		switch st.Do {
		case "crash", "term", "reboot", "damage":
			st.For = span{time.Duration(r.IntN(300)) * time.Millisecond}
			at += st.For.Duration
		case "full":
			st.For = span{time.Duration(r.IntN(60)) * time.Second}
		default:
			st.Pod, st.For = pods[r.IntN(len(pods))], span{waits[r.IntN(len(waits))]}
			st.Attempt = r.IntN(5) / 4
		}
		switch st.Do {
		case "create", "start", "end", "delete", "exit":
			st.Container = []string{"a", "b"}[r.IntN(2)]
		}
		s.Steps = append(s.Steps, st)
		if st.Pod != "" && r.IntN(8) == 0 { // repeat it
			st.At.Duration += time.Duration(r.IntN(20_000_000))
			s.Steps = append(s.Steps, st)
		}
	}
	slices.SortStableFunc(s.Steps, func(a, b step) int { return int(a.At.Duration - b.At.Duration) })
	return s
}

// shortest leaves out the parts of a schedule that it also fails without.
func shortest(s schedule, failing func(schedule) bool) schedule {
	for again := true; again; {
		again = false
		for size := max(len(s.Steps), len(s.Faults)) / 2; size > 0; size /= 2 {
			for i := 0; i < len(s.Steps); {
				less := s
				less.Steps = slices.Concat(s.Steps[:i], s.Steps[min(i+size, len(s.Steps)):])
				if failing(less) {
					s, again = less, true
				} else {
					i += size
				}
			}
			for i := 0; i < len(s.Faults); {
				less := s
				less.Faults = slices.Concat(s.Faults[:i], s.Faults[min(i+size, len(s.Faults)):])
				if failing(less) {
					s, again = less, true
				} else {
					i += size
				}
			}
		}
	}
	return s
}
