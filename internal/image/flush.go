package image

import (
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/huskd/husk/internal/image/database"
)

// flushDelay is how long new layers are left to the kernel's writeback before
// they are synced. It keeps the disk free for the container that an image is
// usually pulled for, and lets several pulls share one sync.
const flushDelay = 3 * time.Second

// flusher syncs new layers to disk in the background. A pull doesn't wait for
// that, because it can take as long as the pull itself. After a power failure in
// between, layers are unpacked again from their blobs, which were synced.
type flusher struct {
	db  *database.DB
	log *slog.Logger

	mu      sync.Mutex
	pending []string // IDs of images whose layers are not synced yet
	running bool     // run is running
	stopped bool
	end     chan struct{} // closed by stop
}

func newFlusher(db *database.DB, log *slog.Logger) *flusher {
	return &flusher{db: db, log: log, end: make(chan struct{})}
}

// flush syncs the layers of images in the background, and records that.
func (f *flusher) flush(ids ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pending = append(f.pending, ids...)
	if len(f.pending) > 0 && !f.running {
		f.running = true
		go f.run()
	}
}

func (f *flusher) run() {
	for {
		select {
		case <-time.After(flushDelay):
		case <-f.end:
		}
		ids := f.take()
		if len(ids) == 0 {
			return
		}
		// Return the memory that decompression took: it isn't needed again soon.
		debug.FreeOSMemory()
		err := f.db.Sync()
		if err == nil {
			err = f.record(ids)
		}
		if err != nil && !f.isStopped() {
			f.log.Warn("image layers could not be synced to disk; after a power failure they are unpacked again", "error", err)
		}
	}
}

// take returns and clears the pending IDs. If there are none, it marks run as ended.
func (f *flusher) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ids := f.pending
	f.pending = nil
	if f.stopped {
		ids = nil
	}
	f.running = len(ids) > 0
	return ids
}

func (f *flusher) record(ids []string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil // the next process does it
	}
	return f.db.MarkSynced(ids...)
}

func (f *flusher) isStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stopped
}

// stop makes the flusher leave the database alone. It doesn't wait for a sync
// in progress.
func (f *flusher) stop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stopped {
		f.stopped = true
		close(f.end)
	}
}
