package oci

import (
	"context"
	"time"
)

// lostCode is the exit code of a container whose exit code is unknown.
const lostCode = 255

// LostExit returns the exit, now, of a container whose monitor is gone.
func LostExit() Exit { return Exit{Code: lostCode, Lost: true, At: time.Now()} }

// ExitNotifier notifies any number of waiters of the exit of one container.
type ExitNotifier struct {
	done chan struct{}
	exit Exit // Invariant: written only before done is closed
}

// NewExitNotifier returns an ExitNotifier of a container that hasn't exited.
func NewExitNotifier() *ExitNotifier { return &ExitNotifier{done: make(chan struct{})} }

// Notify wakes all waiters. It must be called once.
func (e *ExitNotifier) Notify(exit Exit) {
	e.exit = exit
	close(e.done)
}

// Exited reports whether Notify was called.
func (e *ExitNotifier) Exited() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Wait returns after Notify was called, or with ctx's cause.
func (e *ExitNotifier) Wait(ctx context.Context) error {
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Exit returns the exit. It must be called after Exited has returned true or Wait nil.
func (e *ExitNotifier) Exit() Exit { return e.exit }
