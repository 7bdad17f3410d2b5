package agent

import (
	"context"
	"time"
)

// The waits before a failed task is tried again.
const (
	firstRetry = time.Second
	lastRetry  = time.Minute
)

// retrier runs tasks in the background, one at a time for each key: an object's ID, or one of the
// names below. A failed task counts as running until its backoff has passed, so that podplan
// doesn't ask for it again at once.
type retrier struct {
	*podState
	running  map[string]bool
	failures map[string]int // in a row, by key
	problem  string         // the last failure; empty after a success
	// waiting holds a function for each task in its backoff, by key. It cuts the backoff short, and
	// returns false if it is too late.
	waiting map[string]func() bool
}

// Keys of tasks that are not about an object with an ID.
const (
	resizeTask  = "resize"
	evictTask   = "disk"
	cleanupTask = "volumes"
	restartTask = "restart"
)

// run starts a task unless one of that key runs. The caller holds mu.
func (r *retrier) run(key string, task func(context.Context) error) {
	if r.running[key] {
		return
	}
	r.running[key] = true
	r.a.background.Go(func() {
		r.finish(key, task(r.a.closing), func() { delete(r.running, key) })
	})
}

// finish notes the result of a task. It calls done with mu held: after a success at once, after a
// failure when the backoff has passed.
func (r *retrier) finish(key string, err error, done func()) {
	if r.a.closing.Err() != nil {
		return // the task was cut off; the next start of huskd sees what it has done
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.nudge()
	if err == nil {
		delete(r.failures, key)
		r.problem = ""
		done()
		return
	}
	r.problem = err.Error()
	n := r.failures[key]
	r.failures[key] = n + 1
	wait := min(firstRetry<<min(n, 10), lastRetry)
	r.warn("agent: a task failed and will be retried", err, "in", wait)
	timer := time.AfterFunc(wait, func() {
		r.mu.Lock()
		delete(r.waiting, key)
		done()
		r.mu.Unlock()
		r.nudge()
	})
	r.waiting[key] = func() bool {
		if !timer.Stop() {
			return false
		}
		delete(r.waiting, key)
		done()
		return true
	}
}

// hurry makes a task that waits for its backoff due, as if it hadn't failed. The caller holds mu.
func (r *retrier) hurry(key string) {
	if skip := r.waiting[key]; skip != nil && skip() {
		delete(r.failures, key)
	}
}
