package nri

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	nrilog "github.com/containerd/nri/pkg/log"
)

// lines is where the adaptation's log goes: the library has one for all.
var lines atomic.Pointer[slog.Logger]

var logOnce = sync.OnceFunc(func() { nrilog.Set(logger{}) })

func logTo(log *slog.Logger) {
	lines.Store(log)
	logOnce()
}

// logger is what the adaptation writes its lines to. What it takes for worth
// knowing is of interest to who writes a plugin.
type logger struct{}

func (logger) write(ctx context.Context, level slog.Level, format string, args []any) {
	if l := lines.Load(); l.Enabled(ctx, level) {
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
	l.write(ctx, slog.LevelError, format, args)
}

// counter is told by the adaptation how many plugins there are.
type counter struct{ r *Relay }

func (c counter) UpdatePluginCount(n int) {
	if had := c.r.count.Swap(int64(n)); had != int64(n) {
		c.r.cfg.Log.Info("NRI: plugins have come or gone", "plugins", n)
	}
}

func (counter) RecordPluginInvocation(string, string, error)                                      {}
func (counter) RecordPluginLatency(string, string, time.Duration)                                 {}
func (counter) RecordPluginAdjustments(string, string, *adaptation.ContainerAdjustment, int, int) {}
