package daemon

import (
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

func logger(format string, level slog.Leveler, to io.Writer) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		return slog.New(slog.NewJSONHandler(to, options))
	}
	return slog.New(slog.NewTextHandler(to, options))
}

// blockedTime is how long a line of the log may take to be written.
const blockedTime = 10 * time.Second

// logOutput is where the log goes. It knows whether its reader has stopped reading: every goroutine
// that logs waits then.
type logOutput struct {
	level slog.LevelVar
	to    io.Writer
	began atomic.Pointer[time.Time] // of the write in progress; nil without one
}

// Write is called for one line at a time, by a slog.Handler.
func (o *logOutput) Write(line []byte) (int, error) {
	now := time.Now()
	o.began.Store(&now)
	defer o.began.Store(nil)
	return o.to.Write(line)
}

// check returns an error if a write has been in progress for longer than limit.
func (o *logOutput) check(limit time.Duration) error {
	if began := o.began.Load(); began != nil && time.Since(*began) > limit {
		return fmt.Errorf("the log has been blocked for %v", time.Since(*began).Round(time.Second))
	}
	return nil
}
