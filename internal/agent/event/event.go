// Package event keeps recent events of pods for users. The oldest ones are dropped first. Events
// are in memory only.
package event

import (
	"container/list"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
)

// Event is something that happened to a pod, once or several times.
type Event struct {
	Pod       string // namespace/name; empty for an event of the node
	UID       string // of the pod
	Container string // empty for an event of the pod
	Warning   bool
	// Reason is a single word, Message a single line.
	Reason, Message string
	First, Last     time.Time
	Count           int

	seq uint64
}

// Max is the number of events that a Log keeps.
const Max = 2000

// Log holds the events.
type Log struct {
	mu sync.Mutex
	// Invariant: events has the Events, the latest one last, and known its elements.
	events *list.List
	known  map[key]*list.Element
	seq    uint64
	newer  chan struct{} // closed by the next event
}

// key is what equal events have in common.
type key struct {
	pod, uid, container string
	warning             bool
	reason, message     string
}

func (e *Event) key() key {
	return key{e.Pod, e.UID, e.Container, e.Warning, e.Reason, e.Message}
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{events: list.New(), known: map[key]*list.Element{}, newer: make(chan struct{})}
}

// Add adds an event with the current time. It merges e with an equal earlier event.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	e.seq, e.Last = l.seq, time.Now()
	if known := l.known[e.key()]; known != nil {
		was := known.Value.(*Event)
		was.Last, was.seq = e.Last, e.seq
		was.Count++
		l.events.MoveToBack(known)
	} else {
		e.First, e.Count = e.Last, 1
		if l.events.Len() == Max {
			oldest := l.events.Remove(l.events.Front()).(*Event)
			delete(l.known, oldest.key())
		}
		l.known[e.key()] = l.events.PushBack(&e)
	}
	close(l.newer)
	l.newer = make(chan struct{})
}

// After returns the events after a position and the position of the last event. Position 0 is
// before all events. newer is closed when there are further events.
func (l *Log) After(position uint64) (events []Event, next uint64, newer <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for e := l.events.Back(); e != nil && e.Value.(*Event).seq > position; e = e.Prev() {
		events = append(events, *e.Value.(*Event))
	}
	slices.Reverse(events)
	return events, l.seq, l.newer
}

// Diff returns the events that lead from one status of a pod to another. It is pure. Reasons and
// texts are the kubelet's where it has one for the same, because tools filter by them.
func Diff(pod, uid string, before, after podplan.Status) []Event {
	var out []Event
	add := func(container string, warning bool, reason, format string, args ...any) {
		out = append(out, Event{Pod: pod, UID: uid, Container: container, Warning: warning, Reason: reason, Message: fmt.Sprintf(format, args...)})
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
		if c.ID != "" && c.ID != was.ID {
			add(c.Name, false, "Started", "Container started")
		}
		if !c.Finished.IsZero() && !c.Finished.Equal(was.Finished) {
			message := fmt.Sprintf("ended with exit code %d", c.ExitCode)
			if c.Message != "" && c.State == podplan.Terminated {
				message += ": " + c.Message
			}
			add(c.Name, c.ExitCode != 0, "Ended", "%s", message)
		}
		if c.State == podplan.Waiting && c.Message != "" && (c.Reason != was.Reason || c.Message != was.Message) {
			waiting(c, pod, uid, add)
		}
		switch {
		case c.State != podplan.Running || c.ID != was.ID:
		case c.Ready && !was.Ready:
			add(c.Name, false, "Ready", "is ready")
		case !c.Ready && was.Ready:
			add(c.Name, true, "Unready", "is no longer ready")
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
			if after.Reason == podplan.ReasonDeadline {
				add("", false, after.Reason, "%s", message)
				break
			}
			add("", after.Phase == podplan.PhaseFailed, "Pod"+string(after.Phase), "%s", message)
		case !ended && after.Message != "" && !slices.ContainsFunc(out, func(e Event) bool { return e.Message == after.Message }) && !containerHasMessage(after):
			reason, message := after.Reason, after.Message
			if reason == "CreatePodSandboxError" || reason == podplan.ReasonPort {
				reason, message = "FailedCreatePodSandBox", "Failed to create pod sandbox: "+message
			}
			add("", true, reason, "%s", message)
		}
	}
	return out
}

// waiting adds the events of a container that waits because something has failed.
func waiting(c podplan.ContainerStatus, pod, uid string, add func(container string, warning bool, reason, format string, args ...any)) {
	switch c.Reason {
	case "CrashLoopBackOff":
		namespace, name, _ := strings.Cut(pod, "/")
		add(c.Name, true, "BackOff", "Back-off restarting failed container %s in pod %s_%s(%s)", c.Name, name, namespace, uid)
	case "ImagePullBackOff":
		add(c.Name, false, "BackOff", "Back-off pulling image %q", c.Image) // the delay in c.Message would make an event of each
		add(c.Name, true, "Failed", "Error: %s", c.Reason)
	case "ErrImageNeverPull":
		add(c.Name, true, c.Reason, "Container image %q is not present with pull policy of Never", c.Image)
		add(c.Name, true, "Failed", "Error: %s", c.Reason)
	case "InvalidImageName", "ImageInspectError":
		add(c.Name, true, "InspectFailed", "%s", c.Message)
		add(c.Name, true, "Failed", "Error: %s", c.Reason)
	case "ErrImagePull":
		add(c.Name, true, "Failed", "Failed to pull image %q: %s", c.Image, c.Message)
		add(c.Name, true, "Failed", "Error: %s", c.Reason)
	case "ContainerCreating", "PodInitializing", "PostStartHookError": // the volume or the hook that failed has its own event
	default:
		add(c.Name, true, "Failed", "Error: %s", c.Message)
	}
}

// containerHasMessage reports whether the pod's message is that of a container.
func containerHasMessage(s podplan.Status) bool {
	return slices.ContainsFunc(s.Containers, func(c podplan.ContainerStatus) bool { return c.Message == s.Message })
}
