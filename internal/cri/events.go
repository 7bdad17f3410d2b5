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

// backlog is how many events may wait for a client: some thousand pods that all
// stop at once.
const backlog = 8192

// happening is a change that clients are told of.
type happening struct {
	id, sandbox string
	kind        runtimeapi.ContainerEventType
	at          time.Time
}

// Events passes on changes to whoever listens. The zero value is ready.
type Events struct {
	mu        sync.Mutex
	listeners map[*listener]bool
}

type listener struct {
	queue chan happening
	full  chan struct{} // closed when an event was lost
}

// Sandbox is told of every change of a sandbox's state. It never blocks.
func (e *Events) Sandbox(st sandbox.Status) {
	if agents(st.Config.GetLabels()) {
		return
	}
	tell := func(kind runtimeapi.ContainerEventType) { e.tell(st.ID, st.ID, kind) }
	switch st.State {
	case sandboxstate.Ready:
		tell(runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
		tell(runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	case sandboxstate.Stopped:
		tell(runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case sandboxstate.Removed:
		tell(runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
}

// Container is told of every change of a container's state. It never blocks.
func (e *Events) Container(st container.Status) {
	if agents(st.Config.GetLabels()) || st.Process.PID == 0 {
		return
	}
	switch st.State {
	case containerstate.Created:
		e.tell(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT)
	case containerstate.Running:
		e.tell(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT)
	case containerstate.Releasing:
		e.tell(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT)
	case containerstate.Removed:
		e.tell(st.ID, st.Sandbox, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT)
	}
}

func (e *Events) tell(id, sandbox string, kind runtimeapi.ContainerEventType) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for l := range e.listeners {
		select {
		case l.queue <- happening{id, sandbox, kind, time.Now()}:
		default:
			close(l.full)
			delete(e.listeners, l)
		}
	}
}

// listen returns a listener that gets every event from now on, until it leaves.
func (e *Events) listen() (l *listener, leave func()) {
	l = &listener{queue: make(chan happening, backlog), full: make(chan struct{})}
	e.mu.Lock()
	if e.listeners == nil {
		e.listeners = map[*listener]bool{}
	}
	e.listeners[l] = true
	e.mu.Unlock()
	return l, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		delete(e.listeners, l)
	}
}

// each calls fn with every event until ctx ends, or fn fails, or one was lost.
func (l *listener) each(ctx context.Context, fn func(happening) error) error {
	for {
		select {
		case <-l.full:
			return errdefs.ErrResourceExhausted.WithMessage("events came faster than they were read and some are lost: list what there is and ask again")
		case h := <-l.queue:
			if err := fn(h); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
