package housekeeping

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/logs"
)

// A log that is written to is looked at again before it can have grown by half of what it may, at
// the rate at which it has grown so far. A quiet one isn't looked at: the kernel reports the next
// write.
const (
	minPause = 10 * time.Millisecond
	maxPause = 160 * time.Millisecond
)

// Started tells the Housekeeper of a container that was started. It doesn't block.
func (h *Housekeeper) Started(st container.Status) {
	select {
	case h.started <- st:
		return
	default:
		h.missed.Store(true)
	}
	select { // so that missed is seen, even if all that were there have been received since
	case h.started <- st:
	default:
	}
}

// rotateLogs rotates the logs of running containers when they have grown, until ctx ends.
func (h *Housekeeper) rotateLogs(ctx context.Context) {
	if h.Rotation.MaxSize == 0 {
		return
	}
	writes, err := logs.OpenWrites()
	if err != nil {
		h.Log.Error("housekeeping: logs are not rotated", "error", err)
		return
	}
	defer writes.Close()
	w := logWatch{h: h, writes: writes, logs: map[string]*growingLog{}}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	w.list()
	for {
		w.due(ctx)
		select {
		case path := <-writes.C:
			w.written(path)
		case <-time.After(w.pause()):
		case st := <-h.started:
			w.add(&st)
		case <-tick.C:
			w.list()
		case <-ctx.Done():
			return
		}
	}
}

// compressLogs compresses what was rotated. It takes longer than a log may take to grow, so it
// doesn't delay rotations.
func (h *Housekeeper) compressLogs() {
	h.mu.Lock()
	paths := slices.Sorted(maps.Keys(h.rotated))
	clear(h.rotated)
	h.mu.Unlock()
	for _, path := range paths {
		if err := logs.Compress(path); err != nil {
			h.Log.Warn("housekeeping: log not compressed", "error", err)
		}
	}
}

// logWatch knows which logs grow.
type logWatch struct {
	h      *Housekeeper
	writes *logs.Writes
	logs   map[string]*growingLog // by path
}

// growingLog is the log of a running container.
type growingLog struct {
	container string
	size      int64
	seen      time.Time // when it had this size
	due       time.Time // when to look again; zero to wait for a write
}

// list adds the logs of containers that have started, and forgets those of others.
func (w *logWatch) list() {
	running := map[string]bool{}
	for st := range w.h.Containers.Views() {
		if w.watch(st) {
			running[st.Log] = true
		}
	}
	maps.DeleteFunc(w.logs, func(path string, _ *growingLog) bool { return !running[path] })
}

// add adds the log of a container that has started, or those of all if some were missed. Without
// these, a start costs the same however many containers there are.
func (w *logWatch) add(st *container.Status) {
	if w.h.missed.Swap(false) {
		w.list()
		return
	}
	w.watch(st)
}

// watch adds the log of a container, unless it is known. It reports whether the container runs and
// has a log of ours.
func (w *logWatch) watch(st *container.Status) bool {
	if st.Log == "" || st.Started.IsZero() || st.Finished || !w.h.Ours(*st) {
		return false
	}
	if l := w.logs[st.Log]; l == nil || l.container != st.ID {
		w.logs[st.Log] = &growingLog{container: st.ID, seen: st.Started, due: time.Now()}
	}
	return true
}

// written makes a log due soon that was quiet until now.
func (w *logWatch) written(path string) {
	if l := w.logs[path]; l != nil && l.due.IsZero() {
		l.seen, l.due = time.Now(), time.Now().Add(minPause)
	}
}

// pause returns the time until a log is due.
func (w *logWatch) pause() time.Duration {
	out := interval
	for _, l := range w.logs {
		if !l.due.IsZero() {
			out = min(out, time.Until(l.due))
		}
	}
	return out
}

// due looks at the logs that are due.
func (w *logWatch) due(ctx context.Context) {
	for path, l := range w.logs {
		if !l.due.IsZero() && !time.Now().Before(l.due) {
			w.look(ctx, path, l)
		}
	}
}

// look rotates a log that has become too large, and decides when to look again.
func (w *logWatch) look(ctx context.Context, path string, l *growingLog) {
	info, err := os.Stat(path)
	now := time.Now()
	if err != nil || info.Size() >= w.h.Rotation.MaxSize {
		l.size, l.seen, l.due = 0, now, now.Add(minPause)
		if !w.h.rotate(ctx, path, l.container) {
			l.due = now.Add(interval)
		}
		return
	}
	size := info.Size()
	grown := size - l.size
	if grown <= 0 {
		l.due = time.Time{}
		err := w.writes.Ask(path)
		if info, again := os.Stat(path); err != nil || again != nil || info.Size() != size {
			l.due = now.Add(maxPause) // it was written to before it was watched
		}
		l.size, l.seen = size, now
		return
	}
	left := float64(w.h.Rotation.MaxSize-size) / float64(2*grown) * float64(now.Sub(l.seen))
	l.size, l.seen, l.due = size, now, now.Add(min(max(time.Duration(min(left, float64(maxPause))), minPause), maxPause))
}

// rotate rotates the log of a container and reports whether that worked.
func (h *Housekeeper) rotate(ctx context.Context, path, id string) bool {
	err := h.Rotation.Rotate(path, time.Now(), func() error { return h.Containers.ReopenLog(ctx, id) })
	if err == nil {
		h.mu.Lock()
		h.rotated[path] = true
		h.mu.Unlock()
		return true
	}
	if st, gone := h.Containers.Get(id); gone == nil && !st.Finished && ctx.Err() == nil {
		h.Log.Warn("housekeeping: log not rotated", "container", st.Name(), "id", id, "error", err)
	}
	return false
}
