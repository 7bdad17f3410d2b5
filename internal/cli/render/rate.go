package render

import (
	"math"
	"time"
)

// rateWindow is the period over which a speed is averaged: long enough to be steady, short enough
// to show a stall.
const rateWindow = 4 * time.Second

// sampleInterval is the least time between samples, which keeps them few however many events
// arrive.
const sampleInterval = 100 * time.Millisecond

// Rate measures the speed of a transfer.
type Rate struct{ samples []sample }

type sample struct {
	at   time.Time
	done int64
}

// Add records that done bytes were transferred at now. If done is less than before, the transfer
// was restarted.
func (r *Rate) Add(now time.Time, done int64) {
	n := len(r.samples)
	if n > 0 && done < r.samples[n-1].done {
		r.samples, n = nil, 0
	}
	if n > 1 && r.samples[n-1].at.Sub(r.samples[n-2].at) < sampleInterval { // too close to keep both
		r.samples[n-1] = sample{now, done}
		return
	}
	for len(r.samples) > 1 && now.Sub(r.samples[1].at) >= rateWindow {
		r.samples = r.samples[1:]
	}
	r.samples = append(r.samples, sample{now, done})
}

// PerSecond returns the speed at now in bytes per second; 0 if there are too few samples.
func (r *Rate) PerSecond(now time.Time) int64 {
	n := len(r.samples)
	if n == 0 {
		return 0
	}
	first, last := r.samples[0], r.samples[n-1]
	span := now.Sub(first.at)
	if span < sampleInterval {
		return 0
	}
	return int64(float64(last.done-first.done) / span.Seconds())
}

// ETA returns the time until the remaining bytes are transferred; ok is false if it can't be
// estimated.
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
