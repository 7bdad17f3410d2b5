package stream

import (
	"context"
	"log/slog"
)

// debugHandler logs all records at debug level. The library logs each client that disconnects as an
// error.
type debugHandler struct{ slog.Handler }

// Enabled reports whether debug records are logged.
func (q debugHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle logs a record at debug level. klog hands over errors without asking Enabled.
func (q debugHandler) Handle(ctx context.Context, r slog.Record) error {
	if !q.Enabled(ctx, r.Level) {
		return nil
	}
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

// WithAttrs returns a debugHandler with the attributes.
func (q debugHandler) WithAttrs(a []slog.Attr) slog.Handler {
	return debugHandler{q.Handler.WithAttrs(a)}
}

// WithGroup returns a debugHandler with the group.
func (q debugHandler) WithGroup(name string) slog.Handler {
	return debugHandler{q.Handler.WithGroup(name)}
}
