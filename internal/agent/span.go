package agent

import (
	"context"

	"github.com/huskd/husk/internal/agent/view"
)

// teller tells of what is done for a pod: to who traces it, and in the log.
type teller struct{ *worker }

// span begins a span of what is done for the pod; about has names and values in
// turn.
func (t teller) span(ctx context.Context, name string, about ...string) (context.Context, func(error)) {
	if t.a.cfg.Begin == nil {
		return ctx, func(error) {}
	}
	return t.a.cfg.Begin(ctx, name, append(about, view.About(t.manifest)...)...)
}

// warn logs an error with the pod, and the sandbox and stage if it is of one.
func (t teller) warn(text string, err error, more ...any) {
	line := append([]any{"pod", nameOf(t.manifest)}, view.Where(err)...)
	t.a.cfg.Log.Warn(text, append(append(line, more...), "error", err)...)
}
