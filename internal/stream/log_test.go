package stream

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestDebugHandler logs an error as klog does, without asking whether it would be logged.
func TestDebugHandler(t *testing.T) {
	for level, want := range map[slog.Level]string{slog.LevelInfo: "", slog.LevelDebug: "level=DEBUG msg=disconnected\n"} {
		var out strings.Builder
		handler := debugHandler{slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level})}
		if err := handler.Handle(t.Context(), slog.NewRecord(time.Time{}, slog.LevelError, "disconnected", 0)); err != nil {
			t.Error(err)
		}
		if out.String() != want {
			t.Errorf("with level %v it logs %q, not %q", level, out.String(), want)
		}
	}
}
