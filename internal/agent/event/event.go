// Package event remembers what happened to pods lately, for people. It forgets
// the oldest first, and all when huskd ends.
package event

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
)

// Event is something that happened, once or several times.
type Event struct {
	Pod       string // namespace/name
	Container string // empty if it is of the whole pod
	Warning   bool
	// Reason is one word, Message one line.
	Reason, Message string
	First, Last     time.Time
	Count           int

	seq uint64
}

// maxEvents is how many events are remembered.
const maxEvents = 2000

// Log has the events, the latest last.
type Log struct {
	mu     sync.Mutex
	events []Event
	seq    uint64
	newer  chan struct{} // closed with the next event
}

// NewLog returns a log without events.
func NewLog() *Log { return &Log{newer: make(chan struct{})} }

// Add notes that something happened now. What happened before in the same words
// is one event with it.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.Last = time.Now()
	e.First, e.Count = e.Last, 1
	same := func(o Event) bool {
		return o.Pod == e.Pod && o.Container == e.Container && o.Warning == e.Warning && o.Reason == e.Reason && o.Message == e.Message
	}
	if i := slices.IndexFunc(l.events, same); i >= 0 {
		e.First, e.Count = l.events[i].First, l.events[i].Count+1
		l.events = slices.Delete(l.events, i, i+1)
	}
	l.seq++
	e.seq = l.seq
	if len(l.events) == maxEvents {
		l.events = slices.Delete(l.events, 0, 1)
	}
	l.events = append(l.events, e)
	close(l.newer)
	l.newer = make(chan struct{})
}

// After returns the events after a mark, or all after the mark 0, the mark
// behind them, and a channel that is closed once there are further ones.
func (l *Log) After(mark uint64) (events []Event, next uint64, newer <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e.seq > mark {
			events = append(events, e)
		}
	}
	return events, l.seq, l.newer
}

// Diff are the events that lie between two statuses of a pod. It is pure.
func Diff(pod string, before, after podplan.Status) []Event {
	var out []Event
	add := func(container string, warning bool, reason, format string, args ...any) {
		out = append(out, Event{Pod: pod, Container: container, Warning: warning, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	if len(before.IPs) == 0 && len(after.IPs) > 0 {
		add("", false, "SandboxReady", "its addresses are %s", strings.Join(after.IPs, ", "))
	}
	known := slices.Concat(before.Containers, before.Ephemeral)
	for i, c := range slices.Concat(after.Containers, after.Ephemeral) {
		was := podplan.ContainerStatus{}
		if i < len(known) {
			was = known[i]
		}
		if !c.Finished.IsZero() && !c.Finished.Equal(was.Finished) {
			message := fmt.Sprintf("ended with exit code %d", c.ExitCode)
			if c.Message != "" && c.State == podplan.Terminated {
				message += ": " + c.Message
			}
			add(c.Name, c.ExitCode != 0, "Ended", "%s", message)
		}
		switch {
		case c.State == podplan.Running && (was.State != podplan.Running || was.ID != c.ID):
			add(c.Name, false, "Started", "run %d has started", c.Restarts+1)
		case c.State == podplan.Waiting && c.Message != "" && (c.Reason != was.Reason || c.Message != was.Message):
			add(c.Name, true, c.Reason, "%s", c.Message)
		}
		switch {
		case c.State != podplan.Running || c.ID != was.ID:
		case c.Ready && !was.Ready:
			add(c.Name, false, "Ready", "is ready")
		case !c.Ready && was.Ready:
			add(c.Name, true, "Unready", "is not ready any more")
		}
	}
	if after.Phase != before.Phase || after.Reason != before.Reason {
		ended := after.Phase == podplan.PhaseSucceeded || after.Phase == podplan.PhaseFailed || after.Phase == podplan.PhaseStopped
		switch {
		case ended && after.Phase != before.Phase:
			message := "the pod has ended"
			if after.Phase == podplan.PhaseStopped {
				message = "the pod is stopped"
			}
			if after.Message != "" {
				message = after.Message
			}
			add("", after.Phase == podplan.PhaseFailed, string(after.Phase), "%s", message)
		case !ended && after.Message != "" && !slices.ContainsFunc(out, func(e Event) bool { return e.Message == after.Message }) && !containerHasMessage(after):
			add("", true, after.Reason, "%s", after.Message)
		}
	}
	return out
}

// containerHasMessage says whether what the pod's message says is a container's.
func containerHasMessage(s podplan.Status) bool {
	return slices.ContainsFunc(s.Containers, func(c podplan.ContainerStatus) bool { return c.Message == s.Message })
}
