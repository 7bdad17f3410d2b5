package oci

import (
	"context"
	"time"
)

// lostCode is the exit code where none is known.
const lostCode = 255

// LostExit is how a container ended, just now, whose monitor is gone.
func LostExit() Exit { return Exit{Code: lostCode, Lost: true, At: time.Now()} }

// Ending is the end of a container, for which many wait.
type ExitNotifier struct {
	done chan struct{}
	exit Exit // set before done is closed
}

// NewExitNotifier returns one that is yet to come.
func NewExitNotifier() *ExitNotifier { return &ExitNotifier{done: make(chan struct{})} }

// Come says how the container ended, once.
func (e *ExitNotifier) Notify(exit Exit) {
	e.exit = exit
	close(e.done)
}

// Over says whether it has come.
func (e *ExitNotifier) Exited() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

// Wait returns when it has come, or with ctx's cause.
func (e *ExitNotifier) Wait(ctx context.Context) error {
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Exit is how it ended, once it is over.
func (e *ExitNotifier) Exit() Exit { return e.exit }
