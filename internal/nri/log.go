package nri

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
)

// adaptationLog receives the log of the adaptation, which has one global logger.
var adaptationLog atomic.Pointer[slog.Logger]

var logOnce = sync.OnceFunc(func() { nrilog.Set(logger{}) })

func logTo(log *slog.Logger) {
	adaptationLog.Store(log)
	logOnce()
}

// logger is the adaptation's logger. It logs the info level as debug, because that only
// helps authors of plugins.
type logger struct{}

func (logger) write(ctx context.Context, level slog.Level, format string, args []any) {
	if l := adaptationLog.Load(); l.Enabled(ctx, level) {
		l.Log(ctx, level, "NRI: "+fmt.Sprintf(format, args...))
	}
}

func (l logger) Debugf(ctx context.Context, format string, args ...any) {
	l.write(ctx, slog.LevelDebug, format, args)
}

func (l logger) Infof(ctx context.Context, format string, args ...any) {
	l.write(ctx, slog.LevelDebug, format, args)
}

func (l logger) Warnf(ctx context.Context, format string, args ...any) {
	l.write(ctx, slog.LevelWarn, format, args)
}

func (l logger) Errorf(ctx context.Context, format string, args ...any) {
	level := slog.LevelError
	if slices.Contains(args, any(adaptation.ErrWasmDisabled)) {
		level = slog.LevelDebug // at each start; a plugin that needs it gets a warning of its own
	}
	l.write(ctx, level, format, args)
}

// counter receives the number of plugins from the adaptation.
type counter struct{ r *Relay }

func (c counter) UpdatePluginCount(n int) {
	if before := c.r.count.Swap(int64(n)); before != int64(n) {
		c.r.cfg.Log.Info("NRI: the number of plugins has changed", "plugins", n)
	}
}

func (counter) RecordPluginInvocation(string, string, error)                                      {}
func (counter) RecordPluginLatency(string, string, time.Duration)                                 {}
func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}
