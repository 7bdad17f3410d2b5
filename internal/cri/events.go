package cri

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// backlog is how many events may wait for a client. It is enough for some thousand pods that stop
// at once.
const backlog = 8192

// event is a change of a sandbox or container.
type event struct {
	id, sandbox string
	kind        runtimeapi.ContainerEventType
	at          time.Time
}

// Events distributes events to the subscribed clients. The zero value is ready to use.
type Events struct {
	mu          sync.Mutex
	subscribers map[*subscriber]bool
}

type subscriber struct {
	queue chan event
	full  chan struct{} // closed when an event was lost
}

// Sandbox must be called after every change of a sandbox's state. It never blocks.
func (e *Events) Sandbox(st sandbox.Status) {
	if ofAgent(st.Config.GetLabels()) {
		return
	}
	send := func(kind runtimeapi.ContainerEventType) { e.send(st.ID, st.ID, kind) }
	switch st.State {
	case sandboxstate.Ready:
		if st.Displaced.Replace {
			send(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
		}
		if st.Displaced.Message != "" {
			return // it is neither new nor ready again
		}
		send(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		send(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	case sandboxstate.Stopped:
		send(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case sandboxstate.Removed:
		send(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
}

// Container must be called after every change of a container's state. It never blocks.
func (e *Events) Container(st container.Status) {
	if ofAgent(st.Config.GetLabels()) || st.Process.PID == 0 {
		return
	}
	switch st.State {
	case containerstate.Created:
		e.send(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	case containerstate.Running:
		e.send(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	case containerstate.Releasing:
		e.send(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case containerstate.Removed:
		e.send(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
}

func (e *Events) send(id, sandbox string, kind runtimeapi.ContainerEventType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for s := range e.subscribers {
		select {
		case s.queue <- event{id, sandbox, kind, time.Now()}:
		default:
			close(s.full)
			delete(e.subscribers, s)
		}
	}
}

// subscribe returns a subscriber that gets every event from now on, until it unsubscribes.
func (e *Events) subscribe() (s *subscriber, unsubscribe func()) {
	s = &subscriber{queue: make(chan event, backlog), full: make(chan struct{})}
	e.mu.Lock()
	if e.subscribers == nil {
		e.subscribers = map[*subscriber]bool{}
	}
	e.subscribers[s] = true
	e.mu.Unlock()
	return s, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.subscribers, s)
	}
}

// each calls fn with every event until ctx ends, fn fails, or an event was lost.
func (s *subscriber) each(ctx context.Context, fn func(event) error) error {
	for {
		select {
		case <-s.full:
			return errdefs.ErrResourceExhausted.WithMessage("events were lost because the client reads too slowly: list all containers and subscribe again")
		case next := <-s.queue:
			if err := fn(next); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
