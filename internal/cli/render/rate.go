package render

import (
	"math"
	"time"
)

// rateWindow is how far back a speed looks: long enough to be calm, short enough to show a stall.
const rateWindow = 4 * time.Second

// sampleGap keeps the samples of a window few, however many events come.
const sampleGap = 100 * time.Millisecond

// Rate measures the speed of a transfer from what it has done at which time.
type Rate struct{ samples []sample }

type sample struct {
	at   time.Time
	done int64
}

// Add tells that done bytes were there at now. A number below the last one is a transfer that began
// anew.
func (r *Rate) Add(now time.Time, done int64) {
	n := len(r.samples)
	if n > 0 && done < r.samples[n-1].done {
		r.samples, n = nil, 0
	}
	if n > 1 && r.samples[n-1].at.Sub(r.samples[n-2].at) < sampleGap { // too near to keep both
		r.samples[n-1] = sample{now, done}
		return
	}
	for len(r.samples) > 1 && now.Sub(r.samples[1].at) >= rateWindow {
		r.samples = r.samples[1:]
	}
	r.samples = append(r.samples, sample{now, done})
}

// PerSecond is the speed at now in bytes; 0 until it can be told.
func (r *Rate) PerSecond(now time.Time) int64 {
	n := len(r.samples)
	if n == 0 {
		return 0
	}
	first, last := r.samples[0], r.samples[n-1]
	span := now.Sub(first.at)
	if span < sampleGap {
		return 0
	}
	return int64(float64(last.done-first.done) / span.Seconds())
}

// ETA is the time until left more bytes are there; ok is false if it can't be told.
func (r *Rate) ETA(now time.Time, left int64) (eta time.Duration, ok bool) {
	speed := r.PerSecond(now)
	if speed <= 0 || left < 0 {
		return 0, false
	}
	seconds := math.Ceil(float64(left) / float64(speed))
	if seconds > (99 * time.Hour).Seconds() {
		return 0, false
	}
	return time.Duration(seconds) * time.Second, true
}
